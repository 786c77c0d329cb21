// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of a program.
#pragma once

#include <climits>
#include <type_traits>

#include "usage.hpp"

/// Where a page goes, and the text at its head.
struct report_words {
  std::string markdown;
  std::string head;
};

/// The options of a program: each call names one, and what takes its value, which is the next word
/// or is attached by '='.
class option_list {
 public:
  explicit option_list(const char* usage) : usage_(usage) {}

  option_list& flag(std::string_view name, bool& into) {
    return flag(name, [&into] { into = true; });
  }
  option_list& flag(std::string_view name, std::function<void()> take) {
    return add({name, "", [take = std::move(take)](const char*) { return take(), ""; }});
  }
  /// `take` returns nothing; or a text, empty where the value is right.
  template <class Take>
  option_list& value(std::string_view name, Take take, const char* what = "a value") {
    return add({name, what, [take = std::move(take)](const char* text) -> std::string {
                  if constexpr (std::is_void_v<std::invoke_result_t<Take, const char*>>) {
                    take(text);
                    return "";
                  } else {
                    return take(text);
                  }
                }});
  }
  /// `take` returns whether the value is what is expected.
  template <class Take>
  option_list& checked(std::string_view name, const std::string& expected, Take take) {
    return value(name, [=](const char* text) {
      return take(text) ? std::string() : refusal(name, expected, text);
    });
  }
  /// A whole number, whose limits `expected` says.
  template <class Number>
  option_list& number(std::string_view name, Number& into, const std::string& expected,
                      std::uint64_t least = 0, std::uint64_t most = UINT64_MAX) {
    return checked(name, expected, [&into, least, most](const char* text) {
      return take_number(text, into, least, most);
    });
  }
  template <class Count>
  option_list& count(std::string_view name, Count& into) {
    return value(name, [&into](const char* text) {
      return take_number(text, into, 1, UINT_MAX)
                 ? std::string()
                 : "a count is a whole number from 1 on; not '" + std::string(text) + "'";
    });
  }
  option_list& text(std::string_view name, std::string& into, const char* what = "a value") {
    const auto take = [=, &into](const char* text) {
      into = text;
      return into.empty() ? std::string(name) + " takes " + what : std::string();
    };
    return value(name, take, what);
  }
  option_list& page(report_words& into) {
    return text("--markdown", into.markdown).text("--head", into.head);
  }
  /// What is not an option: words, or names of files, of which - is standard input.
  option_list& words(std::vector<std::string>& into) {
    rest_ = &into;
    return *this;
  }
  option_list& files(std::vector<std::string>& into) {
    are_files_ = true;
    return words(into);
  }

  /// Takes the words of a command line. Empty, or what is wrong with it.
  [[nodiscard]] std::string parse(int count, char** words) const {
    for (int i = 1; i < count; ++i) {
      const std::string_view word = words[i];
      if (rest_ != nullptr && (!word.starts_with('-') || (are_files_ && word == "-"))) {
        if (are_files_ && word.empty()) return vmm::tools::empty_name_text;
        rest_->push_back(are_files_ ? vmm::tools::input_path(word) : std::string(word));
        continue;
      }
      const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string_view::npos;
      const std::string name(word.substr(0, equals));
      const auto found = std::ranges::find(all_, name, &option::name);
      if (found == all_.end()) return vmm::tools::unknown_option(word, usage_);
      const char* value = equals == std::string_view::npos ? nullptr : words[i] + equals + 1;
      const bool has_value = *found->what != '\0';
      if (!has_value && value != nullptr) return name + " takes no value";
      if (has_value && value == nullptr) {
        if (i + 1 == count) return name + " takes " + found->what;
        value = words[++i];
      }
      if (std::string why = found->take(value); !why.empty()) return why;
    }
    return "";
  }
  /// The same, or prints the usage where a word is --help; ends the program with 2 where one is
  /// wrong.
  void read(int count, char** words) const {
    vmm::tools::answer_help(count, words, usage_);
    const std::string why = parse(count, words);
    if (why.empty()) return;
    vmm::tools::refuse_line(program_invocation_short_name, why);
    std::exit(2);
  }

  [[nodiscard]] static std::string refusal(std::string_view name, const std::string& expected,
                                           std::string_view value) {
    return std::string(name) + " takes " + expected + "; not '" + std::string(value) + "'";
  }

 private:
  struct option {
    std::string_view name;
    const char* what;  // it takes; empty: nothing
    std::function<std::string(const char*)> take;
  };
  template <class Number>
  static bool take_number(const char* text, Number& into, std::uint64_t least, std::uint64_t most) {
    const std::optional<std::uint64_t> found = vmm::tools::read_count(text, least);
    if (!found || *found > most) return false;
    if constexpr (std::is_integral_v<Number>) {
      into = static_cast<Number>(*found);
    } else {
      into = static_cast<typename Number::value_type>(*found);
    }
    return true;
  }
  option_list& add(option made) {
    all_.push_back(std::move(made));
    return *this;
  }

  const char* usage_;
  std::vector<option> all_;
  std::vector<std::string>* rest_ = nullptr;
  bool are_files_ = false;
};
