// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a forked child takes no lock of its parent's, whatever it calls or destroys: another thread
// of the parent may have held it at the fork, and cannot release it in the child.
// Method: the library announces its locks to an observer that counts them in the child. Needs a
// build with VMM_SCHEDULE_POINTS.
#include "child.hpp"

import vmm.base;
import vmm.containers;
import vmm.fake;
import vmm.manager;
import vmm.stream;
import vmm.timeline;

namespace {

using process_test::expect, process_test::expect_good_child, process_test::expect_refused;

// For its life each lock that a thread takes is counted.
class lock_count final : public vmm::sync::schedule_observer {
 public:
  lock_count() { vmm::sync::set_schedule_observer(this); }
  ~lock_count() { vmm::sync::set_schedule_observer(nullptr); }
  lock_count(const lock_count&) = delete;
  lock_count& operator=(const lock_count&) = delete;

  void reach(vmm::sync::step what, const void*) noexcept override {
    const bool takes = what == vmm::sync::step::lock || what == vmm::sync::step::lock_again ||
                       what == vmm::sync::step::lock_shared;
    taken_ += takes ? 1 : 0;
  }
  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

 private:
  std::uint64_t taken_ = 0;
};

struct ForkedLocks : testing::Test {
  using numbers = vmm::vector<int>;

  void SetUp() override {
    if (!vmm::sync::has_schedule_points) GTEST_SKIP() << "locks do not announce themselves here";
    driver.set_manual(true);
    stream = *driver.create_stream();
  }
  void TearDown() override {
    EXPECT_TRUE(driver.finish_all());
    if (stream != vmm::stream_handle{}) EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
  }
  // The locks that a child takes while it does `use`.
  template <class Use>
  static void expect_none(const char* where, Use&& use) {
    expect_good_child(where, [&] {
      const lock_count locks;
      use();
      expect(locks.taken() == 0, "a lock of the parent's was taken");
    });
  }

  vmm::fake_driver driver;
  vmm::stream_handle stream{};
};

TEST_F(ForkedLocks, NoneByAVectorWhoseZerosAreOnTheirWay) {
  auto managed = std::make_unique<vmm::manager>(driver);
  auto values = std::make_optional<numbers>(*managed, 0, stream);
  ASSERT_TRUE(values->resize(1000));
  expect_none("a vector", [&] {
    expect_refused(values->resize(2000), "resize");
    numbers moved = std::move(*values);
    values.reset();
  });
  expect_none("a vector and its manager", [&] {
    managed.reset();
    values.reset();
  });
  values.reset();
}

TEST_F(ForkedLocks, NoneByAManagerAndItsPoints) {
  auto managed = std::make_unique<vmm::manager>(driver);
  const vmm::address at = managed->allocate({.size_bytes = MiB, .stream = stream}).value();
  std::optional<vmm::ticket_ref> point = managed->record(stream).value();
  const vmm::ticket_ref passed;
  expect_none("a manager", [&] {
    expect_refused(managed->record(stream), "record");
    expect_refused(managed->wait(*point), "wait");
    expect_refused(managed->wait(passed), "wait for what has passed");
    expect_refused(managed->synchronize(at), "wait on the host");
    expect_refused(managed->free(at), "free");
    managed->forget(stream);
    const vmm::ticket_ref copied = *point;
    point.reset();
  });
  expect_none("a manager that goes first", [&] {
    managed.reset();
    point.reset();
  });
  point.reset();
  EXPECT_TRUE(managed->free(at));
}

struct silent_listener final : vmm::remap_listener {
  void before_change(const vmm::remap_notice&) noexcept override {}
};

TEST_F(ForkedLocks, NoneByAPool) {
  silent_listener listener;  // the pool notifies it at its end
  auto pool = std::make_unique<vmm::stream_pool>(driver);
  const vmm::address at = pool->allocate(4 * MiB, stream).value();
  const vmm::address held = pool->allocate(4 * MiB, stream).value();
  ASSERT_TRUE(pool->pin(held));
  ASSERT_TRUE(pool->free(held, stream));
  ASSERT_TRUE(pool->remaps().subscribe(listener));
  expect_none("a pool", [&] {
    expect_refused(pool->allocate(MiB, stream), "allocate");
    expect_refused(pool->free(at, stream), "free");
    expect_refused(pool->unpin(held), "unpin");
    expect_refused(pool->forget(stream), "forget");
    expect_refused(pool->synchronize(), "synchronize");
    expect_refused(pool->captures().number(stream), "number of a capture");
    expect(pool->trim(0).failure.code == vmm::errc::not_permitted, "trim");
    expect(pool->statistics().live_count == 0, "statistics of the parent's");
    pool.reset();
  });
  EXPECT_TRUE(pool->unpin(held));
  EXPECT_TRUE(pool->free(at, stream));
}

}  // namespace
