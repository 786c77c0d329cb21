// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: by every route, version and flag a program gets our function exactly where the driver gave
// the function of an entry of the table, and otherwise what it would have got without us. Method:
// one program prints the owner of every address, with the library and without; the lines are
// compared. Each known breakage of other interposers is a test of its own.
#include <elf.h>

#include <regex>

#include "../support/test.h"
#include "child.h"

namespace {

using child::outcome;

const std::set<std::string> table{
#define VMM_ENTRY(symbol, name, version, streams, handler, parameters, arguments) #symbol,
#include "../../adapters/preload/entries.inc"
#undef VMM_ENTRY
};

constexpr const char* driver_owner = "libcuda.so.1";
// Also by the link that stands for it in a path with a blank.
bool is_our_owner(const std::string& owner) {
  return owner == "libvmm_preload.so" ||
         (owner.starts_with("vmm_preload_") && owner.ends_with("_link.so"));
}

/// The library's name in place of that of its link, which serves where the path has a blank.
std::string without_links(std::string text) {
  constexpr std::string_view last = "_link.so";
  const std::size_t mark = text.find("vmm_preload_");
  if (mark == std::string::npos) return text;
  const std::size_t end = text.find(last, mark);
  if (end == std::string::npos) return text;
  text.replace(mark, end + last.size() - mark, "libvmm_preload.so");
  return without_links(std::move(text));
}

struct answer {
  std::string what;    // the question
  std::string symbol;  // the requested one
  int version = 0;
  std::string owner;
};

std::vector<answer> answers_in(const std::string& text) {
  std::vector<answer> all;
  for (const std::string& line : child::lines_of(text)) {
    const std::size_t last = line.rfind(' ');
    const std::size_t first = line.find(' ');
    const std::size_t second = line.find(' ', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      ADD_FAILURE() << line;
      continue;
    }
    all.push_back({line.substr(0, last), line.substr(first + 1, second - first - 1),
                   std::atoi(line.c_str() + second), line.substr(last + 1)});
  }
  return all;
}

// The number of results that are ours.
int compare(const outcome& native, const outcome& ours, int played = 12090) {
  EXPECT_EQ(native.code, 0) << native.out << native.err;
  EXPECT_EQ(ours.code, 0) << ours.out << ours.err;
  const std::vector<answer> before = answers_in(native.out);
  const std::vector<answer> now = answers_in(ours.out);
  EXPECT_EQ(before.size(), now.size());
  int replaced = 0;
  for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    EXPECT_EQ(before[i].what, now[i].what);
    const bool of_the_future =
        before[i].symbol == "cuMemGetInfo_v2" && std::min(before[i].version, played) >= 13010;
    const bool is_served = is_our_owner(now[i].owner);
    // At the boundary dlsym finds a name of the table in drivers, too, that lack it.
    const bool is_lacked =
        child::is_at_boundary() && before[i].owner == "none" && contains(before[i].what, "dlsym ");
    const bool is_ours = table.contains(before[i].symbol) &&
                         (before[i].owner == driver_owner || (is_lacked && is_served)) &&
                         !of_the_future;
    if (is_ours) EXPECT_TRUE(is_served) << now[i].what << ": " << now[i].owner;
    if (!is_ours) EXPECT_EQ(now[i].owner, before[i].owner) << now[i].what;
    if (is_served) ++replaced;
  }
  return replaced;
}

outcome run_routes(const std::string& driver, int version, bool is_preloaded) {
  return child::run({.arguments = {"routes"},
                     .variables = {"VMM_STANDIN_VERSION=" + std::to_string(version),
                                   "VMM_MODE=monitor", "VMM_REPORT=off"},
                     .is_preloaded = is_preloaded,
                     .driver = driver});
}

TEST(Routes, EveryNameVersionAndFlagOfACurrentDriver) {
  for (const int version : {12000, 12090, 13000, 13010}) {
    const int replaced = compare(run_routes(VMM_PRELOAD_DRIVER, version, false),
                                 run_routes(VMM_PRELOAD_DRIVER, version, true), version);
    EXPECT_GT(replaced, 1000) << version;
  }
}

TEST(Routes, EveryNameAndVersionOfADriverBefore12) {
  for (const int version : {11030, 11080}) {
    const int replaced = compare(run_routes(VMM_PRELOAD_OLD_DRIVER, version, false),
                                 run_routes(VMM_PRELOAD_OLD_DRIVER, version, true));
    EXPECT_GT(replaced, 200) << version;
  }
}

TEST(Routes, EntryPointsOfTheSharedRuntime) {
  const std::vector<std::string> words{"entry_points", VMM_PRELOAD_RUNTIME};
  const outcome ours = child::preloaded("monitor", words, {"VMM_REPORT=off"});
  EXPECT_GT(compare(child::plain(words), ours), 200);
}

