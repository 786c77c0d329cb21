// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a ring returns the events written, the newest ones if it has lost some, and a file returns
// its contents; no bytes harm the reader. Method: write known events, read them; cut and change the
// bytes of a file everywhere, by a seeded generator; write files to full disks, under a reader's
// eyes, and in odd places.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>

#include "../support/child.hpp"

import vmm.backend;
import vmm.observe;

namespace {

using vmm::history_kind;

constexpr vmm::stream_handle seventh{7};

std::unique_ptr<vmm::history_ring> ring_of(std::uint64_t event_count,
                                           std::uint32_t clock_interval = 16) {
  vmm::history_options options;
  options.event_count = event_count;
  options.clock_interval = clock_interval;
  auto made = vmm::history_ring::make(options);
  EXPECT_TRUE(made);
  return std::move(*made);
}

vmm::history take(const vmm::history_ring& ring) {
  auto taken = vmm::take_from(
      ring, [](auto&& work) { work(); }, [](vmm::history&) { return vmm::status{}; });
  EXPECT_TRUE(taken);
  return std::move(*taken);
}

vmm::history example() {
  vmm::history out;
  out.lost_count = 3;
  out.events.push_back({5, {4096}, 1024, 2, 1000, 1, 1, history_kind::allocated});
  out.events.push_back({9, {4096}, 1024, 2, 0, 0, 0, history_kind::freed});
  out.regions.push_back({{{4096}, 1024}, 2, vmm::history_region_kind::free});
  out.regions.push_back({{{8192}, 512}, 0, vmm::history_region_kind::live});
  out.mappings.push_back({{{4096}, 8192}, true});
  out.tags.emplace_back("weights");
  out.frames.push_back({"model.py", "forward", 12});
  out.facts.push_back({"allocator", "stream_pool"});
  return out;
}

TEST(HistoryRing, GivesBackWhatWasWritten) {
  const auto ring = ring_of(1024);
  ring->note_block(history_kind::allocated, {{1 << 20}, 1024}, 1000, seventh);
  ring->note({history_kind::mapped, {{2 << 20}, 4096}, seventh, 99});
  const vmm::history taken = take(*ring);
  ASSERT_EQ(taken.events.size(), 2u);
  EXPECT_EQ(taken.events[0].kind, history_kind::allocated);
  EXPECT_EQ(taken.events[0].at.value, 1u << 20);
  EXPECT_EQ(taken.events[0].size_bytes, 1024u);
  EXPECT_EQ(taken.events[0].detail, 1000u) << "the requested size";
  EXPECT_EQ(taken.events[0].stream, 7u);
  EXPECT_EQ(taken.events[1].kind, history_kind::mapped);
  EXPECT_EQ(taken.events[1].detail, 99u);
  EXPECT_LE(taken.events[0].time_ns, taken.events[1].time_ns);
  EXPECT_EQ(taken.lost_count, 0u);
}

TEST(HistoryRing, KeepsTheNewestAndCountsTheOthers) {
  const auto ring = ring_of(1024);
  constexpr std::uint64_t written = 10'000;
  for (std::uint64_t i = 0; i < written; ++i)
    ring->note({history_kind::trimmed, {{}, i}, seventh, i});
  const vmm::history taken = take(*ring);
  ASSERT_EQ(taken.events.size(), 512u) << "one that reads the clock takes two records";
  EXPECT_EQ(taken.lost_count, written - 512);
  for (std::size_t i = 0; i < taken.events.size(); ++i)
    ASSERT_EQ(taken.events[i].detail, written - 512 + i);
}

TEST(HistoryRing, FastEventsTakeOneRecordEach) {
  for (const std::uint32_t interval : {1U, 16U, 4096U}) {
    const auto ring = ring_of(1024, interval);
    constexpr std::uint64_t written = 5'003;
    for (std::uint64_t i = 0; i < written; ++i)
      ring->note_block(history_kind::allocated, {{(i + 1) << 9}, 512}, 1 + i % 512, seventh);
    const vmm::history taken = take(*ring);
    ASSERT_EQ(taken.events.size(), 1024u);
    EXPECT_EQ(taken.lost_count, written - 1024);
    for (std::size_t i = 0; i < taken.events.size(); ++i) {
      ASSERT_EQ(taken.events[i].at.value, (written - 1024 + i + 1) << 9);
      ASSERT_EQ(taken.events[i].detail, 1 + (written - 1024 + i) % 512);
      ASSERT_GE(taken.events[i].time_ns, i == 0 ? 0 : taken.events[i - 1].time_ns);
    }
    EXPECT_GT(taken.events.back().time_ns, taken.events.front().time_ns);
  }
}

// A time is never later than the event, and never before one that came earlier.
TEST(HistoryRing, TimesOfFastAndSlowEventsAreInOrder) {
  const auto ring = ring_of(1024);
  std::mt19937 random(3);
  for (int i = 0; i < 4'000; ++i) {
    if (random() % 5 == 0)
      ring->note({history_kind::grow, {{}, 1}, seventh});
    else
      ring->note_block(history_kind::freed, {{1 << 20}, 512}, 0, seventh);
    if (i % 97 != 0) continue;
    const vmm::history taken = take(*ring);
    for (std::size_t j = 1; j < taken.events.size(); ++j)
      ASSERT_GE(taken.events[j].time_ns, taken.events[j - 1].time_ns);
    ASSERT_EQ(taken.lost_count + taken.events.size(), static_cast<std::uint64_t>(i) + 1);
  }
}

struct list_of_events final : vmm::history_listener {
  void heard(const vmm::history_note& what) noexcept override { all.push_back(what); }
  std::vector<vmm::history_note> all;
};

TEST(HistoryRing, AListenerHearsEachEventAsItIsWritten) {
  list_of_events heard;
  vmm::history_options options;
  options.listener = &heard;
  const auto ring = std::move(*vmm::history_ring::make(options));
  ring->note_block(history_kind::allocated, {{1 << 20}, 1024}, 1000, seventh);
  ring->note({history_kind::suspended, {{2 << 20}, 4096}, seventh, 5});
  ASSERT_EQ(heard.all.size(), 2u);
  EXPECT_EQ(heard.all[0].kind, history_kind::allocated);
  EXPECT_EQ(heard.all[0].detail, 1000u);
  EXPECT_EQ(heard.all[1].kind, history_kind::suspended);
  EXPECT_EQ(heard.all[1].where.size_bytes, 4096u);
  EXPECT_EQ(take(*ring).events.size(), 2u) << "and the ring has them";
}

TEST(HistoryRing, WhatIsOverwrittenWhileItIsTakenLeavesNoGap) {
  const auto ring = ring_of(1 << 14);
  std::uint64_t written = 0;
  const auto write = [&](std::uint64_t count) {
    for (; count != 0; --count, ++written)
      ring->note({history_kind::trimmed, {{}, 1}, seventh, written});
  };
  write(20'000);
  int calls = 0;
  auto taken = *vmm::take_from(
      *ring,
      [&](auto&& work) {
        work();
        if (++calls < 6) write(6'000);
      },
      [](vmm::history&) { return vmm::status{}; });
  ASSERT_FALSE(taken.events.empty());
  EXPECT_GT(calls, 6) << "writers were faster than the reader for a while";
  for (std::size_t i = 0; i < taken.events.size(); ++i)
    ASSERT_EQ(taken.events[i].detail, taken.lost_count + i);
  EXPECT_EQ(taken.lost_count + taken.events.size(), written);
}

TEST(HistoryRing, RecordsOneAllocatorAtATime) {
  const auto ring = ring_of(1024);
  {
    vmm::history_port one(ring.get());
    vmm::history_port other(ring.get());
    EXPECT_TRUE(one.attach());
    const vmm::status refused = other.attach();
    EXPECT_EQ(refused.error().code, vmm::errc::bad_option);
  }
  vmm::history_port later(ring.get());
  EXPECT_TRUE(later.attach());
}

TEST(HistoryRing, OptionsHaveRanges) {
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{1000}, std::uint64_t{1} << 27}) {
    vmm::history_options options;
    options.event_count = count;
    EXPECT_FALSE(vmm::history_ring::make(options)) << count;
  }
  vmm::history_options options;
  options.clock_interval = 3;
  EXPECT_FALSE(vmm::history_ring::make(options));
}

TEST(HistoryRing, LabelsNestAndEnd) {
  const auto ring = ring_of(1024);
  const std::uint16_t weights = vmm::history_tag("weights");
  EXPECT_EQ(vmm::history_tag("weights"), weights);
  const std::uint32_t line = vmm::history_line("model.py", 12, "forward");
  const auto write = [&] {
    ring->note_block(history_kind::allocated, {{1 << 20}, 512}, 1, seventh);
  };
  write();
  {
    const vmm::history_label outer({weights, 0});
    write();
    const vmm::history_label inner({0, line});
    write();
  }
  write();
  const vmm::history taken = take(*ring);
  ASSERT_EQ(taken.events.size(), 4u);
  EXPECT_EQ(taken.events[0].tag, 0u);
  EXPECT_EQ(taken.tags.at(taken.events[1].tag - 1u), "weights");
  EXPECT_EQ(taken.events[2].tag, weights);
  EXPECT_EQ(taken.events[2].detail, 1u) << "a line does not disturb the requested size";
  EXPECT_EQ(taken.frames.at(taken.events[2].frame - 1).file, "model.py");
  EXPECT_EQ(taken.frames.at(taken.events[2].frame - 1).line, 12u);
  EXPECT_EQ(taken.events[3].tag, 0u);
  EXPECT_EQ(taken.events[3].frame, 0u);
}

TEST(HistoryFile, GivesBackWhatWasPutIntoIt) {
  const vmm::history before = example();
  const auto bytes = *vmm::encode_history(before);
  const auto after = vmm::decode_history(bytes);
  ASSERT_TRUE(after) << after.error().detail;
  EXPECT_EQ(after->lost_count, 3u);
  ASSERT_EQ(after->events.size(), 2u);
  EXPECT_EQ(after->events[0].frame, 1u);
  EXPECT_EQ(after->events[0].detail, 1000u);
  EXPECT_EQ(after->events[1].time_ns, 9u);
  ASSERT_EQ(after->regions.size(), 2u);
  EXPECT_EQ(after->regions[1].where.base.value, 8192u);
  ASSERT_EQ(after->mappings.size(), 1u);
  EXPECT_TRUE(after->mappings[0].is_stale);
  EXPECT_EQ(after->tags.at(0), "weights");
  EXPECT_EQ(after->frames.at(0).function, "forward");
  EXPECT_EQ(after->facts.at(0).value, "stream_pool");
  EXPECT_EQ(*vmm::encode_history(*after), bytes);
}

TEST(HistoryFile, ASectionThatNobodyKnowsIsLeftOut) {
  auto bytes = *vmm::encode_history(example());
  const std::size_t before = bytes.size();
  for (const unsigned each : {200u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 3u, 0u, 0u, 0u, 0u, 0u, 0u, 0u})
    bytes.push_back(static_cast<std::byte>(each));
  for (int i = 0; i < 8; ++i) bytes.push_back(std::byte{1});
  ASSERT_TRUE(vmm::decode_history(bytes));
  bytes.resize(before + 17);
  EXPECT_FALSE(vmm::decode_history(bytes)) << "cut inside of it";
}

TEST(HistoryFile, EveryCutIsRefused) {
  const auto bytes = *vmm::encode_history(example());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(vmm::decode_history(std::span(bytes).first(size))) << size;
}

TEST(HistoryFile, MappingsThatOverlapAreRefused) {
  vmm::history twice = example();
  twice.mappings.push_back({{{2 << 20}, 4096}, false});
  twice.mappings.push_back({{{1 << 20}, 4096}, false});
  EXPECT_TRUE(vmm::decode_history(*vmm::encode_history(twice))) << "they are in no order";
  twice.mappings.push_back({{{(1 << 20) + 512}, 4096}, true});
  EXPECT_FALSE(vmm::decode_history(*vmm::encode_history(twice)));
}

TEST(HistoryFile, ChangedBytesHarmNothing) {
  const auto whole = *vmm::encode_history(example());
  std::mt19937 random(20261122);
  std::size_t refused_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = whole;
    for (unsigned i = 0; i <= random() % 4; ++i)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random() % 2 != 0 ? 0xff : random());
    const auto read = vmm::decode_history(bytes);
    if (!read) {
      ++refused_count;
      continue;
    }
    const auto again = *vmm::encode_history(*read);
    const auto twice = vmm::decode_history(again);
    ASSERT_TRUE(twice) << "what was taken can be written and read";
  }
  EXPECT_GT(refused_count, 1'000u);
}

