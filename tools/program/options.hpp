// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of a benchmark or a test of a GPU. The last include of a file, as must.hpp is.
#ifndef VMM_TOOLS_PROGRAM_OPTIONS_HPP
#define VMM_TOOLS_PROGRAM_OPTIONS_HPP

#include <climits>

#include "usage.hpp"

#include "must.hpp"

/// A count on a command line; ends the program if it is malformed.
inline unsigned count_of(const char* value) {
  const std::optional<std::uint64_t> count = vmm::tools::read_count(value, 1);
  if (!count || *count > UINT_MAX)
    stop("a count is a whole number from 1 on; not '" + std::string(value) + "'");
  return static_cast<unsigned>(*count);
}

/// Where a page goes, and the text at its head.
struct report_words {
  std::string markdown;
  std::string head;
};

/// The options of a program: each call names one, and the variable that gets its value.
class option_list {
 public:
  explicit option_list(const char* usage) : usage_(usage) {}

  option_list& flag(std::string_view name, bool& into) {
    return flag(name, [&into] { into = true; });
  }
  option_list& flag(std::string_view name, std::function<void()> take) {
    return add({name, false, [take = std::move(take)](const char*) { take(); }});
  }
  template <class Count>
  option_list& count(std::string_view name, Count& into) {
    return value(name, [&into](const char* text) { into = count_of(text); });
  }
  option_list& text(std::string_view name, std::string& into) {
    return value(name, [&into](const char* text) { into = text; });
  }
  option_list& value(std::string_view name, std::function<void(const char*)> take) {
    return add({name, true, std::move(take)});
  }
  option_list& page(report_words& into) {
    return text("--markdown", into.markdown).text("--head", into.head);
  }
  /// Words that are not options.
  option_list& files(std::vector<std::string>& into) {
    files_ = &into;
    return *this;
  }

  /// Takes the words of a command line, or prints the usage where one of them is --help; ends the
  /// program with 2 where one is wrong.
  void read(int count, char** words) const {
    vmm::tools::answer_help(count, words, usage_);
    for (int i = 1; i < count; ++i) {
      const std::string word = words[i];
      if (files_ != nullptr && !word.starts_with('-')) {
        files_->push_back(word);
        continue;
      }
      const auto found = std::ranges::find(all_, word, &option::name);
      if (found == all_.end()) refuse(vmm::tools::unknown_option(word, usage_));
      if (found->has_value && i + 1 == count) refuse(word + " has no value");
      found->take(found->has_value ? words[++i] : nullptr);
    }
  }

 private:
  struct option {
    std::string_view name;
    bool has_value;
    std::function<void(const char*)> take;
  };
  [[noreturn]] static void refuse(const std::string& problem) {
    stop(problem + " (--help lists the options)");
  }
  option_list& add(option made) {
    all_.push_back(std::move(made));
    return *this;
  }

  const char* usage_;
  std::vector<option> all_;
  std::vector<std::string>* files_ = nullptr;
};

#endif