TEST(Routes, OneVariableSwitchesEveryModeOff) {
  const outcome native = child::plain({"routes"});
  for (const char* mode : {"monitor", "cache", "vmm"}) {
    const outcome ours = child::preloaded(mode, {"routes"}, {"VMM_DISABLE=1"});
    EXPECT_EQ(ours.out, native.out) << mode;
    EXPECT_EQ(ours.err, "") << mode;
  }
}

TEST(Routes, ProgramsLinkedAgainstTheDriver) {
  child::command what{.program = VMM_PRELOAD_LINKED};
  EXPECT_EQ(child::run(what).out, "nvml 1024\ndefault libcuda.so.1\ncodes 0\n");
  what.is_preloaded = true;
  for (const char* mode : {"off", "monitor", "cache", "vmm"}) {
    what.variables = {std::string("VMM_MODE=") + mode, "VMM_REPORT=stderr"};
    const outcome ours = child::run(what);
    EXPECT_EQ(without_links(ours.out), "nvml 1024\ndefault libvmm_preload.so\ncodes 0\n")
        << mode << ours.err;
    EXPECT_EQ(ours.code, 0) << mode;
    EXPECT_EQ(ours.err.find("cuMemAllocAsync") != std::string::npos, std::string(mode) != "off");
  }
}

TEST(Routes, WithoutAModeEverythingIsTheDrivers) {
  const outcome native = child::plain({"routes"});
  const outcome ours = child::preloaded("", {"routes"});
  EXPECT_EQ(native.out, ours.out);
  EXPECT_EQ(ours.err, "");
}

TEST(Breakage, FormsThatWeDoNotKnowStayTheDrivers) {
  const outcome ours = run_routes(VMM_PRELOAD_DRIVER, 13010, true);
  int future = 0;
  for (const answer& each : answers_in(ours.out)) {
    if (each.symbol != "cuMemGetInfo_v2" || each.version < 13010) continue;
    EXPECT_EQ(each.owner, driver_owner) << each.what;
    ++future;
  }
  EXPECT_GT(future, 3);
}

TEST(Breakage, NamesOfOtherLibrariesAndTheCallersPlace) {
  const std::vector<std::string> words{"names", VMM_PRELOAD_PROBE};
  const outcome native = child::plain(words);
  EXPECT_TRUE(contains(native.out, "next from the first 2\n"));
  EXPECT_TRUE(contains(native.out, "default from its own scope 3\n"));
  EXPECT_TRUE(contains(native.out, "default from elsewhere -1\n"));
  EXPECT_TRUE(contains(native.out, "no driver, cuMemAlloc_v2: default none next none\n"));
  for (const char* mode : {"", "monitor", "vmm"}) {
    const outcome ours = child::preloaded(mode, words);
    EXPECT_EQ(native.out, ours.out) << mode;
    EXPECT_EQ(ours.err, "") << mode;
  }
}

TEST(Breakage, FortyThousandLookUpsByThreadsAnswerTheSame) {
  EXPECT_EQ(child::plain({"look_ups"}).out, "wrong 0\nowners libcuda.so.1 libcuda.so.1\n");
  const outcome ours = child::preloaded("monitor", {"look_ups"}, {"VMM_REPORT=off"});
  EXPECT_EQ(without_links(ours.out), "wrong 0\nowners libvmm_preload.so libvmm_preload.so\n");
}

TEST(Breakage, ASecondDriverStaysItself) {
  const std::vector<std::string> words{"two_drivers",
                                       std::string(VMM_PRELOAD_OLD_DRIVER) + "/libcuda.so.1"};
  EXPECT_TRUE(contains(child::plain(words).out, "cuMemFree_v2 of the second: its own\n"));
  for (const char* mode : {"off", "monitor", "cache", "vmm"}) child::expect_same(mode, words);
}

// In either order of LD_PRELOAD the program does the same, and is seen.
TEST(Breakage, OtherPreloadedLibrariesThatOverrideDlsym) {
  if (VMM_PRELOAD_SANITIZED) GTEST_SKIP() << "a sanitizer's runtime calls dlsym before its start";
  const child::outcome native = child::plain({"work"});
  const std::string mine = child::loadable(VMM_PRELOAD_LIBRARY);
  const std::string other = child::loadable(VMM_PRELOAD_OTHER);
  const std::string orders[] = {mine + ":" + other, other + ":" + mine};
  for (const std::string& order : orders) {
    for (const char* mode : {"off", "monitor", "cache", "vmm"}) {
      const child::outcome ours =
          child::run({.arguments = {"work"},
                      .variables = {"LD_PRELOAD=" + order, std::string("VMM_MODE=") + mode,
                                    "VMM_REPORT=stderr"}});
      EXPECT_EQ(ours.out, native.out) << order << " " << mode;
      EXPECT_EQ(ours.code, native.code) << order << " " << mode;
      // One whose dlsym has no version is called if it comes first, and skipped behind us.
      const bool is_first = order.starts_with(other);
      const bool is_asked = ours.err.find("other dlsym called") != std::string::npos;
      EXPECT_EQ(is_asked, is_first) << order << ours.err;
      const bool is_seen = ours.err.find("cuMemAlloc_v2") != std::string::npos;
      EXPECT_EQ(is_seen, std::string(mode) != "off") << order << " " << mode << ours.err;
    }
  }
}