TEST(HistoryFile, IsWrittenAndSaysWhereItCannotBe) {
  const std::string path = testing::TempDir() + "vmm_history_file" + std::to_string(::getpid());
  ASSERT_TRUE(vmm::write_history(example(), path.c_str()));
  EXPECT_EQ(std::filesystem::file_size(path), vmm::encode_history(example())->size());
  std::filesystem::remove(path);
  const vmm::status refused = vmm::write_history(example(), "/nowhere/at/all");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().native, 0);
}

// A folder of its own for each test, and its files.
struct HistoryPlace : testing::Test {
  void SetUp() override {
    std::string name = testing::TempDir() + "vmm_history_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(folder);
  }
  [[nodiscard]] std::size_t file_count() const {
    std::size_t count = 0;
    for (const auto& each : std::filesystem::directory_iterator(folder)) count += each.exists();
    return count;
  }
  [[nodiscard]] static bool is_whole(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return vmm::decode_history(std::as_bytes(std::span(text))).has_value();
  }
  // A history of 4,800 bytes and more.
  [[nodiscard]] static vmm::history larger() {
    vmm::history out = example();
    out.events.insert(out.events.end(), 100, out.events.back());
    return out;
  }

  std::filesystem::path folder;
};

TEST_F(HistoryPlace, WhatCannotBeWrittenLeavesTheOldFileWhole) {
  const std::string path = folder / "run.history";
  ASSERT_TRUE(vmm::write_history(example(), path.c_str()));
  const auto before_bytes = std::filesystem::file_size(path);
  struct ::rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  struct ::rlimit small = usual;
  small.rlim_cur = 1024;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const vmm::status refused = vmm::write_history(larger(), path.c_str());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &usual), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, EFBIG);
  EXPECT_EQ(std::filesystem::file_size(path), before_bytes);
  EXPECT_TRUE(is_whole(path));
  EXPECT_EQ(file_count(), 1u) << "nothing is left beside it";
}

