// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a change that is not meant to change behaviour does not. Method: what the library did when
// the golden files were taken is compared with what it does now. replays.txt has the figures that
// vmm-replay prints for every shipped trace under the policy pool and for ten of them under every
// policy; pool.txt and manager.txt have, for seeded programs with faults, some counts and two
// hashes: over the text of every driver call with its result, and over the statistics at the end.
//
// `./run golden --update` takes the files anew. That is right when a change is meant to make other
// driver calls or to hold other amounts of memory; the commit then says which figures changed and
// why. It is also right when a program of the seeds changed (tests/stream/program.hpp,
// tests/manager/program.hpp) and the library did not. It is wrong in a change that only moves code.
//
// `./run golden --show pool SEED` (or manager) prints what the hashes are over: taken before and
// after a change, diff shows the first call that differs.
#include "../support/test.h"
#include "runs.hpp"
#include "table.hpp"

namespace {

using golden::seeded_run, golden::table;

constexpr std::uint64_t seed_count = 300;
constexpr std::size_t shown_max = 12;

std::string path_of(std::string_view name) {
  return std::string(VMM_GOLDEN_FOLDER "/") + std::string(name) + ".txt";
}

using seeded = seeded_run (*)(std::uint64_t);

seeded program_of(std::string_view name) {
  return name == "pool" ? &golden::run_pool : &golden::run_manager;
}

table run_seeds(std::string_view name) {
  table out;
  for (std::uint64_t seed = 1; seed <= seed_count; ++seed) {
    seeded_run done = program_of(name)(seed);
    EXPECT_EQ(done.problem, "") << name << " program " << seed;
    out.push_back(std::move(done.line));
  }
  return out;
}

void compare(const std::string& file, const table& was, const table& is) {
  ASSERT_FALSE(was.empty()) << file << " has no case";
  const std::vector<std::string> found = golden::differences(was, is);
  std::string text;
  for (std::size_t i = 0; i < found.size() && i < shown_max; ++i) text += "  " + found[i] + "\n";
  EXPECT_TRUE(found.empty()) << found.size() << " figures are not those of " << file << ":\n"
                             << text << "The head of tests/golden/golden_test.cpp says what to do.";
}

void compare_with_file(std::string_view name, const table& is) {
  const auto text = golden::read_file(path_of(name));
  ASSERT_TRUE(text.has_value()) << path_of(name) << " cannot be read";
  compare(path_of(name), golden::parse(*text), is);
}

TEST(Golden, PoolSchedules) { compare_with_file("pool", run_seeds("pool")); }
TEST(Golden, ManagerPrograms) { compare_with_file("manager", run_seeds("manager")); }

class Replays : public testing::TestWithParam<std::string_view> {};

TEST_P(Replays, OfEveryTrace) {
  if (!golden::why_no_replays().empty()) GTEST_SKIP() << golden::why_no_replays();
  const auto text = golden::read_file(path_of("replays"));
  ASSERT_TRUE(text.has_value()) << path_of("replays") << " cannot be read";
  table was = golden::parse(*text);
  const std::string start = std::string(GetParam()) + " ";
  std::erase_if(was, [&](const golden::row& each) { return !each.name.starts_with(start); });
  compare(path_of("replays"), was, golden::run_replays(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Golden, Replays, testing::ValuesIn(golden::policies),
                         [](const auto& of) { return std::string(of.param); });

// ---- the comparison itself

TEST(Table, ReadsWhatItWrites) {
  const std::string line = "va_pool beam_kv events=12 ratio=1.500000\n";
  const table read = golden::parse("# a comment\n\n" + line);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].name, "va_pool beam_kv");
  ASSERT_NE(read[0].find("ratio"), nullptr);
  EXPECT_EQ(*read[0].find("ratio"), "1.500000");
  EXPECT_EQ(read[0].line(), line);
}

TEST(Table, NamesTheFigureThatDiffers) {
  const table was = golden::parse("a x=1 y=2\nb x=3\n");
  EXPECT_TRUE(golden::differences(was, was).empty());
  EXPECT_EQ(golden::differences(was, golden::parse("a x=1 y=4\nb x=3\n")),
            std::vector<std::string>{"a: y was 2, is 4"});
  EXPECT_EQ(golden::differences(was, golden::parse("a x=1\nb x=3\n")),
            std::vector<std::string>{"a: y was 2, is missing"});
  EXPECT_EQ(golden::differences(was, golden::parse("a x=1 y=2\nc x=3\n")),
            (std::vector<std::string>{"b: is not run", "c: has no golden line"}));
}

TEST(Table, NamesNewFiguresAndNewDriverCalls) {
  const table was = golden::parse("a x=1 driver_calls.map=2\n");
  EXPECT_EQ(golden::differences(was, golden::parse("a x=1 driver_calls.map=2 z=9\n")),
            std::vector<std::string>{"a: z is new, is 9"});
  EXPECT_TRUE(
      golden::differences(was, golden::parse("a x=1 driver_calls.map=2 driver_calls.unmap=0\n"))
          .empty());
  EXPECT_EQ(golden::differences(was, golden::parse("a x=1 driver_calls.unmap=5\n")),
            (std::vector<std::string>{"a: driver_calls.map was 2, is 0",
                                      "a: driver_calls.unmap was 0, is 5"}));
}

// ---- taking them anew

bool write(std::string_view name, const char* about, const table& rows) {
  std::ofstream file{path_of(name), std::ios::binary};
  file << "# " << about << "\n# Taken by ./run golden --update; see golden_test.cpp.\n";
  for (const golden::row& each : rows) file << each.line();
  file.close();
  if (!file) std::fprintf(stderr, "golden_test: %s cannot be written\n", path_of(name).c_str());
  return static_cast<bool>(file);
}

int update() {
  bool is_done = write("pool", "Seeded programs of the stream-ordered pool.", run_seeds("pool"));
  is_done = write("manager", "Seeded programs of the manager.", run_seeds("manager")) && is_done;
  if (const std::string why = golden::why_no_replays(); !why.empty()) {
    std::fprintf(stderr, "golden_test: replays.txt stays as it is; %s\n", why.c_str());
    return 1;
  }
  table replays;
  for (const std::string_view policy : golden::policies) {
    for (golden::row& each : golden::run_replays(policy)) {
      is_done = is_done && !each.figures.empty();
      replays.push_back(std::move(each));
    }
  }
  is_done = write("replays", "vmm-replay --json on the fake driver.", replays) && is_done;
  return is_done && !testing::Test::HasFailure() ? 0 : 1;
}

int show(std::string_view name, const char* seed) {
  const seeded_run done = program_of(name)(std::strtoull(seed, nullptr, 10));
  std::printf("%s%s%s%s\n", done.line.line().c_str(), done.calls.c_str(), done.statistics.c_str(),
              done.problem.c_str());
  return done.problem.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view word = count > 1 ? words[1] : "";
  const std::string_view name = count > 2 ? words[2] : "";
  testing::InitGoogleTest(&count, words);
  if (word == "--update" && count == 2) return update();
  if (word == "--show" && count == 4 && (name == "pool" || name == "manager"))
    return show(name, words[3]);
  if (count > 1) {
    std::fprintf(stderr, "usage: golden_test [--update | --show pool|manager SEED]\n");
    return 2;
  }
  return RUN_ALL_TESTS();
}
