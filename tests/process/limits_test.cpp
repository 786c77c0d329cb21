// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a limit of the process (address space, file size, open files, kernel mappings) that is
// reached at any step gives a typed error, costs nothing that was there, and when it is raised the
// same call works.
// Method: a child for each limit and step, since a limit is the whole process's. Under the limit
// each step is tried until it is refused; then the limit is raised and the step is tried again.
// AddressSanitizer reserves terabytes and maps for itself: limits of address space and of mappings
// are tried only without it.
#include <sys/resource.h>

#include <cerrno>
#include <csignal>

#include "child.hpp"

import vmm.containers;
import vmm.fake;
import vmm.host;
import vmm.manager;
import vmm.registry;
import vmm.stream;
import vmm.suspend;

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VMM_TEST_UNDER_ASAN 1
#endif
#endif
#ifdef VMM_TEST_UNDER_ASAN
#define VMM_SKIP_UNDER_ASAN() GTEST_SKIP() << "AddressSanitizer itself runs out of it"
#else
#define VMM_SKIP_UNDER_ASAN() static_cast<void>(0)
#endif

namespace {

using process_test::expect, process_test::expect_code, process_test::expect_ended_well,
    process_test::expect_good_child, process_test::in_child, vmm::errc;

constexpr std::uint64_t page = 4096;
constexpr auto stream = vmm::stream_handle::default_stream;

// The soft limit, for this object's life.
class limited {
 public:
  limited(int which, std::uint64_t value) : which_(which) {
    expect(::getrlimit(type(), &before_) == 0, "getrlimit");
    const rlimit lower{value, before_.rlim_max};
    expect(::setrlimit(type(), &lower) == 0, "setrlimit");
  }
  ~limited() { expect(::setrlimit(type(), &before_) == 0, "the limit is raised again"); }
  limited(const limited&) = delete;
  limited& operator=(const limited&) = delete;

