// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: docs/misuse.md and the tests beside this one say the same: each row names tests that exist,
// and each test has its row. Method: the last column of the table against the list that GoogleTest
// keeps of this program.
#include "../support/test.h"

namespace {

// "Suite.Test" of what stands between backticks in the last cell of each row.
std::set<std::string> named_in_table(const std::string& text) {
  std::set<std::string> names;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.size() < 4 || line[0] != '|' || line.back() != '|') continue;
    line.pop_back();
    const std::string cell = line.substr(line.rfind('|') + 1);
    for (std::size_t open = cell.find('`'); open != std::string::npos;) {
      const std::size_t close = cell.find('`', open + 1);
      if (close == std::string::npos) break;
      names.insert(cell.substr(open + 1, close - open - 1));
      open = cell.find('`', close + 1);
    }
  }
  return names;
}

// Those of suites with "Misuse" in their name; a typed suite counts once.
std::set<std::string> tests_here() {
  std::set<std::string> names;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    std::string name = suite.name();
    name = name.substr(0, name.find('/'));
    if (name.find("Misuse") == std::string::npos) continue;
    for (int j = 0; j < suite.total_test_count(); ++j)
      names.insert(name + "." + suite.GetTestInfo(j)->name());
  }
  return names;
}

std::vector<std::string> missing(const std::set<std::string>& from,
                                 const std::set<std::string>& in) {
  std::vector<std::string> out;
  std::ranges::set_difference(from, in, std::back_inserter(out));
  return out;
}

TEST(Table, ReadsTheLastColumn) {
  EXPECT_EQ(named_in_table("| use | `x` | `A.B` |\ntext `C.D`\n| e | f | `G.H`, `I.J` |\n"),
            (std::set<std::string>{"A.B", "G.H", "I.J"}));
  EXPECT_EQ(missing({"a", "b"}, {"b"}), std::vector<std::string>{"a"});
}

TEST(Table, AgreesWithTheTests) {
  std::ifstream file(VMM_MISUSE_TABLE);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::set<std::string> named = named_in_table(text);
  const std::set<std::string> here = tests_here();
  ASSERT_GT(here.size(), 20u);
  for (const std::string& each : missing(named, here))
    ADD_FAILURE() << "a row names " << each << ", which is not a test";
  for (const std::string& each : missing(here, named))
    ADD_FAILURE() << each << " has no row in docs/misuse.md";
}

}  // namespace
