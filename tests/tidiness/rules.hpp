// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The rules of this tree that a program can hold it to. What they are and why stands in
// CONTRIBUTING.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tidy {

/// One place where a rule is broken.
struct finding {
  std::string path;
  int line = 0;
  std::string rule;  ///< a word: spdx, width, reminder, address, header, order, layer, length,
                     ///< braces, export, word, integers, comment
  std::string what;  ///< what is wrong and what to do
};

/// A file of the tree: its path from the top, with /, and its text.
struct file {
  std::string path;
  std::string text;
};

inline constexpr int column_limit = 100;
inline constexpr int function_line_limit = 70;

/// Every rule that can be checked in one file.
[[nodiscard]] std::vector<finding> check_file(const file& subject);

/// Files of using-declarations.
struct name_lists {
  file umbrella;  ///< every name that `import vmm;` brings
  file parts;     ///< every other exported name
};

/// Names that the library's interface units among `files` export and that are in neither list.
[[nodiscard]] std::vector<finding> check_names(const std::vector<file>& files,
                                               const name_lists& lists);

/// The layers of the installed modules as the table of docs/architecture.md, top to bottom; a
/// module's contents are the first sentence of its head.
[[nodiscard]] std::string layer_table(const std::vector<file>& files);

}  // namespace tidy
