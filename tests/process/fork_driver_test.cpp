// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever a forked child does with a driver that its parent opened is refused and changes
// nothing of the parent's; destroying its copy changes nothing either; a driver that the child
// opens works.
// Method: a program of driver calls, with a fork after each of them. Each child makes every call
// there is with the objects that are alive, moves the driver and destroys it. The parent compares
// its resource counts and its bytes, and goes on.
#include "every_call.hpp"
#include "grounds.hpp"

import vmm.observe;

namespace {

using process_test::child_end, process_test::expect, process_test::expect_good,
    process_test::expect_good_child, process_test::expect_refused, process_test::in_child,
    process_test::leave_by, process_test::objects, process_test::use_every_call;

constexpr std::uint64_t size = process_test::object_bytes;

template <class Ground>
struct ForkedDriver : testing::Test {
  using driver_type = typename Ground::driver;

  void SetUp() override {
    Ground::reset();
    driver = Ground::open();
  }

  // Forks, lets the child try everything, and looks whether the parent is as before.
  void fork_here(const char* where) {
    const auto before = Ground::count(*driver);
    expect_good_child(where, [&] {
      use_every_call(*driver, alive);
      driver_type moved = std::move(*driver);
      use_every_call(moved, alive);
      *driver = std::move(moved);
      driver.reset();
    });
    EXPECT_TRUE(process_test::is_same(before, Ground::count(*driver))) << where;
    if (pattern.empty()) return;
    std::vector<std::byte> now(pattern.size());
    ASSERT_TRUE(driver->read(now, alive.range.base)) << where;
    EXPECT_EQ(now, pattern) << where;
  }

  template <class Value>
  void take(const vmm::result<Value>& made, Value& into, const char* where) {
    ASSERT_TRUE(made) << where << ": " << vmm::describe(made.error());
    into = *made;
    fork_here(where);
  }
  void done(const vmm::status& outcome, const char* where) {
    ASSERT_TRUE(outcome) << where << ": " << vmm::describe(outcome.error());
    fork_here(where);
  }

  std::unique_ptr<driver_type> driver;
  objects alive;
  std::vector<std::byte> pattern;
};
TYPED_TEST_SUITE(ForkedDriver, process_test::grounds);

TYPED_TEST(ForkedDriver, IsRefusedEverythingAfterEachCall) {
  auto& on = *this->driver;
  const vmm::access_grant grant{on.home(), vmm::access::read_write};
  this->fork_here("open");
  this->take(on.reserve({.size_bytes = size}), this->alive.range, "reserve");
  this->take(on.create({.size_bytes = size, .where = on.home()}), this->alive.memory, "create");
  this->done(on.map({this->alive.range.base, size, this->alive.memory, 0}), "map");
  this->done(on.set_access(this->alive.range, {&grant, 1}), "set_access");
  this->pattern.assign(size, std::byte{0x5a});
  this->done(on.write(this->alive.range.base, this->pattern), "write");
  if (on.feature_set().streams) {
    this->take(on.create_stream(), this->alive.stream, "create_stream");
    this->take(on.create_event(), this->alive.event, "create_event");
    this->done(on.record_event(this->alive.event, this->alive.stream), "record_event");
    this->done(on.synchronize_event(this->alive.event), "synchronize_event");
    this->done(on.destroy_event(this->alive.event), "destroy_event");
    this->done(on.destroy_stream(this->alive.stream), "destroy_stream");
  }
  this->pattern.clear();
  this->done(on.unmap(this->alive.range), "unmap");
  this->done(on.release(this->alive.memory), "release");
  this->done(on.free_reservation(this->alive.range), "free_reservation");
}

TYPED_TEST(ForkedDriver, TheChildsOwnWorks) {
  expect_good_child("the child's own driver", [&] {
    TypeParam::reset();
    auto own = TypeParam::open();
    const auto range = own->reserve({.size_bytes = size});
    const auto memory = own->create({.size_bytes = size, .where = own->home()});
    expect(range && memory, "a call of the child's own driver");
    const vmm::access_grant grant{own->home(), vmm::access::read_write};
    expect(own->map({range->base, size, *memory, 0}).has_value(), "map");
    expect(own->set_access(*range, {&grant, 1}).has_value(), "set_access");
    const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
    std::array<std::byte, 3> seen{};
    expect(own->write(range->base, bytes).has_value(), "write");
    expect(own->read(seen, range->base).has_value() && seen == bytes, "read");
    expect(own->unmap(*range).has_value(), "unmap");
    expect(own->release(*memory).has_value(), "release");
    expect(own->free_reservation(*range).has_value(), "free_reservation");
    // The grandchild is refused both.
    const child_end grandchild = in_child([&] {
      expect_refused(own->reserve({.size_bytes = size}), "the parent's");
      expect_refused(this->driver->reserve({.size_bytes = size}), "the grandparent's");
      own.reset();
      this->driver.reset();
    });
    expect(grandchild.code == 0 && grandchild.said.empty(), "the grandchild");
  });
}

// A thread of the parent is inside the driver, with its lock, at nearly every moment.
TYPED_TEST(ForkedDriver, ALockThatAnotherThreadHeldIsNotTaken) {
  auto& on = *this->driver;
  const auto range = on.reserve({.size_bytes = size}).value();
  const auto memory = on.create({.size_bytes = size, .where = on.home()}).value();
  const vmm::access_grant grant{on.home(), vmm::access::read_write};
  ASSERT_TRUE(on.map({range.base, size, memory, 0}));
  ASSERT_TRUE(on.set_access(range, {&grant, 1}));
  this->alive.range = range;
  this->alive.memory = memory;
  std::atomic<bool> is_over = false;
  std::atomic<std::uint64_t> written = 0;
  std::thread writer([&] {
    const std::vector<std::byte> bytes(size, std::byte{7});
    while (!is_over.load()) {
      EXPECT_TRUE(on.write(range.base, bytes));
      written.fetch_add(1);
    }
  });
  while (written.load() == 0) std::this_thread::yield();
  for (int round = 0; round < 5; ++round) {
    const child_end seen = in_child(
        [&] {
          use_every_call(on, this->alive);
          this->driver.reset();
        },
        leave_by::quick_exit);
    expect_good(seen, "beside a writer");
  }
  is_over = true;
  writer.join();
  EXPECT_TRUE(on.unmap(range));
  EXPECT_TRUE(on.release(memory));
  EXPECT_TRUE(on.free_reservation(range));
}

// Whether the process can read there, as the kernel sees it.
bool is_readable(vmm::address at) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe(ends.data()) != 0) return false;
  const bool is_there = ::write(ends[1], at.as<const void>(), 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return is_there;
}

