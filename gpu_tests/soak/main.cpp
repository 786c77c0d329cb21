// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-soak: the stream-ordered pool on a CUDA device while kernels run in its memory.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>

#include "../../tools/program/usage.hpp"
#include "rig.hpp"

namespace {

constexpr const char* help = R"(usage: vmm-soak WORD [OPTIONS]

  rounds                free, reuse and defragment while kernels still run
  trace FILE...         recorded traces with real work on four streams

  --policy NAME         the pool's policy: pool (default) or vpmm
  --count N             rounds (10,000 otherwise); of each trace the first N events
  --seed N              of the rounds (1 otherwise)
  --planted             rounds: free blocks on a wrong stream; the checks must find it
  --markdown FILE       add the table to a file

Exit code: 0 all contents were right (planted: wrong contents were found), 1 not so, 2 it could not
be tried.
)";

bool read_number(std::string_view text, std::uint64_t& into) {
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), into);
  return failure == std::errc{} && rest == text.data() + text.size();
}

// The words after the first. False when one is not known or has no value.
bool read_words(int count, char** words, soak::settings& how) {
  for (int i = 0; i < count; ++i) {
    const std::string_view name = words[i];
    if (!name.starts_with("--")) {
      how.traces.emplace_back(name);
      continue;
    }
    if (name == "--planted") {
      how.planted = true;
      continue;
    }
    if (i + 1 >= count) return false;
    const std::string_view value = words[++i];
    if (name == "--policy") {
      how.policy = value;
    } else if (name == "--markdown") {
      how.markdown = value;
    } else if (!(name == "--count" && read_number(value, how.count)) &&
               !(name == "--seed" && read_number(value, how.seed))) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, help);
  soak::settings how;
  if (count >= 2 && read_words(count - 2, words + 2, how)) {
    const std::string_view word = words[1];
    if (word == "rounds" && how.traces.empty()) return soak::run_rounds(how);
    if (word == "trace") return soak::run_traces(how);
  }
  std::fputs(help, stderr);
  return 2;
}