 private:
  [[nodiscard]] __rlimit_resource type() const { return static_cast<__rlimit_resource>(which_); }
  int which_;
  rlimit before_{};
};

vmm::physical_request memory_of(std::uint64_t size_bytes, vmm::share_kind kind) {
  return {.size_bytes = size_bytes, .where = vmm::host(), .shareable = kind};
}

// ---- file size -----------------------------------------------------------------------

TEST(FileSizeLimit, OpeningAnswersAnErrorAndNoSignal) {
  expect_good_child("open", [] {
    {
      const limited size(RLIMIT_FSIZE, MiB);
      const auto opened = vmm::host_driver::open();
      expect_code(opened, errc::unavailable, "open");
      expect(!opened && opened.error().native == EFBIG, "the system's reason");
    }
    expect(vmm::host_driver::open().has_value(), "open without the limit");
  });
}

TEST(FileSizeLimit, ShareableMemoryIsOutOfMemory) {
  expect_good_child("create", [] {
    auto driver = vmm::host_driver::open().value();
    const auto fd = vmm::share_kind::posix_fd;
    {
      const limited size(RLIMIT_FSIZE, MiB);
      const auto before = driver.resource_counts();
      const auto made = driver.create(memory_of(2 * MiB, fd));
      expect_code(made, errc::out_of_mappings, "create");
      expect(!made && made.error().native == EFBIG, "the system's reason");
      const auto now = driver.resource_counts();
      expect(std::memcmp(&before, &now, sizeof now) == 0, "the resource counts have changed");
      const auto small = driver.create(memory_of(MiB, fd));
      expect(small && driver.release(*small), "what the limit allows");
      const auto plain = driver.create(memory_of(64 * MiB, vmm::share_kind::none));
      expect(plain && driver.release(*plain), "memory without a file of its own");
    }
    const auto made = driver.create(memory_of(2 * MiB, fd));
    expect(made && driver.release(*made), "create without the limit");
    expect(driver.resource_counts().empty(), "something is left");
  });
}

TEST(FileSizeLimit, AManagerOfShareableMemoryGoesOn) {
  expect_good_child("a manager", [] {
    auto driver = vmm::host_driver::open().value();
    vmm::manager managed(driver, {.shareable = vmm::share_kind::posix_fd});
    const auto kept = managed.allocate(4 * MiB);
    {
      const limited size(RLIMIT_FSIZE, MiB);
      expect_code(managed.allocate(8 * MiB), errc::out_of_mappings, "allocate");
      expect_code(managed.resize({.at = *kept, .size_bytes = 8 * MiB}), errc::out_of_mappings,
                  "resize");
      expect(managed.validate().has_value(), "the manager is valid");
    }
    const auto grown = managed.resize({.at = *kept, .size_bytes = 8 * MiB});
    expect(grown.has_value(), "resize without the limit");
    if (grown) expect(managed.free(*grown).has_value(), "free");
  });
}

// The program's own handling of the signal is as it was.
TEST(FileSizeLimit, TheProgramsSignalStaysTheProgramsOwn) {
  expect_good_child("signals", [] {
    sigset_t blocked;
    sigset_t before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    std::raise(SIGXFSZ);
    const limited size(RLIMIT_FSIZE, MiB);
    expect_code(vmm::host_driver::open(), errc::unavailable, "open");
    sigset_t now;
    sigpending(&now);
    expect(sigismember(&now, SIGXFSZ) == 1, "the program's signal is still there");
    int taken = 0;
    sigwait(&blocked, &taken);
    sigprocmask(SIG_BLOCK, nullptr, &now);
    expect(sigismember(&now, SIGXFSZ) == 1, "it is still blocked");
    expect_code(vmm::host_driver::open(), errc::unavailable, "open");
    sigpending(&now);
    expect(sigismember(&now, SIGXFSZ) == 0, "no signal of the driver's is left");
  });
}

// What vmm writes for its user: the log of calls, the file of vmm-top, contents of suspended
// memory.
TEST(FileSizeLimit, ALogThatIsCutIsReportedOnce) {
  const std::string path = testing::TempDir() + "vmm_log_" + std::to_string(::getpid());
  const auto seen = in_child([&] {
    ::setenv("VMM_LOG", path.c_str(), 1);
    const limited size(RLIMIT_FSIZE, 200);
    const auto driver = vmm::open_backend("fake");
    expect(driver.has_value(), "open");
    for (int i = 0; driver && i < 20; ++i) {
      const auto range = driver->get()->reserve({2 * MiB, 0, {}});
      expect(range && driver->get()->free_reservation(*range), "a call");
    }
  });
  expect_ended_well(seen);
  EXPECT_TRUE(contains(seen.said,
                       "vmm: the log of the driver's calls is incomplete: the file would "
                       "exceed the process's limit of file size"));
  std::remove(path.c_str());
}

TEST(FileSizeLimit, AnAllocatorThatCannotBeShownGoesOn) {
  const auto seen = in_child([] {
    const limited size(RLIMIT_FSIZE, 100);
    vmm::fake_driver driver;
    vmm::stream_pool pool(driver, {{.publish = true}});
    expect(pool.set_up().has_value(), "set_up");
  });
  expect_ended_well(seen);
  EXPECT_TRUE(contains(seen.said, "the file would exceed the process's limit of file size, 100 "));
}

TEST(FileSizeLimit, SuspendingToAFileIsRefused) {
  expect_good_child("a suspender", [] {
    auto driver = vmm::host_driver::open().value();
    vmm::manager managed(driver);
    const auto at = managed.allocate(4 * MiB);
    expect(at.has_value(), "allocate");
    vmm::suspender all({.tier = vmm::backup_tier::file});
    expect(all.add(managed, {.tag = "all"}).has_value(), "add");
    {
      const limited size(RLIMIT_FSIZE, MiB);
      expect(!all.suspend().has_value(), "suspend is refused");
    }
    expect(all.suspend().has_value() && all.resume().has_value(), "without the limit");
    expect(managed.free(*at).has_value(), "free");
  });
}

// ---- standard error without a reader -----------------------------------------------------

TEST(ClosedPipe, AReportOnStandardErrorEndsNoProgram) {
  const auto seen = in_child([] {
    std::array<int, 2> ends{-1, -1};
    if (::pipe(ends.data()) != 0) std::_Exit(3);
    ::close(ends[0]);
    ::dup2(ends[1], STDERR_FILENO);
    ::setenv("VMM_LOG", "stderr", 1);
    vmm::fake_driver driver;
    {
      vmm::manager managed(driver);
      if (!managed.allocate(4 * MiB)) std::_Exit(4);
    }  // says that a block is live
    const auto logged = vmm::open_backend("fake");
    if (!logged || !logged->get()->reserve({2 * MiB, 0, {}})) std::_Exit(5);
  });
  process_test::expect_good(seen, "a report");
}

// ---- open files ----------------------------------------------------------------------

TEST(OpenFileLimit, EachStepIsRefusedAndWorksLater) {
  expect_good_child("open files", [] {
    auto driver = vmm::host_driver::open().value();
    vmm::manager managed(driver);
    vmm::stream_pool pool(driver);
    const auto kept = managed.allocate(4 * MiB);
    const auto held = pool.allocate(MiB, stream);
    expect(kept && held, "before the limit");
    {
      const limited files(RLIMIT_NOFILE, 0);
      expect_code(vmm::host_driver::open(), errc::unavailable, "open");
      const auto fd = vmm::share_kind::posix_fd;
      expect_code(driver.create(memory_of(MiB, fd)), errc::out_of_mappings, "create");
      expect_code(managed.allocate(64 * MiB), errc::out_of_mappings, "manager");
      const auto refused = pool.allocate(512 * MiB, stream);
      expect_code(refused, errc::out_of_mappings, "pool");
      expect(vmm::describe(refused.error())
                 .ends_with("the process is at its limit of 0 open files: close some, "
                            "or raise it (ulimit -n)"),
             "the text names the limit");
      expect(managed.validate().has_value(), "the manager is valid");
      expect(managed.free(*kept).has_value(), "a free needs no file");
    }
    const auto again = managed.allocate(64 * MiB);
    expect(again && managed.free(*again), "the manager without the limit");
    const auto block = pool.allocate(128 * MiB, stream);
    expect(block && pool.free(*block, stream), "the pool without the limit");
    expect(pool.free(*held, stream) && pool.validate(), "the pool is valid");
  });
}

// ---- kernel mappings -----------------------------------------------------------------

// Maps one page of `memory` at every second page of a range, but where one is mapped, until the
// kernel has no mapping left.
std::uint64_t use_up_mappings(vmm::host_driver& driver, vmm::address_range range,
                              vmm::physical_handle memory) {
  std::uint64_t count = 0;
  for (std::uint64_t at = 0; at < range.size_bytes; at += 2 * page) {
    const vmm::status mapped = driver.map({range.base + at, page, memory, 0});
    if (!mapped && mapped.error().code == errc::overlap) continue;
    if (!mapped) break;
    ++count;
  }
  return count;
}

TEST(MappingLimit, EachStepIsRefusedAndWorksLater) {
  VMM_SKIP_UNDER_ASAN();
  expect_good_child("kernel mappings", [] {
    auto driver = vmm::host_driver::open().value();
    const std::uint64_t limit = driver.feature_set().max_mapping_count;
    if (limit == 0 || limit > 1'000'000) return;  // out of reach
    vmm::manager managed(driver);
    vmm::stream_pool pool(driver);
    const auto kept = managed.allocate(4 * MiB);
    const auto held = pool.allocate(MiB, stream);
    expect(kept && held && driver.fill({{*kept, 4 * MiB}, 7}), "before the limit");
    const auto range = driver.reserve({.size_bytes = (limit + 10) * 2 * page}).value();
    const auto one = driver.create(memory_of(page, vmm::share_kind::none)).value();
    expect(use_up_mappings(driver, range, one) > limit / 4, "mappings are used up");
    // With room behind it a block joins no neighbour: each takes mappings of its own.
    const vmm::allocate_request apart{.size_bytes = 2 * MiB, .growth_bytes = 2 * MiB};
    std::vector<vmm::address> last;
    vmm::result<vmm::address> more = managed.allocate(apart);
    for (; more && last.size() < 16; more = managed.allocate(apart)) last.push_back(*more);
    expect_code(more, errc::out_of_mappings, "manager");
    for (const vmm::address at : last) expect(managed.free(at).has_value(), "free");
    expect(use_up_mappings(driver, range, one) < 64, "again at the limit");
    expect_code(pool.allocate(512 * MiB, stream), errc::out_of_mappings, "pool");
    // Addresses beside others may join them, which takes no mapping.
    const auto beside = driver.reserve({.size_bytes = MiB});
    expect(beside ? driver.free_reservation(*beside).has_value()
                  : beside.error().code == errc::out_of_mappings,
           "reserve");
    expect(managed.validate() && pool.validate(), "both are valid");
    std::byte seen{};
    expect(driver.read({&seen, 1}, *kept) && seen == std::byte{7}, "what was there");
    for (std::uint64_t at = 0; at < range.size_bytes; at += 2 * page) {
      if (!driver.unmap({range.base + at, page})) expect(false, "unmap");
    }
    const auto again = managed.allocate(64 * MiB);
    expect(again && managed.free(*again), "the manager with room");
    const auto block = pool.allocate(128 * MiB, stream);
    expect(block && pool.free(*block, stream), "the pool with room");
    expect(driver.release(one) && driver.free_reservation(range), "what used them up");
    expect(managed.free(*kept) && pool.free(*held, stream), "what was there goes");
  });
}

// ---- address space -------------------------------------------------------------------

// Bytes that read calls of this process have got so far; 0 where the system does not say.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t count = 0;
  file >> name >> count;  // rchar: count
  return count;
}