TEST_F(HistoryPlace, ANamedPipeIsNotWaitedFor) {
  const std::string path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const vmm::status refused = vmm::write_history(example(), path.c_str());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, ENXIO);
  EXPECT_TRUE(contains(refused.error().detail, path + "' cannot be opened: it is a named pipe"));
  const std::string long_name(5000, 'n');
  EXPECT_TRUE(contains(vmm::write_history(example(), long_name.c_str()).error().detail,
                       "n...' cannot be given its name: the path or a name in it is too long"))
      << "a long path hides no reason";
}

TEST_F(HistoryPlace, AReaderThatGoesEndsNoProgram) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[1]);  // as of a shell's >(...)
  std::thread reader([&] {
    char first = 0;
    EXPECT_EQ(::read(ends[0], &first, 1), 1);
    ::close(ends[0]);
  });
  vmm::history much = larger();
  while (much.events.size() < 100'000)  // more than a pipe takes
    much.events.insert(much.events.end(), 10'000, much.events.back());
  const vmm::status refused = vmm::write_history(much, path.c_str());
  reader.join();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, EPIPE);
}

TEST_F(HistoryPlace, ALinkOfAnotherUserIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  const std::filesystem::path victim = folder / "victim";
  const std::filesystem::path link = folder / "link";
  std::ofstream(victim) << "what the user has";
  std::filesystem::create_symlink(victim, link);
  ASSERT_EQ(::lchown(link.c_str(), 65534, 65534), 0);
  const vmm::status refused = vmm::write_history(example(), link.c_str());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, EPERM);
  EXPECT_EQ(std::filesystem::file_size(victim), 17u);
}