TEST(ForkedHost, ReachesNoByteByAStalePointer) {
  auto driver = vmm::host_driver::open().value();
  const auto range = driver.reserve({.size_bytes = size}).value();
  for (const auto kind : {vmm::share_kind::none, vmm::share_kind::posix_fd}) {
    const vmm::physical_request like{.size_bytes = size, .where = driver.home(), .shareable = kind};
    const auto memory = driver.create(like).value();
    const vmm::access_grant grant{driver.home(), vmm::access::read_write};
    ASSERT_TRUE(driver.map({range.base, size, memory, 0}));
    ASSERT_TRUE(driver.set_access(range, {&grant, 1}));
    ASSERT_TRUE(driver.fill({range, 9}));
    EXPECT_TRUE(is_readable(range.base));
    const auto reads_nothing = [&] {
      for (std::uint64_t at = 0; at < size; at += MiB)
        expect(!is_readable(range.base + at), "the parent's bytes can be read");
    };
    expect_good_child("a stale pointer", reads_nothing);
    // A part that was unmapped and mapped again is as the rest.
    ASSERT_TRUE(driver.unmap({range.base + MiB, MiB}));
    ASSERT_TRUE(driver.map({range.base + MiB, MiB, memory, 0}));
    ASSERT_TRUE(driver.set_access(range, {&grant, 1}));
    expect_good_child("a stale pointer to a part", reads_nothing);
    ASSERT_TRUE(driver.unmap(range));
    ASSERT_TRUE(driver.release(memory));
  }
}

// Every wrapper refuses for itself, and an observer's lock or file is left alone.
TEST(ForkedWrappers, AreRefusedAndSeeNothing) {
  auto counter = std::make_shared<vmm::call_counter>();
  auto observed = vmm::observed_backend(vmm::fake_driver(), counter);
  auto any = vmm::any_backend::own(vmm::fake_driver()).value();
  expect_good_child("wrappers", [&] {
    expect_refused(observed.reserve({.size_bytes = size}), "observed");
    expect(counter->calls() == 0, "the observer saw a call");
    expect_refused(any.reserve({.size_bytes = size}), "any_backend");
    const vmm::any_backend gone = std::move(any);
  });
  EXPECT_TRUE(any.query_memory(any.home()));
}

TEST(ForkedLog, IsNotWrittenTwice) {
  const std::string path = testing::TempDir() + "vmm_forked_log_" + std::to_string(::getpid());
  {
    auto log = vmm::call_log::open(path).value();
    auto observed = vmm::observed_backend(vmm::fake_driver(), std::move(log));
    ASSERT_TRUE(observed.query_memory(observed.home()));
    expect_good_child("a log", [&] {
      expect_refused(observed.query_memory(observed.home()), "a logged call");
      auto gone = std::move(observed);
    });
  }
  std::ifstream file(path);
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(file), {}, '\n'), 1);
  std::remove(path.c_str());
}

}  // namespace
