// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "exports.hpp"

#include <algorithm>
#include <cstddef>
#include <initializer_list>

namespace tidy {
namespace {

bool is_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

// A position in the tokens that reads past the end as empty words.
class cursor {
 public:
  cursor(const std::vector<token>& tokens, std::size_t at) : tokens_(tokens), at_(at) {}

  [[nodiscard]] std::string_view text(std::size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead].text : std::string_view{};
  }
  [[nodiscard]] int line() const { return at_ < tokens_.size() ? tokens_[at_].line : 0; }
  [[nodiscard]] bool done() const { return at_ >= tokens_.size(); }
  [[nodiscard]] std::size_t position() const { return at_; }
  void next() { ++at_; }

  // Past the bracket that closes the one here; >> counts as two since every > is a token of its
  // own.
  void skip_balanced(std::string_view open, std::string_view close) {
    int depth = 0;
    while (!done()) {
      if (text() == open) ++depth;
      if (text() == close) --depth;
      next();
      if (depth == 0) return;
    }
  }

  // [[...]], and the macros of modules/base/thread_annotations.h.
  void skip_attributes() {
    for (;;) {
      if (text() == "[[") {
        skip_balanced("[[", "]]");
      } else if (text().starts_with("VMM_")) {
        next();
        if (text() == "(") skip_balanced("(", ")");
      } else {
        return;
      }
    }
  }

  // `requires` clauses: primaries joined by && and ||.
  void skip_requires() {
    while (!done()) {
      next();  // requires, && or ||
      if (text() == "requires") {
        next();
        if (text() == "(") skip_balanced("(", ")");
        skip_balanced("{", "}");
      } else if (text() == "(") {
        skip_balanced("(", ")");
      } else {
        skip_qualified_name();
      }
      if (text() != "&&" && text() != "||") return;
    }
  }

  void skip_qualified_name() {
    while (is_word(text()) || text() == "::" || text() == "!") {
      const bool joined = text() == "::" || text() == "!";
      next();
      if (text() == "<") skip_balanced("<", ">");
      if (!joined && text() != "::") return;
    }
  }

 private:
  const std::vector<token>& tokens_;
  std::size_t at_;
};

// The name of a function or variable: the last word before what cannot be part of a type any more.
std::string declared_name(cursor at) {
  std::string_view name;
  while (!at.done() && !is_any(at.text(), {"(", "=", "{", ";", "["})) {
    at.skip_attributes();
    if (at.text() == "operator") return {};
    if (at.text() == "<") {
      at.skip_balanced("<", ">");
      if (is_any(at.text(), {"(", "=", "{", ";"})) return {};  // a specialization
      continue;
    }
    if (is_any(at.text(), {"decltype", "alignas", "explicit"}) && at.text(1) == "(") {
      at.next();
      at.skip_balanced("(", ")");
      continue;
    }
    if (is_word(at.text())) name = at.text();
    at.next();
  }
  return std::string{name};
}

// The name that the declaration at `at`, which follows the word export, introduces; or empty.
std::string name_at(cursor at) {
  at.skip_attributes();
  while (at.text() == "template") {
    at.next();
    if (at.text() == "<" && at.text(1) == ">") return {};  // an explicit specialization
    at.skip_balanced("<", ">");
    if (at.text() == "requires") at.skip_requires();
    at.skip_attributes();
  }
  if (at.text() == "using")
    at.next();  // an alias's name stands before the =, a name's own before the ;
  if (at.text() == "concept") return std::string{at.text(1)};
  if (!is_any(at.text(), {"struct", "class", "union", "enum"})) return declared_name(at);
  at.next();
  if (is_any(at.text(), {"struct", "class"})) at.next();
  at.skip_attributes();
  const std::string name{at.text()};
  return at.text(1) == "<" ? std::string{} : name;  // X<...> is a partial specialization
}

class scanner {
 public:
  explicit scanner(const source& text) : at_(text.tokens, 0), tokens_(text.tokens) {}

  unit scan() {
    while (!at_.done()) step();
    return std::move(found_);
  }

 private:
  void step() {
    const bool at_start = previous_.empty() || is_any(previous_, {";", "}", "{", "]]", ":"});
    if (at_start && at_.text() == "namespace") return enter_namespace();
    if (at_.text() == "{") scopes_.push_back({});
    if (at_.text() == "}" && !scopes_.empty()) scopes_.pop_back();
    if (at_start && is_any(at_.text(), {"export", "import", "module"})) return declaration();
    advance();
  }

  void advance() {
    previous_ = at_.text();
    at_.next();
  }

  void enter_namespace() {
    std::string name;
    while (!at_.done() && !is_any(at_.text(), {"{", ";", "="})) {
      if (at_.text() != "namespace" && at_.text() != "inline") name += at_.text();
      advance();
    }
    if (at_.text() != "{") return;
    scopes_.push_back(name);
    advance();
  }

  void declaration() {
    const int line = at_.line();
    const bool exported = at_.text() == "export";
    if (exported) advance();
    if (at_.text() == "module" && (is_word(at_.text(1)) || at_.text(1) == ";")) {
      found_.interface = found_.interface || exported;
      advance();
      if (const std::string name = dotted_name(); !name.empty()) found_.module = name;
    } else if (at_.text() == "import") {
      advance();
      found_.imports.push_back({dotted_name(), line, exported});
    } else if (exported && is_any(at_.text(), {"{", "namespace"})) {
      found_.export_blocks.push_back(line);
    } else if (exported) {
      note_name(line);
    } else {
      advance();
    }
  }

  void note_name(int line) {
    const std::string name = name_at(at_copy());
    if (name.empty()) return;
    std::string qualified;
    for (const std::string& scope : scopes_) {
      if (!scope.empty()) qualified += scope + "::";
    }
    found_.names.push_back({qualified + name, line});
  }

  std::string dotted_name() {
    std::string name;
    while (!at_.done() && at_.text() != ";") {
      name += at_.text();
      advance();
    }
    return name;
  }

  [[nodiscard]] cursor at_copy() const { return cursor{tokens_, at_.position()}; }

  cursor at_;
  const std::vector<token>& tokens_;
  std::string_view previous_;
  std::vector<std::string> scopes_;
  unit found_;
};

}  // namespace

unit read_unit(const source& text) { return scanner{text}.scan(); }

std::vector<std::string> using_declarations(const source& text) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < text.tokens.size(); ++i) {
    if (text.tokens[i].text != "using") continue;
    std::string name;
    for (++i; i < text.tokens.size() && !is_any(text.tokens[i].text, {";", "="}); ++i)
      name += text.tokens[i].text;
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace tidy