TEST(AddressSpaceLimit, ARefusedReservationReadsNoListOfMappings) {
  auto driver = vmm::host_driver::open().value();
  const std::uint64_t first = bytes_read();
  const std::uint64_t of_asking = bytes_read() - first;
  if (first == 0) GTEST_SKIP() << "this system does not count what a process reads";
  constexpr int count = 20;
  const std::uint64_t before = bytes_read();
  for (int i = 0; i < count; ++i) {
    const auto refused = driver.reserve({.size_bytes = std::uint64_t{1} << 60});
    EXPECT_EQ(refused.error().code, errc::out_of_addresses);
    EXPECT_EQ(refused.error().native, ENOMEM);
  }
  EXPECT_LE(bytes_read() - before, of_asking + 64) << "the list of mappings is some kilobytes long";
}

#ifndef VMM_TEST_UNDER_ASAN

std::uint64_t address_space_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages;
  return pages * page;
}

[[nodiscard]] bool is_typed(errc code) {
  return code == errc::out_of_addresses || code == errc::out_of_memory ||
         code == errc::out_of_host_memory || code == errc::out_of_mappings;
}

// What is left before the limit: from nothing to enough for some steps and not for the next.
constexpr std::uint64_t rooms[] = {0,       page,     64 * page, MiB,
                                   8 * MiB, 32 * MiB, 128 * MiB, 512 * MiB};

