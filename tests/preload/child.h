// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a program as a user does, with the preload library or without, and keeps what it says.
#pragma once

#include <string>
#include <vector>

namespace child {

struct outcome {
  int code = -1;  // 1000 and the signal's number where one ended it
  std::string out;
  std::string err;
};

struct command {
  std::string program = VMM_PRELOAD_CALLER;
  std::vector<std::string> arguments{};
  std::vector<std::string> variables{};  // "NAME=value"
  bool is_preloaded = false;
  std::string preloaded = VMM_PRELOAD_LIBRARY;  ///< as loadable() takes it
  std::string driver = VMM_PRELOAD_DRIVER;
};

[[nodiscard]] outcome run(const command& what);

/// Whether the library is not preloaded: the loader finds the empty library of VMM=1 first.
[[nodiscard]] bool is_at_boundary();

/// A name for LD_PRELOAD, which is cut at blanks and colons: the path itself, or a link to it.
[[nodiscard]] std::string loadable(const std::string& library);

/// Of the caller program: `words` without the library, or with it in a mode.
[[nodiscard]] outcome plain(const std::vector<std::string>& words);
[[nodiscard]] outcome preloaded(const std::string& mode, const std::vector<std::string>& words,
                                const std::vector<std::string>& variables = {});

/// With the report as JSON on stderr.
[[nodiscard]] outcome reported(const std::string& mode, const std::vector<std::string>& words,
                               std::vector<std::string> variables = {});

/// Without the report, the program must do and say the same under the mode as without the library;
/// `more` are words that make it look closer. Without it, the program ends with `code`.
void expect_same(const std::string& mode, const std::vector<std::string>& words,
                 const std::vector<std::string>& more = {}, int code = 0);

/// The program says just this under the mode, and ends well.
void expect_output(const std::string& mode, const std::vector<std::string>& words,
                   const std::string& wanted,
                   const std::vector<std::string>& variables = {"VMM_REPORT=off"});

[[nodiscard]] std::string temporary_file(const std::string& name);
[[nodiscard]] std::string read_file(const std::string& name);
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

}  // namespace child
