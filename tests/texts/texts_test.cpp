// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a text that is put together for an error is whole, stays, and costs bounded memory.
// Method: texts of each length around the bound; equal texts, from several threads; more texts than
// are kept.
#include "../support/test.h"

import vmm.base;

namespace {

using vmm::detail_text;

constexpr const char* otherwise = "what stands there without room";

TEST(Texts, AreMadeOfWordsAndNumbers) {
  detail_text made;
  made.add("GPU ").add_number(0).add(" of ").add_number(120).add("");
  EXPECT_EQ(made.text(), "GPU 0 of 120");
  const std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(detail_text().add_number(largest).text(), std::to_string(largest));
  EXPECT_STREQ(detail_text().keep(otherwise), "");
}

TEST(Texts, AreCutWhereTheyAreTooLong) {
  const std::string most(vmm::detail_bytes_max - 4, 'x');
  detail_text made;
  made.add(most);
  EXPECT_EQ(made.text(), most);
  made.add("y").add("z");
  EXPECT_EQ(made.text(), most + "...") << "cut once";
  EXPECT_EQ(std::string(made.keep(otherwise)), most + "...");
  EXPECT_EQ(detail_text().add(most + "y").text(), most + "...");
}

TEST(Texts, EqualOnesAreKeptOnce) {
  const char* const first = detail_text().add("a library").keep(otherwise);
  const char* const other = detail_text().add("another library").keep(otherwise);
  EXPECT_NE(first, other);
  EXPECT_EQ(detail_text().add("a lib").add("rary").keep(otherwise), first);
  EXPECT_STREQ(first, "a library");
}

TEST(Texts, NoMoreThanSoManyAreKept) {
  std::vector<const char*> kept;
  for (std::size_t i = 0; i < 2 * vmm::kept_count_max; ++i)
    kept.push_back(detail_text().add("text ").add_number(i).keep(otherwise));
  std::size_t refused_count = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == otherwise) {
      ++refused_count;
    } else {
      EXPECT_EQ(kept[i], "text " + std::to_string(i));
    }
  }
  EXPECT_GE(refused_count, vmm::kept_count_max);
  EXPECT_LT(refused_count, kept.size());
  EXPECT_EQ(detail_text().add("text 0").keep(otherwise), kept[0]) << "what is kept is found still";
}

TEST(Texts, ThreadsKeepTheSame) {
  constexpr std::size_t text_count = 20;
  std::array<std::array<const char*, text_count>, 4> kept{};
  {
    std::vector<std::jthread> threads;
    for (auto& mine : kept) {
      threads.emplace_back([&mine] {
        for (std::size_t i = 0; i < text_count; ++i)
          mine[i] = detail_text().add("shared ").add_number(i).keep(otherwise);
      });
    }
  }
  for (const auto& mine : kept) EXPECT_EQ(mine, kept[0]);
}

}  // namespace
