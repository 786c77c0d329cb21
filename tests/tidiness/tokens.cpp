// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "tokens.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>

namespace tidy {
namespace {

bool begins_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class reader {
 public:
  explicit reader(std::string_view text) : text_(text) {}

  source read() {
    while (at_ < text_.size()) step();
    return std::move(found_);
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool starts(std::string_view what) const {
    return text_.substr(at_).starts_with(what);
  }

  void advance_to(std::size_t end) {
    end = std::min(end, text_.size());
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  void step() {
    const char c = peek();
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (c == '\n') line_is_empty_ = true;
      advance_to(at_ + 1);
    } else if (starts("//")) {
      advance_to(end_of("\n"));
    } else if (starts("/*")) {
      advance_to(end_of("*/") + 2);
    } else if (c == '#' && line_is_empty_) {
      read_directive();
    } else {
      line_is_empty_ = false;
      read_token();
    }
  }

  [[nodiscard]] std::size_t end_of(std::string_view mark) const {
    return std::min(text_.find(mark, at_), text_.size());
  }

  void read_directive() {
    std::size_t end = end_of("\n");
    while (end < text_.size() && text_[end - 1] == '\\')
      end = std::min(text_.find('\n', end + 1), text_.size());
    found_.directives.push_back({text_.substr(at_, end - at_), line_});
    advance_to(end);
  }

  void read_token() {
    const char c = peek();
    std::size_t end = at_ + 1;
    if (begins_word(c)) {
      while (end < text_.size() && in_word(text_[end])) ++end;
      if (end < text_.size() && text_[end] == '"' && text_[end - 1] == 'R') return read_raw(end);
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (end < text_.size() && (in_word(text_[end]) || text_[end] == '\'' || text_[end] == '.'))
        ++end;
    } else if (c == '"' || c == '\'') {
      return read_quoted(c);
    } else if (starts("::") || starts("->") || starts("[[") || starts("]]") || starts("&&") ||
               starts("||")) {
      ++end;
    }
    push(end - at_);
    advance_to(end);
  }

  void read_quoted(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n')
      end += text_[end] == '\\' ? 2 : 1;
    found_.tokens.push_back({literal, line_});
    advance_to(end + 1);
  }

  void read_raw(std::size_t quote) {
    const std::size_t open = std::min(text_.find('(', quote), text_.size());
    const std::string mark = ")" + std::string{text_.substr(quote + 1, open - quote - 1)} + "\"";
    found_.tokens.push_back({literal, line_});
    const std::size_t end = text_.find(mark, open);
    advance_to(end == std::string_view::npos ? text_.size() : end + mark.size());
  }

  void push(std::size_t length) { found_.tokens.push_back({text_.substr(at_, length), line_}); }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_is_empty_ = true;
  source found_;
};

}  // namespace

source read_source(std::string_view text) { return reader{text}.read(); }

bool is_word(std::string_view token) { return !token.empty() && begins_word(token.front()); }

}  // namespace tidy
