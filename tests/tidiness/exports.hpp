// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a unit declares to the outside: its module, its imports and the names that it exports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokens.hpp"

namespace tidy {

struct import_line {
  std::string module;  ///< as written: "vmm.backend", ":types"; "<...>" for a header
  int line = 0;
  bool exported = false;  ///< `export import`
};

struct exported_name {
  std::string name;  ///< qualified: "vmm::address"
  int line = 0;
};

struct unit {
  std::string module;      ///< empty if the file is not a module unit
  bool interface = false;  ///< the module line says export
  std::vector<import_line> imports;
  std::vector<exported_name> names;
  std::vector<int> export_blocks;  ///< lines of `export {` and `export namespace`
};

/// Reads `text` once. Names of operators, specializations and literal operators are left out: they
/// cannot be said in a using-declaration, or come with the name that they belong to.
[[nodiscard]] unit read_unit(const source& text);

/// The names in the using-declarations of `text`, qualified as written.
[[nodiscard]] std::vector<std::string> using_declarations(const source& text);

}  // namespace tidy