// While another writes it again and again.
TEST_F(HistoryPlace, AReaderNeverFindsAPart) {
  const std::string path = folder / "run.history";
  ASSERT_TRUE(vmm::write_history(example(), path.c_str()));
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i)
      EXPECT_TRUE(vmm::write_history(i % 2 == 0 ? larger() : example(), path.c_str()));
    is_over = true;
  });
  int part_count = 0;
  do part_count += is_whole(path) ? 0 : 1;
  while (!is_over);
  writer.join();
  EXPECT_EQ(part_count, 0);
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(HistoryPlace, LinksRightsAndLongNamesStay) {
  const std::filesystem::path path = folder / std::string(250, 'n');
  const std::filesystem::path link = folder / "link";
  std::filesystem::create_symlink(path, link);
  ASSERT_TRUE(vmm::write_history(example(), link.c_str())) << "it leads nowhere yet";
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(vmm::write_history(larger(), link.c_str()));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(is_whole(path));
  EXPECT_EQ(static_cast<unsigned>(std::filesystem::status(path).permissions()), 0640u);
  EXPECT_EQ(file_count(), 2u);
}

TEST_F(HistoryPlace, WhatIsNoFileStaysWhatItIs) {
  EXPECT_TRUE(vmm::write_history(example(), "/dev/null"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(vmm::write_history(example(), "/dev/full").error().native, ENOSPC);
  EXPECT_FALSE(vmm::write_history(example(), folder.c_str())) << "a folder";
}

// Another user's folder, and a file in it that may be written: as root, by another user's hands.
TEST_F(HistoryPlace, AFolderThatTakesNoFileLeavesTheFileToBeWritten) {
  const std::string path = folder / "run.history";
  ASSERT_TRUE(vmm::write_history(example(), path.c_str()));
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  ASSERT_EQ(::chmod(folder.c_str(), 0555), 0);
  const int code = code_of_child([&] {
    constexpr ::uid_t nobody = 65534;
    if (::geteuid() == 0 && ::setuid(nobody) != 0) return 3;
    return vmm::write_history(larger(), path.c_str()) ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(is_whole(path));
  EXPECT_EQ(std::filesystem::file_size(path), vmm::encode_history(larger())->size());
}

}  // namespace
