// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A strict reader for one JSON object (RFC 8259): it takes nothing that the grammar does not, no
// value nested deeper than in the reports, no key twice. Members of inner objects are found as
// "outer.inner"; values stay as written.
#pragma once
#include <cctype>
#include "../../tools/program/standard.hpp"

namespace vmm::tests {

class json_reader {
 public:
  using members = std::map<std::string, std::string>;

  /// The members of `text`, which must be one object and nothing else; nullopt when it is not.
  static std::optional<members> read(std::string_view text) {
    json_reader reader{text};
    if (!reader.object("") || reader.at_ != text.size()) return std::nullopt;
    return reader.found_;
  }

 private:
  explicit json_reader(std::string_view text) : text_(text) {}

  bool take(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  void space() {
    while (at_ < text_.size() &&
           std::string_view{" \t\r\n"}.find(text_[at_]) != std::string_view::npos)
      ++at_;
  }
  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ != begin;
  }
  bool number() {
    (void)take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) (void)take('-');
      return digits();
    }
    return true;
  }
  bool escape() {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    if (c != 'u') return std::string_view{"\"\\/bfnrt"}.find(c) != std::string_view::npos;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[at_])) == 0)
        return false;
    }
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\' && !escape()) return false;
    }
    return false;
  }
  bool array() {
    if (!take('[')) return false;
    space();
    if (take(']')) return true;
    do {
      space();
      if (!scalar()) return false;
      space();
    } while (take(','));
    return take(']');
  }
  bool scalar() {
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '"') return string();
    return word("true") || word("false") || word("null") || number();
  }
  bool value(const std::string& key) {
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '{') return key.find('.') == std::string::npos && object(key + ".");
    return text_[at_] == '[' ? array() : scalar();
  }
  bool object(const std::string& prefix) {
    if (!take('{')) return false;
    space();
    if (take('}')) return true;
    do {
      space();
      const std::size_t key_begin = at_ + 1;
      if (!string()) return false;
      const std::string key = prefix + std::string(text_.substr(key_begin, at_ - key_begin - 1));
      space();
      if (!take(':')) return false;
      space();
      const std::size_t value_begin = at_;
      if (!value(key)) return false;
      if (!found_.emplace(key, text_.substr(value_begin, at_ - value_begin)).second) return false;
      space();
    } while (take(','));
    return take('}');
  }

  std::string_view text_;
  std::size_t at_ = 0;
  members found_;
};

}  // namespace vmm::tests
