// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A check that a document is well-formed XML of the kind that vmm writes: one root, elements nested
// properly, attributes quoted and unique, the five named entities, printable text. No comments,
// instructions or CDATA.
#pragma once
#include <cctype>
#include "../../tools/program/standard.hpp"

namespace vmm::tests {

class xml_checker {
 public:
  /// Empty when `text` is well-formed, else what is wrong and where.
  static std::string complaint(std::string_view text) {
    xml_checker checker{text};
    const std::string what = checker.document();
    return what.empty() ? "" : what + " at byte " + std::to_string(checker.at_);
  }

 private:
  explicit xml_checker(std::string_view text) : text_(text) {}

  bool more() const { return at_ < text_.size(); }
  bool take(char wanted) {
    if (!more() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void space() {
    while (more() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  std::string name() {
    const std::size_t begin = at_;
    while (more() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                      text_[at_] == '-' || text_[at_] == ':'))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  /// Text up to `end`, with entities checked.
  bool characters(char end) {
    while (more() && text_[at_] != end) {
      const char c = text_[at_++];
      if (c == '<' || (static_cast<unsigned char>(c) < 0x20 && c != '\n')) return false;
      if (c != '&') continue;
      const std::size_t stop = text_.find(';', at_);
      if (stop == std::string_view::npos) return false;
      const std::string entity{text_.substr(at_, stop - at_)};
      if (!std::set<std::string>{"amp", "lt", "gt", "quot", "apos"}.contains(entity)) return false;
      at_ = stop + 1;
    }
    return true;
  }
  std::string open_tag() {
    const std::string tag = name();
    if (tag.empty()) return "a tag without a name";
    std::set<std::string> seen;
    for (space(); more() && text_[at_] != '>' && text_[at_] != '/'; space()) {
      const std::string attribute = name();
      if (attribute.empty() || !seen.insert(attribute).second) return "a bad or repeated attribute";
      if (!take('=') || !take('"') || !characters('"') || !take('"'))
        return "a bad attribute value";
    }
    if (take('/')) return take('>') ? "" : "a bad end of a tag";
    open_.push_back(tag);
    return take('>') ? "" : "an open tag";
  }
  std::string document() {
    bool has_root = false;
    space();
    while (more()) {
      if (!take('<')) return "text outside the root";
      if (take('/')) {
        const std::string tag = name();
        if (open_.empty() || open_.back() != tag || !take('>')) return "a wrong end tag " + tag;
        open_.pop_back();
      } else {
        if (open_.empty() && has_root) return "a second root";
        has_root = true;
        if (std::string what = open_tag(); !what.empty()) return what;
      }
      if (open_.empty()) {
        space();
      } else if (!characters('<')) {
        return "bad text";
      }
    }
    return has_root && open_.empty() ? "" : "elements left open";
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<std::string> open_;
};

}  // namespace vmm::tests
