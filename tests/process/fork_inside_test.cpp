// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a fork in the middle of an operation is as one before or after it: the parent's operation
// goes on and nothing of the parent's changes; the child's copy of the operation ends, and all that
// follows is refused.
// Method: an observer forks at the nth driver call of a program, for every n, on the thread that
// makes the call; a callback of a pool forks; and a thread forks while another one is stopped
// inside a driver call, with the locks that it holds there, or in the C library's atexit().
#include <dlfcn.h>

#include <condition_variable>

#include "child.hpp"
#include "grounds.hpp"

import vmm.base;
import vmm.manager;
import vmm.stream;

namespace {

using process_test::child_end, process_test::expect, process_test::expect_good,
    process_test::expect_refused, process_test::in_child, process_test::leave_by;

constexpr auto stream = vmm::stream_handle::default_stream;

// ---- a fork at every driver call -----------------------------------------------------

// Forks inside the nth call. In the child that call and the operation around it then go on.
class forking_observer {
 public:
  [[nodiscard]] vmm::status before(const vmm::call_record&) {
    if (++seen_count_ != fork_at) return {};
    ends_ = {-1, -1};
    if (::pipe(ends_.data()) != 0) return {};
    std::fflush(nullptr);
    child_ = ::fork();
    if (child_ != 0) return {};
    ::alarm(100);
    ::dup2(ends_[1], STDERR_FILENO);
    is_child = true;
    return {};
  }
  void after(const vmm::call_record&) {}

  /// In the parent: how the child ended, if one was made.
  [[nodiscard]] bool wait(child_end& seen) {
    if (child_ <= 0) return false;
    ::close(ends_[1]);
    seen = process_test::end_of(child_, ends_[0]);
    return true;
  }

  std::uint64_t fork_at = 0;
  bool is_child = false;

 private:
  std::uint64_t seen_count_ = 0;
  pid_t child_ = -1;
  std::array<int, 2> ends_{-1, -1};
};

template <class Ground>
struct ForkedInside : testing::Test {
  using driver_type = vmm::observed_backend<typename Ground::driver, forking_observer>;