// `make` returns a block, `end` frees one.
template <class Make, class End>
void until_refused(std::uint64_t room_bytes, Make&& make, End&& end) {
  std::vector<vmm::address> made;
  made.reserve(200);
  {
    const limited addresses(RLIMIT_AS, address_space_bytes() + room_bytes);
    while (made.size() < 200) {
      const vmm::result<vmm::address> at = make();
      if (!at) {
        expect(is_typed(at.error().code), vmm::name_of(at.error().code));
        break;
      }
      made.push_back(*at);
    }
    expect(made.size() < 200, "the limit was not reached");
    for (const vmm::address at : made) expect(end(at), "what was made is given back");
    made.clear();
  }
  const vmm::result<vmm::address> again = make();
  expect(again && end(*again), "it works without the limit");
}

// An allocator with and without a first block at each room.
template <class Allocator, class Options>
void allocate_at_each_room(auto&& allocate, auto&& free) {
  for (const std::uint64_t room_bytes : rooms) {
    for (const bool was_used : {false, true}) {
      expect_good_child("room " + std::to_string(room_bytes), [&] {
        auto driver = vmm::host_driver::open().value();
        Options options;
        options.leak_hook.hook = nullptr;  // the first block is live on purpose
        if (was_used) options.reservation_bytes = 64 * MiB;
        Allocator from(driver, options);
        if (was_used) expect(allocate(from, MiB).has_value(), "the first block");
        until_refused(
            room_bytes, [&] { return allocate(from, 16 * MiB); },
            [&](vmm::address at) { return free(from, at).has_value(); });
        expect(from.validate().has_value(), "the allocator is valid");
      });
    }
  }
}

TEST(AddressSpaceLimit, AManagerAtEachRoom) {
  allocate_at_each_room<vmm::manager, vmm::manager_options>(
      [](auto& from, std::uint64_t size_bytes) { return from.allocate(size_bytes); },
      [](auto& from, vmm::address at) { return from.free(at); });
}

TEST(AddressSpaceLimit, APoolAtEachRoom) {
  allocate_at_each_room<vmm::stream_pool, vmm::pool_options>(
      [](auto& from, std::uint64_t size_bytes) { return from.allocate(size_bytes, stream); },
      [](auto& from, vmm::address at) { return from.free(at, stream); });
}

TEST(AddressSpaceLimit, OpeningAtEachRoom) {
  for (const std::uint64_t room_bytes : rooms) {
    expect_good_child("room " + std::to_string(room_bytes), [=] {
      {
        const limited addresses(RLIMIT_AS, address_space_bytes() + room_bytes);
        const auto opened = vmm::host_driver::open();
        expect(opened || is_typed(opened.error().code), "open");
      }
      expect(vmm::host_driver::open().has_value(), "open without the limit");
    });
  }
}

#else

TEST(AddressSpaceLimit, AtEachRoom) {
  GTEST_SKIP() << "AddressSanitizer reserves terabytes: tried in builds without it";
}

#endif

}  // namespace
