// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: by way of vmm.h a pool, a manager and an allocator's device are recorded from start to
// stop, with tags and lines, and write a file at a shortage by themselves; wrong use is refused.
// Method: short programs on the simulated device; of the files the head, the size and texts are
// looked at, since their contents are tests/history's.
#include "bench.hpp"
#include "vmm.h"

namespace {

namespace fs = std::filesystem;
using c_test::Bench, c_test::says;

struct History : Bench {
  void SetUp() override {
    Bench::SetUp();
    folder = fs::temp_directory_path() / ("vmm_c_history_" + std::to_string(::getpid()));
    fs::create_directories(folder);
  }
  void TearDown() override {
    Bench::TearDown();
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  [[nodiscard]] std::string path(const char* name) const { return (folder / name).string(); }
  [[nodiscard]] static std::string read(const std::string& from) {
    std::ifstream file(from, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // 48 bytes an event, behind the head, the section's head and the count of lost ones.
  [[nodiscard]] static std::uint64_t event_count(const std::string& bytes) {
    EXPECT_EQ(bytes.substr(0, 8), "vmmhist\n");
    std::uint64_t size_bytes = 0;
    for (unsigned i = 0; i < 8; ++i)
      size_bytes |= std::uint64_t{static_cast<unsigned char>(bytes.at(24 + i))} << (8 * i);
    return (size_bytes - 8) / 48;
  }

  fs::path folder;
};

TEST_F(History, APoolIsRecordedFromStartToStop) {
  void* at = take(MiB);
  EXPECT_FAILS(vmm_history_dump(pool, 0, path("none").c_str()), VMM_ERROR_INVALID_ARGUMENT);
  ASSERT_GOOD(vmm_history_start(pool, 0, nullptr));
  EXPECT_FAILS(vmm_history_start(pool, 0, nullptr), VMM_ERROR_IN_USE);
  ASSERT_GOOD(vmm_pool_free(pool, at, nullptr));
  ASSERT_GOOD(vmm_history_dump(pool, 0, path("one").c_str()));
  EXPECT_EQ(event_count(read(path("one"))), 1u);
  at = take(MiB);
  ASSERT_GOOD(vmm_history_stop(pool, 0, path("two").c_str()));
  EXPECT_EQ(event_count(read(path("two"))), 2u);
  EXPECT_FAILS(vmm_history_stop(pool, 0, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  ASSERT_GOOD(vmm_pool_free(pool, at, nullptr));
}

TEST_F(History, ItEndsWithThePoolAndWithAFileThatCannotBeWritten) {
  ASSERT_GOOD(vmm_history_start(manager, 0, nullptr));
  ASSERT_GOOD(vmm_history_start(pool, 0, nullptr));
  const std::string nowhere = path("no/folder");
  EXPECT_FAILS(vmm_history_dump(pool, 0, nowhere.c_str()), VMM_ERROR_UNAVAILABLE);
  EXPECT_EQ(vmm_last_error_text(), "unavailable (ENOENT, 2): the history '" + nowhere +
                                       "' cannot be opened: the path, or a folder of it, does not "
                                       "exist: create it, or name another");
  EXPECT_FAILS(vmm_history_stop(pool, 0, path("no/folder").c_str()), VMM_ERROR_UNAVAILABLE);
  ASSERT_GOOD(vmm_history_start(pool, 0, nullptr));  // the end was one all the same
  // Both are recorded when the fixture destroys them.
}

TEST_F(History, TagsAndLinesAreTheThreads) {
  std::uint32_t tag = 0;
  std::uint32_t line = 0;
  ASSERT_GOOD(vmm_history_tag("weights of it", &tag));
  ASSERT_GOOD(vmm_history_line("train.c", 12, "step", &line));
  std::uint32_t again = 0;
  ASSERT_GOOD(vmm_history_tag("weights of it", &again));
  EXPECT_EQ(again, tag);
  std::uint32_t tag_before = 9;
  std::uint32_t line_before = 9;
  ASSERT_GOOD(vmm_history_label(tag, line, &tag_before, &line_before));
  EXPECT_EQ(tag_before, 0u);
  EXPECT_EQ(line_before, 0u);
  ASSERT_GOOD(vmm_history_start(manager, 0, nullptr));
  void* const at = build(MiB);
  ASSERT_GOOD(vmm_history_label(0, 0, &tag_before, nullptr));
  EXPECT_EQ(tag_before, tag);
  ASSERT_GOOD(vmm_history_stop(manager, 0, path("tagged").c_str()));
  const std::string bytes = read(path("tagged"));
  EXPECT_TRUE(contains(bytes, "weights of it"));
  EXPECT_TRUE(contains(bytes, "train.c"));
  EXPECT_TRUE(contains(bytes, "manager"));
  ASSERT_GOOD(vmm_manager_free(manager, at));
}

// A history with a name that is not there could not be read.
TEST_F(History, ALabelThatWasNeverGivenIsRefused) {
  std::uint32_t tag = 0;
  std::uint32_t line = 0;
  ASSERT_GOOD(vmm_history_tag("the newest of all", &tag));
  ASSERT_GOOD(vmm_history_line("newest.c", 1, "main", &line));
  EXPECT_FAILS(vmm_history_label(tag + 1, 0, nullptr, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_history_label(0, line + 1, nullptr, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  ASSERT_GOOD(vmm_history_label(tag, line, nullptr, nullptr));
  ASSERT_GOOD(vmm_history_label(0, 0, nullptr, nullptr));
}

TEST_F(History, AShortageWritesByItself) {
  auto options = c_test::pool_defaults();
  options.budget_bytes = 64 * MiB;
  const c_test::own_pool small(driver, options);
  vmm_history_options how;
  ASSERT_GOOD(vmm_history_options_init(&how, sizeof(how)));
  const std::string to = path("short");
  how.shortage_path = to.c_str();
  how.shortage_count_max = 2;
  ASSERT_GOOD(vmm_history_start(small, 0, &how));
  for (int i = 0; i < 3; ++i) {
    void* at = nullptr;
    EXPECT_FAILS(vmm_pool_allocate(small, 65 * MiB, nullptr, &at), VMM_ERROR_OVER_BUDGET);
  }
  EXPECT_TRUE(fs::exists(to + ".0") && fs::exists(to + ".1"));
  EXPECT_FALSE(fs::exists(to + ".2"));
}

TEST_F(History, AnAllocatorIsRecordedDeviceByDevice) {
  const c_test::own_allocator allocator("fake");
  ASSERT_GOOD(vmm_history_start(allocator, 3, nullptr));
  EXPECT_FAILS(vmm_history_stop(allocator, 2, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_history_start(allocator, 64, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  void* at = nullptr;
  ASSERT_GOOD(vmm_allocator_allocate(allocator, MiB, 3, nullptr, &at));
  ASSERT_GOOD(vmm_allocator_free(allocator, at));
  ASSERT_GOOD(vmm_history_stop(allocator, 3, path("third").c_str()));
  EXPECT_GE(event_count(read(path("third"))), 2u);
}

TEST_F(History, WrongUseIsRefused) {
  EXPECT_FAILS(vmm_history_start(nullptr, 0, nullptr), VMM_ERROR_INVALID_HANDLE);
  EXPECT_FAILS(vmm_history_start(driver, 0, nullptr), VMM_ERROR_INVALID_HANDLE);
  EXPECT_FAILS(vmm_history_start(pool, 3, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_history_start(manager, 3, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(says("pass 0"));
  EXPECT_FAILS(vmm_history_dump(pool, 0, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  vmm_history_options how;
  EXPECT_FAILS(vmm_history_options_init(&how, 8), VMM_ERROR_INVALID_ARGUMENT);
  ASSERT_GOOD(vmm_history_options_init(&how, sizeof(how)));
  how.event_count = 1000;
  EXPECT_FAILS(vmm_history_start(pool, 0, &how), VMM_ERROR_BAD_OPTION);
  how.struct_size = 0;
  EXPECT_FAILS(vmm_history_start(pool, 0, &how), VMM_ERROR_INVALID_ARGUMENT);
  std::uint32_t number = 0;
  EXPECT_FAILS(vmm_history_tag(nullptr, &number), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_history_line("a", 1, nullptr, &number), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_history_label(1U << 16, 0, nullptr, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_history_label(0, (1U << 20) + 1, nullptr, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_top_publish(2), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_top_publish(0));
}

}  // namespace