  // Runs a program, which returns whether all of it succeeded, with a fork at call `fork_at`. False
  // when the program makes fewer calls.
  template <class Program>
  bool run(std::uint64_t fork_at, Program&& program) {
    Ground::reset();
    auto observer = std::make_shared<forking_observer>();
    auto inside = Ground::open();
    auto driver = std::make_unique<driver_type>(std::move(*inside), observer);
    inside.reset();
    observer->fork_at = fork_at;
    const bool went_well = program(*driver, *observer);
    if (observer->is_child) {
      driver.reset();
      std::exit(process_test::wrong_count == 0 ? 0 : 1);
    }
    EXPECT_TRUE(went_well) << "the parent, with a fork at call " << fork_at;
    EXPECT_TRUE(Ground::count(driver->driver()).reservations == 0);
    EXPECT_TRUE(Ground::count(driver->driver()).handles == 0);
    child_end seen;
    if (!observer->wait(seen)) return false;
    expect_good(seen, "a fork at call " + std::to_string(fork_at));
    return true;
  }
  // The same with a fork at each call; there are more than `least_count`.
  template <class Program>
  void run_at_each(std::uint64_t least_count, Program&& program) {
    std::uint64_t count = 1;
    while (run(count, program) && !this->HasFailure()) ++count;
    EXPECT_GT(count, least_count);
  }
};
TYPED_TEST_SUITE(ForkedInside, process_test::mapped_grounds);

TYPED_TEST(ForkedInside, AManagersOperationsAtEveryDriverCall) {
  const auto program = [](auto& driver, forking_observer& observer) {
    bool went_well = true;
    {
      vmm::manager managed(driver, {{.reservation_bytes = GiB}});
      const auto one = managed.allocate(4 * MiB);
      if (one && !observer.is_child) {
        const std::vector<std::byte> bytes(4 * MiB, std::byte{5});
        went_well &= driver.write(*one, bytes).has_value();
        const auto two = managed.allocate(4 * MiB);
        const auto grown = managed.resize({.at = *one, .size_bytes = 12 * MiB});
        std::vector<std::byte> now(4 * MiB);
        if (two && grown && !observer.is_child) {
          went_well &= driver.read(now, *grown).has_value() && now == bytes;
          went_well &= managed.free(*two).has_value() && managed.validate();
          if (!observer.is_child) (void)managed.trim(0);
          went_well &= managed.free(*grown).has_value();
        } else {
          went_well = false;
        }
      } else {
        went_well = false;
      }
      if (observer.is_child) {
        expect_refused(managed.allocate(MiB), "allocate");
        expect_refused(managed.free(vmm::address{0x10000000}), "free");
        expect(managed.trim(0).failure.code == vmm::errc::not_permitted, "drain");
      }
    }
    return went_well;
  };
  this->run_at_each(10, program);
}

TYPED_TEST(ForkedInside, APoolsOperationsAtEveryDriverCall) {
  const auto program = [](auto& driver, forking_observer& observer) {
    bool went_well = true;
    {
      vmm::pool_options options;
      options.reservation_bytes = 256 * MiB;
      options.policy.handle_bytes_max = 0;
      options.policy.tuning.slack_bytes = 0;
      options.policy.tuning.min_move_share = 0;
      vmm::stream_pool pool(driver, options);
      std::vector<vmm::address> blocks;
      for (int i = 0; i < 6 && !observer.is_child; ++i) {
        const auto at = pool.allocate(4 * MiB, stream);
        went_well &= at.has_value();
        if (at) blocks.push_back(*at);
      }
      for (std::size_t i = 0; i < blocks.size() && !observer.is_child; i += 2)
        went_well &= pool.free(blocks[i], stream).has_value();
      // Needs scattered memory: memory moves.
      vmm::result<vmm::address> whole = vmm::address{};
      if (!observer.is_child) whole = pool.allocate(12 * MiB, stream);
      if (whole && !observer.is_child) went_well &= pool.free(*whole, stream).has_value();
      for (std::size_t i = 1; i < blocks.size() && !observer.is_child; i += 2)
        went_well &= pool.free(blocks[i], stream).has_value();
      if (!observer.is_child) went_well &= pool.trim(0).failure.code == vmm::errc::none;
      if (!observer.is_child) went_well &= pool.validate().has_value();
      if (observer.is_child) {
        expect_refused(pool.allocate(MiB, stream), "allocate");
        expect_refused(pool.free(vmm::address{0x10000000}, stream), "free");
        expect(pool.trim(0).failure.code == vmm::errc::not_permitted, "trim");
      }
    }
    return went_well;
  };
  this->run_at_each(20, program);
}

// ---- a fork in a callback ------------------------------------------------------------

struct forking_hearer final : vmm::remap_listener {
  void before_change(const vmm::remap_notice&) noexcept override {
    if (child >= 0) return;
    std::fflush(nullptr);
    child = ::fork();
    is_child = child == 0;
    if (is_child) ::alarm(100);
  }
  bool is_child = false;
  pid_t child = -1;
};

TEST(ForkedCallback, EndsTheChildsOperationOnly) {
  auto driver = std::make_unique<vmm::host_driver>(vmm::host_driver::open().value());
  auto pool = std::make_unique<vmm::stream_pool>(*driver);
  const vmm::address kept = pool->allocate(3 * MiB, stream).value();
  const std::vector<std::byte> bytes(3 * MiB, std::byte{0x77});
  ASSERT_TRUE(driver->write(kept, bytes));
  const vmm::address gone = pool->allocate(200 * MiB, stream).value();
  ASSERT_TRUE(pool->free(gone, stream));
  forking_hearer hearer;
  const auto subscription = pool->remaps().subscribe(hearer).value();
  const vmm::trim_report report = pool->trim(0);
  if (hearer.is_child) {
    expect(report.failure.code == vmm::errc::not_permitted, "the trim went on");
    expect_refused(pool->allocate(MiB, stream), "allocate");
    expect_refused(pool->remaps().unsubscribe(subscription), "unsubscribe");
    pool.reset();
    driver.reset();
    std::exit(process_test::wrong_count == 0 ? 0 : 1);
  }
  ASSERT_GT(hearer.child, 0) << "the callback was not called";
  int status = 0;
  ASSERT_EQ(::waitpid(hearer.child, &status, 0), hearer.child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(report.failure.code, vmm::errc::none);
  EXPECT_GT(report.released_bytes, 0u);
  std::vector<std::byte> now(3 * MiB);
  ASSERT_TRUE(driver->read(now, kept));
  EXPECT_EQ(now, bytes);
  EXPECT_TRUE(pool->remaps().unsubscribe(subscription));
  EXPECT_TRUE(pool->validate());
  EXPECT_TRUE(pool->free(kept, stream));
  pool.reset();
  EXPECT_TRUE(driver->resource_counts().empty());
}

// ---- a fork while another thread is inside -------------------------------------------

// Stops the next call of one kind until it is let go.
class stopping_observer {
 public:
  void stop_at(vmm::call kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_ = kind;
    has_stopped_ = may_go_ = false;
  }
  void wait_until_stopped() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return has_stopped_; });
  }
  void let_go() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      may_go_ = true;
    }
    changed_.notify_all();
  }
  [[nodiscard]] vmm::status before(const vmm::call_record& record) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (record.kind != wanted_) return {};
    wanted_ = vmm::call::none;
    has_stopped_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return may_go_; });
    return {};
  }
  void after(const vmm::call_record&) {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  vmm::call wanted_ = vmm::call::none;
  bool has_stopped_ = false;
  bool may_go_ = false;
};

