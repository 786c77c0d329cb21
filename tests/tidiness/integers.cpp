// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "integers.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "exports.hpp"
#include "tokens.hpp"

namespace tidy {
namespace {

constexpr std::array<std::string_view, 15> integers{
    "int8_t",   "int16_t",   "int32_t", "int64_t",   "uint8_t", "uint16_t", "uint32_t", "uint64_t",
    "intptr_t", "uintptr_t", "size_t",  "ptrdiff_t", "int",     "unsigned", "long"};

// allocate(bytes, alignment, stream) and its like are what std::pmr and the allocators of the field
// have; round_up(value, unit) is arithmetic.
constexpr std::array<std::string_view, 5> field_calls{"allocate", "deallocate", "do_allocate",
                                                      "do_deallocate", "round_up"};

// Where in a class a declaration stands.
struct scope {
  bool is_class = false;
  bool is_open = false;  // users can name what is declared here
};

class walker {
 public:
  explicit walker(const file& subject, const source& text)
      : path_(subject.path), tokens_(text.tokens) {}

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
    if (now == "template" && text(at_ + 1) == "<") return skip_angles();
    if (now == "export") exported_ = true;
    if (now == "namespace") opens_namespace_ = true;
    if (now == "class" || now == "struct" || now == "union") note_class(now);
    if ((now == "public" || now == "private" || now == "protected") && text(at_ + 1) == ":")
      scopes_.back().is_open = now == "public" && class_is_exported_;
    if (now == "(") return parameters();
    if (now == "{") return open();
    if (now == "}") return close();
    if (now == ";") end_of_statement();
    ++at_;
  }

  // The parameters of a template may say class without declaring one.
  void skip_angles() {
    int depth = 0;
    for (++at_; at_ < tokens_.size(); ++at_) {
      if (text(at_) == "<") ++depth;
      if (text(at_) == ">" && --depth == 0) break;
    }
    ++at_;
  }

  void note_class(std::string_view word) {
    opens_class_ = true;
    class_is_struct_ = word != "class";
  }

  void open() {
    const bool in_class = scopes_.back().is_class;
    if (opens_namespace_) {
      scopes_.push_back({});
    } else if (opens_class_) {
      const bool usable = in_class ? scopes_.back().is_open : exported_;
      if (!in_class) class_is_exported_ = exported_;
      scopes_.push_back({true, usable && class_is_struct_});
    } else {
      return skip_braces();
    }
    ++at_;
    end_of_statement();
  }

  void close() {
    if (scopes_.size() > 1) scopes_.pop_back();
    ++at_;
    end_of_statement();
  }

  void end_of_statement() { exported_ = opens_namespace_ = opens_class_ = false; }

  // A body or a value: nothing in it can be called from outside.
  void skip_braces() {
    int depth = 0;
    do {
      if (text(at_) == "{") ++depth;
      if (text(at_) == "}") --depth;
      ++at_;
    } while (depth > 0 && at_ < tokens_.size());
    end_of_statement();
  }

  void parameters() {
    const std::string name{at_ == 0 ? std::string_view{} : text(at_ - 1)};
    const int line = tokens_[at_].line;
    const bool usable = scopes_.back().is_class ? scopes_.back().is_open : exported_;
    std::string_view before;
    int depth = 0;
    int angles = 0;
    std::size_t begin = at_ + 1;
    for (; at_ < tokens_.size(); ++at_) {
      const std::string_view now = text(at_);
      if (now == "(") ++depth;
      if (now == ")") --depth;
      if (now == "<") ++angles;
      if (now == ">" && angles > 0) --angles;
      const bool ends = depth == 0 || (depth == 1 && angles == 0 && now == ",");
      if (!ends) continue;
      const std::string_view type = integer_of(begin, at_);
      if (usable && !type.empty() && type == before) report(name, line, type);
      before = type;
      begin = at_ + 1;
      if (depth == 0) break;
    }
    ++at_;
  }

  // The integer type of the parameter in [begin, end), which is passed by value and has a name;
  // empty when it is another type or no parameter.
  [[nodiscard]] std::string_view integer_of(std::size_t begin, std::size_t end) const {
    if (text(begin) == "const") ++begin;
    if (text(begin) == "std" && text(begin + 1) == "::") begin += 2;
    const std::string_view type = text(begin);
    if (std::ranges::find(integers, type) == integers.end()) return {};
    const bool has_name = begin + 1 < end && is_word(text(begin + 1));
    const bool ends = begin + 2 >= end || text(begin + 2) == "=";
    return has_name && ends ? type : std::string_view{};
  }

  void report(const std::string& name, int line, std::string_view type) {
    if (std::ranges::find(field_calls, name) != field_calls.end()) return;
    found_.push_back({path_, line, "integers",
                      name + " takes two of " + std::string{type} +
                          " side by side: make them fields of a request, or types of their own"});
  }

  std::string path_;
  const std::vector<token>& tokens_;
  std::size_t at_ = 0;
  std::vector<scope> scopes_;
  std::vector<finding> found_;
  bool exported_ = false;
  bool opens_namespace_ = false;
  bool opens_class_ = false;
  bool class_is_struct_ = false;
  bool class_is_exported_ = false;
};

}  // namespace

std::vector<finding> check_integers(const file& subject) {
  const bool inside = subject.path.starts_with("modules/") || subject.path.starts_with("backends/");
  if (!inside || !subject.path.ends_with(".cppm")) return {};
  const source text = read_source(subject.text);
  if (!read_unit(text).interface) return {};
  return walker(subject, text).walk();
}

}  // namespace tidy
