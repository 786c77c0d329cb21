// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: threads may share every handle, also with one that destroys it: no call is lost, none
// reaches a destroyed object, and each thread gets its own errors.
// Method: threads allocate, write, check and free on one pool and one manager of the host's memory;
// others make and destroy pools under the calls of their neighbours. A call may then be refused,
// and nothing else. Sanitizers see the rest.
#include "bench.hpp"
#include "vmm.h"

namespace {

using c_test::Bench, c_test::sized;

constexpr int thread_count = 4;
constexpr int rounds = 400;

struct Threads : Bench {
  void SetUp() override { open("host"); }
};

template <class Work>
void on_threads(Work&& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& each : threads) each.join();
}

bool holds(const void* at, int mark, std::size_t size_bytes) {
  const auto* const bytes = static_cast<const unsigned char*>(at);
  return bytes[0] == mark && bytes[size_bytes - 1] == mark;
}

TEST_F(Threads, ShareAManager) {
  std::atomic<int> wrong = 0;
  on_threads([&](int number) {
    for (int round = 0; round < rounds / 20; ++round) {
      auto request = sized<vmm_block_request>((1 + static_cast<unsigned>(round) % 3) * MiB);
      void* at = nullptr;
      if (vmm_manager_allocate(manager, &request, &at) != VMM_SUCCESS) ++wrong;
      std::memset(at, number, request.size_bytes);
      auto resize = sized<vmm_resize_request>(request.size_bytes + 4 * MiB);
      resize.at = at;
      if (vmm_manager_resize(manager, &resize, &at) != VMM_SUCCESS) ++wrong;
      if (!holds(at, number, request.size_bytes)) ++wrong;
      if (vmm_manager_free_idle(manager, at) != VMM_SUCCESS) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

// One pool at a time, under a handle that all threads see. Some destroy it while others use it.
TEST_F(Threads, DestroyWhatOthersUse) {
  vmm_pool_options quiet = c_test::pool_defaults();
  quiet.report_live = 0;                 // a block may be live when its pool goes
  quiet.reservation_bytes = 1024 * MiB;  // each of a hundred pools is looked at whole
  std::atomic<vmm_pool*> shared = nullptr;
  std::atomic<int> wrong = 0;
  std::atomic<int> destroyed = 0;
  on_threads([&](int number) {
    for (int round = 0; round < rounds; ++round) {
      if (number == 0 && round % 4 == 0) {
        vmm_pool* fresh = nullptr;
        if (vmm_pool_create(driver, &quiet, &fresh) != VMM_SUCCESS) ++wrong;
        vmm_pool* old = shared.exchange(fresh);
        vmm_status answered = VMM_ERROR_IN_USE;
        while (answered == VMM_ERROR_IN_USE) answered = vmm_pool_destroy(old);
        if (answered != VMM_SUCCESS) ++wrong;
        ++destroyed;
        continue;
      }
      vmm_pool* const seen = shared.load();
      void* at = nullptr;
      const vmm_status got = vmm_pool_allocate(seen, 4096, nullptr, &at);
      if (got != VMM_SUCCESS && got != VMM_ERROR_INVALID_HANDLE) ++wrong;
      const vmm_status gone = vmm_pool_free(seen, at, nullptr);
      if (gone != VMM_SUCCESS && gone != VMM_ERROR_INVALID_HANDLE) ++wrong;
    }
  });
  EXPECT_GOOD(vmm_pool_destroy(shared));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(destroyed, rounds / 4);
}

TEST_F(Threads, DestroyAtOnce) {
  for (int round = 0; round < 200; ++round) {
    vmm_pool* made = nullptr;
    ASSERT_GOOD(vmm_pool_create(driver, nullptr, &made));
    std::atomic<int> succeeded = 0;
    on_threads([&](int) {
      if (vmm_pool_destroy(made) == VMM_SUCCESS) ++succeeded;
    });
    EXPECT_EQ(succeeded, 1);
  }
}

// Threads are inside a call nearly all of the time: a destruction waits for calls that end soon,
// and others wait for it.
TEST_F(Threads, DestroyBesideCallsWithoutAPause) {
  for (int round = 0; round < 20; ++round) {
    vmm_driver* opened = nullptr;
    ASSERT_GOOD(vmm_driver_open("host", VMM_ANY_DEVICE, &opened));
    std::atomic<int> inside = 0;
    std::atomic<int> wrong = 0;
    int refused = 0;
    std::thread closing([&] {
      while (inside != thread_count - 1) std::this_thread::yield();
      while (vmm_driver_close(opened) == VMM_ERROR_IN_USE) ++refused;
    });
    on_threads([&](int number) {
      vmm_status seen = number == 0 ? VMM_ERROR_INVALID_HANDLE : VMM_SUCCESS;
      for (int call = 0; seen == VMM_SUCCESS; ++call) {
        seen = vmm_driver_memory(opened, nullptr, nullptr);
        if (call == 0) ++inside;
      }
      if (seen != VMM_ERROR_INVALID_HANDLE) ++wrong;
    });
    closing.join();
    EXPECT_LT(refused, 100);
    EXPECT_EQ(wrong, 0);
  }
}

// A manager is refused while its range ends on another thread, and goes afterwards.
TEST_F(Threads, DestroyAManagerBesideItsRange) {
  for (int round = 0; round < rounds; ++round) {
    vmm_manager* memory = nullptr;
    ASSERT_GOOD(vmm_manager_create(driver, nullptr, &memory));
    vmm_growable_options small;
    ASSERT_GOOD(vmm_growable_options_init(&small, sizeof(small)));
    small.segment_bytes_max = 8 * MiB;
    vmm_growable* range = nullptr;
    ASSERT_GOOD(vmm_growable_create(memory, &small, &range));
    std::atomic<vmm_status> ended = VMM_ERROR_INTERNAL;
    std::atomic<bool> is_there = false;
    std::thread other([&] {
      is_there = true;
      ended = vmm_growable_destroy(range, nullptr);
    });
    while (!is_there) {
    }
    vmm_status gone = VMM_ERROR_IN_USE;
    while (gone == VMM_ERROR_IN_USE) gone = vmm_manager_destroy(memory);
    other.join();
    EXPECT_GOOD(gone);
    EXPECT_GOOD(ended);
  }
}

struct heard {
  std::atomic<bool> is_over = false;
  std::atomic<int>* notice_count = nullptr;
  std::atomic<int>* late = nullptr;
};

void hear(void* context, const vmm_remap_notice*) {
  const auto& mine = *static_cast<heard*>(context);
  ++*mine.notice_count;
  if (mine.is_over) ++*mine.late;
}

// What a subscription is given goes as soon as it has ended, while others change the pool.
TEST_F(Threads, SubscriptionsEndBesideChanges) {
  std::atomic<int> notice_count = 0;
  std::atomic<int> late = 0;
  std::atomic<int> wrong = 0;
  std::atomic<bool> is_over = false;
  std::thread changing([&] {
    while (!is_over) {
      void* at = nullptr;
      if (vmm_pool_allocate(pool, 4 * MiB, nullptr, &at) != VMM_SUCCESS) ++wrong;
      if (vmm_pool_free(pool, at, nullptr) != VMM_SUCCESS) ++wrong;
      if (vmm_pool_trim(pool, 0, nullptr) != VMM_SUCCESS) ++wrong;
    }
  });
  on_threads([&](int) {
    for (int round = 0; round < 40 || notice_count == 0; ++round) {
      heard mine;
      mine.notice_count = &notice_count;
      mine.late = &late;
      std::uint64_t number = 0;
      if (vmm_pool_subscribe(pool, &hear, &mine, &number) != VMM_SUCCESS) ++wrong;
      std::this_thread::yield();
      if (vmm_pool_unsubscribe(pool, number) != VMM_SUCCESS) ++wrong;
      mine.is_over = true;
      std::this_thread::yield();
    }
  });
  is_over = true;
  changing.join();
  EXPECT_GT(notice_count, 0);
  EXPECT_EQ(late, 0);
  EXPECT_EQ(wrong, 0);
}

TEST_F(Threads, EachHasItsOwnFailure) {
  void* at = nullptr;
  EXPECT_FAILS(vmm_pool_allocate(pool, 0, nullptr, &at), VMM_ERROR_INVALID_ARGUMENT);
  const std::string mine = vmm_last_error_text();
  std::thread([&] {
    EXPECT_STREQ(vmm_last_error_text(), "");
    EXPECT_FAILS(vmm_pool_free(pool, &at, nullptr), VMM_ERROR_UNKNOWN_ADDRESS);
  }).join();
  EXPECT_EQ(vmm_last_error_text(), mine);
}

}  // namespace