using stopped_driver = vmm::observed_backend<vmm::host_driver, stopping_observer>;

// While `operation` is stopped in a call of each kind on a thread of its own, a child does `use`.
template <class Operation, class Use>
void fork_beside(stopping_observer& observer, vmm::call kind, Operation&& operation, Use&& use) {
  observer.stop_at(kind);
  std::thread other(operation);
  observer.wait_until_stopped();
  const child_end seen = in_child(use, leave_by::quick_exit);
  observer.let_go();
  other.join();
  expect_good(seen, vmm::name_of(kind));
}

TEST(ForkedBeside, AThreadThatGrowsAPool) {
  auto observer = std::make_shared<stopping_observer>();
  auto driver = std::make_unique<stopped_driver>(vmm::host_driver::open().value(), observer);
  for (const vmm::call kind :
       {vmm::call::reserve, vmm::call::create, vmm::call::map, vmm::call::set_access}) {
    auto pool = std::make_unique<vmm::stream_pool>(*driver);
    vmm::result<vmm::address> at = vmm::address{};
    fork_beside(
        *observer, kind, [&] { at = pool->allocate(5 * MiB, stream); },
        [&] {
          expect_refused(pool->allocate(MiB, stream), "allocate");
          expect_refused(pool->free(vmm::address{0x10000000}, stream), "free");
          expect_refused(pool->forget(stream), "forget");
          expect_refused(pool->synchronize(), "synchronize");
          expect_refused(pool->validate(), "validate");
          expect(pool->trim(0).failure.code == vmm::errc::not_permitted, "trim");
          pool.reset();
          driver.reset();
        });
    ASSERT_TRUE(at) << vmm::name_of(kind);
    const std::vector<std::byte> bytes(5 * MiB, std::byte{1});
    EXPECT_TRUE(driver->write(*at, bytes));
    EXPECT_TRUE(pool->free(*at, stream));
  }
  EXPECT_TRUE(driver->driver().resource_counts().empty());
}

TEST(ForkedBeside, AThreadInsideAManager) {
  auto observer = std::make_shared<stopping_observer>();
  auto driver = std::make_unique<stopped_driver>(vmm::host_driver::open().value(), observer);
  for (const vmm::call kind : {vmm::call::query_granularity, vmm::call::reserve, vmm::call::create,
                               vmm::call::map, vmm::call::set_access}) {
    auto managed = std::make_unique<vmm::manager>(*driver);
    vmm::result<vmm::address> at = vmm::address{};
    fork_beside(
        *observer, kind, [&] { at = managed->allocate(5 * MiB); },
        [&] {
          expect_refused(managed->allocate(MiB), "allocate");
          expect_refused(managed->free(vmm::address{0x10000000}), "free");
          expect_refused(managed->find(vmm::address{0x10000000}), "find");
          expect(managed->trim(0).failure.code == vmm::errc::not_permitted, "drain");
          managed.reset();
          driver.reset();
        });
    ASSERT_TRUE(at) << vmm::name_of(kind);
    EXPECT_TRUE(managed->free(*at));
  }
  EXPECT_TRUE(driver->driver().resource_counts().empty());
}

// A thread is inside atexit() until a fork, which the library lets wait for it.
struct stopped_registration {
  std::mutex mutex;
  std::condition_variable changed;
  bool stops_next = false;
  bool is_inside = false;
  bool has_forked = false;
};
stopped_registration registration;

void reach_registration() {
  std::unique_lock lock(registration.mutex);
  if (!std::exchange(registration.stops_next, false)) return;
  registration.is_inside = true;
  registration.changed.notify_all();
  registration.changed.wait_for(lock, std::chrono::milliseconds(500),
                                [] { return registration.has_forked; });
  registration.is_inside = false;
}

TEST(ForkedBeside, AThreadThatRegistersForTheExit) {
  VMM_SKIP_UNDER_TSAN();
  registration.stops_next = true;
  std::thread other([] {
    vmm::user_count used;
    used.add();
    used.remove();
  });
  {
    std::unique_lock lock(registration.mutex);
    registration.changed.wait(lock, [] { return registration.is_inside; });
  }
  const child_end seen =
      in_child([] { expect(!registration.is_inside, "another thread has the lock of atexit()"); },
               leave_by::quick_exit);
  {
    const std::lock_guard lock(registration.mutex);
    registration.has_forked = true;
  }
  registration.changed.notify_all();
  other.join();
  expect_good(seen, "atexit");
}

}  // namespace

// What atexit() calls.
extern "C" int __cxa_atexit(void (*call)(void*), void* of, void* library) {  // NOLINT
  using function = int (*)(void (*)(void*), void*, void*);
  static const auto next = reinterpret_cast<function>(::dlsym(RTLD_NEXT, "__cxa_atexit"));
  reach_registration();
  return next(call, of, library);
}