// In either order, in a program with a driver and in one without.
TEST(Breakage, AnAllocatorThatIsPreloadedAsksDlsymInItsFirstCall) {
  if (VMM_PRELOAD_SANITIZED) GTEST_SKIP() << "the allocator is the sanitizer's";
  const std::string mine = child::loadable(VMM_PRELOAD_LIBRARY);
  const std::string other = child::loadable(VMM_PRELOAD_MALLOC);
  const std::string orders[] = {mine + ":" + other, other + ":" + mine};
  for (const std::string& order : orders) {
    for (const char* mode : {"", "monitor", "cache", "vmm"}) {
      for (const char* word : {"nothing", "work"}) {
        child::command what{.arguments = {word},
                            .variables = {"LD_PRELOAD=" + order, "VMM_REPORT=off"}};
        if (*mode != '\0') what.variables.push_back(std::string("VMM_MODE=") + mode);
        const child::outcome ours = child::run(what);
        const child::outcome native = child::plain({word});
        EXPECT_EQ(ours.out, native.out) << order << " " << mode << " " << word;
        EXPECT_EQ(ours.code, native.code) << order << " " << mode << " " << word;
        EXPECT_EQ(ours.err, "other malloc served\n") << order << " " << mode << " " << word;
      }
    }
  }
}

// rules.csv names a test for each rule and each known flaw: these tests are here.
TEST(Breakage, TheTestsThatTheRulesNameAreThere) {
  std::set<std::string> there;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j)
      there.insert(std::string(suite.name()) + "." + suite.GetTestInfo(j)->name());
  }
  const std::string rules = child::read_file(VMM_PRELOAD_RULES);
  const std::regex named(R"(\b(?:Life|Managed|Copies|Flaw|Cache|Monitor|Routes|Breakage)\.\w+)");
  int count = 0;
  for (auto at = std::sregex_iterator(rules.begin(), rules.end(), named);
       at != std::sregex_iterator(); ++at, ++count) {
    EXPECT_EQ(there.count(at->str()), 1u) << at->str() << " is not a test";
  }
  EXPECT_GT(count, 25);
  for (const std::string& each : there) {
    if (each.rfind("Flaw.", 0) != 0 && each.rfind("Breakage.", 0) != 0) continue;
    if (each == "Breakage.TheTestsThatTheRulesNameAreThere") continue;
    EXPECT_TRUE(contains(rules, each)) << "rules.csv does not name " << each;
  }
}

TEST(Breakage, NullOutParameters) {
  for (const char* mode : {"monitor", "vmm", "cache"})
    child::expect_same(mode, {"null_parameters"});
}

std::vector<std::string> needed_by(const std::string& file) {
  const std::string image = child::read_file(file);
  Elf64_Ehdr head;
  std::memcpy(&head, image.data(), sizeof head);
  std::vector<std::string> all;
  for (unsigned i = 0; i < head.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image.data() + head.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_DYNAMIC) continue;
    Elf64_Shdr names;
    std::memcpy(&names, image.data() + head.e_shoff + section.sh_link * sizeof names, sizeof names);
    for (std::size_t at = 0; at < section.sh_size; at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry;
      std::memcpy(&entry, image.data() + section.sh_offset + at, sizeof entry);
      if (entry.d_tag != DT_NEEDED) continue;
      all.emplace_back(image.data() + names.sh_offset + entry.d_un.d_val);
    }
  }
  return all;
}

TEST(Breakage, TheLibraryNeedsNothingButTheCLibrary) {
  const std::vector<std::string> needed = needed_by(VMM_PRELOAD_LIBRARY);
  EXPECT_FALSE(needed.empty());
  for (const std::string& each : needed) {
    const bool is_libc = each.starts_with("libc.so") || each.starts_with("libm.so") ||
                         each.starts_with("ld-linux") || each.starts_with("libdl.so") ||
                         each.starts_with("libpthread.so");
    EXPECT_TRUE(is_libc) << each;
  }
}

}  // namespace
