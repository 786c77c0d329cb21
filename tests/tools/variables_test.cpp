// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the list of vmm's environment variables is that of docs/options.md and has every one
// that the sources name; a misspelt one is reported with the intended name.
// Method: the document's tables and the sources are read; names with letters changed, left out and
// added.
#include "../../tools/program/variables.hpp"
#include "../support/test.h"

namespace {

using vmm::tools::known_variables, vmm::tools::nearest_variable;

const std::filesystem::path source = VMM_SOURCE_FOLDER;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// All names of variables in `text` that stand between two of `quote`.
std::set<std::string> names_in(const std::string& text, char quote) {
  std::set<std::string> out;
  const std::string begin = quote + std::string(vmm::tools::variable_prefix);
  for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const std::size_t end = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", at + 1);
    if (end != std::string::npos && text[end] == quote)
      out.insert(text.substr(at + 1, end - at - 1));
  }
  return out;
}

const std::set<std::string> known(known_variables.begin(), known_variables.end());

TEST(Variables, AreThoseOfTheDocument) {
  std::set<std::string> documented;
  std::ifstream page(source / "docs/options.md");
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    documented.merge(names_in(line.substr(0, line.find('|', 2)), '`'));
  }
  EXPECT_EQ(documented, known);
}

TEST(Variables, AreAllThatTheSourcesName) {
  std::set<std::string> named;
  for (const char* folder :
       {"modules", "backends", "tools", "gpu_tests", "benchmarks", "examples"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".cppm" && extension != ".hpp") continue;
      named.merge(names_in(text_of(entry.path()), '"'));
    }
  }
  named.erase(std::string(vmm::tools::variable_prefix));
  EXPECT_GE(named.size(), 12u) << "the pattern finds them no more";
  for (const std::string& name : named) EXPECT_TRUE(known.contains(name)) << name;
}

TEST(Variables, AMisspeltOneHasANearest) {
  EXPECT_EQ(nearest_variable("VMM_POLICI"), "VMM_POLICY");
  EXPECT_EQ(nearest_variable("VMM_BUGDET"), "VMM_BUDGET");
  EXPECT_EQ(nearest_variable("VMM_POOL_PAGESIZE"), "VMM_POOL_PAGE_SIZE");
  EXPECT_EQ(nearest_variable("VMM_FRAGRATIO"), "VMM_FRAG_RATIO");
  EXPECT_EQ(nearest_variable("VMM_CHUNKS"), "VMM_CHUNK_SIZE");
  EXPECT_EQ(nearest_variable("VMM_SOMETHING_ELSE"), "");
  EXPECT_EQ(nearest_variable("VMM_" + std::string(5000, 'X')), "");
}

TEST(Variables, OnlyUnknownNamesOfOursAreTold) {
  const char* const environment[] = {
      "PATH=/bin",    "VMM_POLICY=va_pool", "VMM_LOGG=stderr",    "VMMX_POLICY=1",
      "VPMM_PAGES=1", "vmm_policy=1",       "VMM_NOVALUE_AT_ALL", nullptr};
  EXPECT_EQ(vmm::tools::unknown_variables("p", environment),
            "p: vmm has no variable VMM_LOGG; the nearest is VMM_LOG\n"
            "p: vmm has no variable VMM_NOVALUE_AT_ALL; docs/options.md lists them\n");
  EXPECT_EQ(vmm::tools::unknown_variables("p", nullptr), "");
}

}  // namespace
