// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "comments.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "exports.hpp"
#include "tokens.hpp"

namespace tidy {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

struct scope {
  bool is_class = false;
  bool is_open = false;  // users can call what is declared here
  std::string_view name;
};

class walker {
 public:
  walker(const file& subject, const source& text)
      : path_(subject.path), lines_(lines_of(subject.text)), tokens_(text.tokens) {}

  std::vector<finding> walk() {
    scopes_.push_back({});
    while (at_ < tokens_.size()) step();
    return std::move(found_);
  }

 private:
  [[nodiscard]] std::string_view text(std::size_t at) const {
    return at < tokens_.size() ? tokens_[at].text : std::string_view{};
  }

  void step() {
    const std::string_view now = text(at_);
    if (first_line_ == 0) first_line_ = tokens_[at_].line;
    if (now == "template" && text(at_ + 1) == "<") return skip("<", ">", at_ + 1);
    if (now == "export") exported_ = true;
    if (now == "namespace") opens_namespace_ = true;
    if (now == "friend" || now == "operator" || now == "~" || now == "static_assert")
      needs_none_ = true;
    if ((now == "class" || now == "struct" || now == "union") && !has_parameters_) note_class(now);
    if ((now == "public" || now == "private" || now == "protected") && text(at_ + 1) == ":")
      return access(now);
    if (now == "(") return parameters();
    if (now == "=") has_equals_ = true;
    if (now == "=" && (text(at_ + 1) == "delete" || text(at_ + 1) == "default")) needs_none_ = true;
    if (now == "{") return open();
    if (now == "}") return close();
    if (now == ";") end_of_statement();
    ++at_;
  }

  void access(std::string_view now) {
    scopes_.back().is_open = now == "public" && class_is_exported_;
    at_ += 2;
    first_line_ = 0;
  }

  void note_class(std::string_view word) {
    opens_class_ = true;
    class_is_struct_ = word != "class";
    std::size_t name = at_ + 1;
    while (text(name) == "[[" || text(name).starts_with("VMM_")) {
      const bool attribute = text(name) == "[[";
      while (text(name) != (attribute ? "]]" : ")") && name < tokens_.size()) ++name;
      ++name;
    }
    class_name_ = text(name);
  }

  void skip(std::string_view open, std::string_view close, std::size_t from) {
    int depth = 0;
    for (at_ = from; at_ < tokens_.size(); ++at_) {
      if (text(at_) == open) ++depth;
      if (text(at_) == close && --depth == 0) break;
    }
    ++at_;
  }

  // The first parentheses after a name are a function's parameters.
  void parameters() {
    const std::string_view before = at_ == 0 ? std::string_view{} : text(at_ - 1);
    const bool is_call = is_word(before) && before != "requires" && before != "alignas" &&
                         before != "explicit" && before != "decltype" &&
                         !before.starts_with("VMM_");
    const std::size_t open = at_;
    if (is_call && !has_parameters_ && !has_equals_) {
      has_parameters_ = true;
      name_ = before;
      line_ = first_line_;
      // A copy or a move: the first parameter is of the class itself.
      const std::size_t type = text(open + 1) == "const" ? open + 2 : open + 1;
      const bool of_itself = before == scopes_.back().name && text(type) == before &&
                             (text(type + 1) == "&" || text(type + 1) == "&&");
      needs_none_ = needs_none_ || of_itself;
    }
    skip("(", ")", open);
  }

  void open() {
    const bool in_class = scopes_.back().is_class;
    if (opens_namespace_) {
      scopes_.push_back({});
    } else if (opens_class_ && !has_parameters_) {
      const bool usable = in_class ? scopes_.back().is_open : exported_;
      if (!in_class) class_is_exported_ = exported_;
      scopes_.push_back({true, usable && class_is_struct_, class_name_});
    } else {
      const bool is_value = !has_parameters_ || is_initializer();
      skip("{", "}", at_);
      if (!is_value) end_of_statement();
      return;
    }
    ++at_;
    forget();
  }

  // x(a), y{b} {}: the member that is given a value in braces.
  [[nodiscard]] bool is_initializer() const {
    if (!has_initializers()) return false;
    return is_word(text(at_ - 1)) || text(at_ - 1) == ">";
  }
  [[nodiscard]] bool has_initializers() const {
    int depth = 0;
    for (std::size_t at = at_; at-- > 0;) {
      const std::string_view now = text(at);
      if (now == ")" || now == "}") ++depth;
      if (now == "(" || now == "{") --depth;
      if (depth < 0 || (depth == 0 && now == ";")) return false;
      if (depth == 0 && now == ":" && text(at - 1) != "public" && text(at - 1) != "private")
        return true;
      if (tokens_[at].line < first_line_) return false;
    }
    return false;
  }

  void close() {
    if (scopes_.size() > 1) scopes_.pop_back();
    ++at_;
    forget();
  }

  void end_of_statement() {
    const bool usable = scopes_.back().is_class ? scopes_.back().is_open : exported_;
    if (usable && has_parameters_ && !needs_none_ && !has_comment(line_)) report();
    forget();
  }

  void forget() {
    exported_ = opens_namespace_ = opens_class_ = false;
    has_parameters_ = has_equals_ = needs_none_ = false;
    first_line_ = 0;
  }

  // Up to the comment before the first of the declarations that stand without an empty line.
  [[nodiscard]] bool has_comment(int line) const {
    if (lines_[static_cast<std::size_t>(line) - 1].find("//") != std::string_view::npos)
      return true;
    for (std::size_t at = static_cast<std::size_t>(line) - 1; at-- > 0;) {
      const std::string_view above = lines_[at];
      if (above.starts_with("//")) return true;
      if (above.empty() || above == "public:" || above == "private:") return false;
    }
    return false;
  }

  void report() {
    found_.push_back({path_, line_, "comment",
                      std::string{name_} + " is a public call without a comment: state under "
                                           "Requires, Effects, Errors and Cost its contract"});
  }

  std::string path_;
  std::vector<std::string_view> lines_;
  const std::vector<token>& tokens_;
  std::size_t at_ = 0;
  std::vector<scope> scopes_;
  std::vector<finding> found_;
  std::string_view class_name_;
  std::string_view name_;
  int line_ = 0;
  int first_line_ = 0;  // of the statement; 0 between two
  bool exported_ = false;
  bool opens_namespace_ = false;
  bool opens_class_ = false;
  bool class_is_struct_ = false;
  bool class_is_exported_ = false;
  bool has_parameters_ = false;
  bool has_equals_ = false;  // what follows is a value
  bool needs_none_ = false;
};

}  // namespace

std::vector<finding> check_comments(const file& subject) {
  const bool inside = subject.path.starts_with("modules/") || subject.path.starts_with("backends/");
  if (!inside || !subject.path.ends_with(".cppm")) return {};
  const source text = read_source(subject.text);
  if (!read_unit(text).interface) return {};
  return walker(subject, text).walk();
}

}  // namespace tidy
