// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Contexts that end, resets that the driver refuses, and devices that were given access.
#include <unistd.h>

#include "driver.h"
#include "words.h"

namespace caller {

// Contexts beside the primary one come and go, each where the last one was. Each uses what the
// primary one owns; with it goes what it allocated, and nothing else.
void contexts(const arguments&) {
  const driver cu = load();
  const context_id primary = start(cu);
  const device_pointer lasting = make_filled(cu, 4 * mebibyte, 0x21);
  must(cu.synchronize() == code::success, "all work");
  for (int round = 0; round < 4; ++round) {
    context_id other = nullptr;
    must(cu.create_context(&other, 0) == code::success, "a context");
    std::printf("peer %d\n", cu.enable_peer(primary, 0));
    const device_pointer own = make(cu, 3 * mebibyte);
    const stream_id stream = make_stream(cu);
    device_pointer ordered = 0;
    std::printf("in order %d\n", cu.allocate_async(&ordered, mebibyte, stream));
    must(cu.fill(lasting, 0x22, mebibyte, stream) == code::success, "a fill");
    must(cu.set_current(primary) == code::success, "the primary context");
    // Freed for work of the other context, in both ways.
    const device_pointer one = make(cu, 2 * mebibyte);
    const device_pointer two = make(cu, 2 * mebibyte);
    std::printf("free %d %d\n", cu.free(one), cu.free_async(two, stream));
    std::printf("destroy %d", cu.destroy_context(other));
    std::printf(" again %d\n", cu.destroy_context(other));
    std::printf("its memory %d, in its order %d\n", cu.free(own), cu.free_async(lasting, stream));
    std::printf("next %d\n", cu.free(make(cu, 2 * mebibyte)));
    expect(holds(cu, lasting, mebibyte, 0x22), "what the other context wrote");
  }
  std::printf("primary %d\n", cu.destroy_context(primary));
  expect(holds(cu, lasting, mebibyte, 0x22), "memory of the primary context");
  std::printf("free %d\n", cu.free(lasting));
  must(cu.synchronize() == code::success, "all work");
  // The program itself names a stream that is gone, once in each round.
  std::printf("stale %llu\n", cu.stale());
  expect(cu.misuses() == 0, "no access to memory that is not there, and no race");
}

// A reset that the driver refuses changes nothing; one that it grants ends everything.
void refused_reset(const arguments&) {
  const driver cu = load_started();
  constexpr std::size_t size = 5 * mebibyte;
  const stream_id stream = make_stream(cu);
  const device_pointer at = make_filled(cu, size, 0x31, stream);
  const device_pointer ordered = make_ordered(cu, size, stream);
  must(cu.fill(ordered, 0x32, size, stream) == code::success, "a fill");
  cu.fail("cuDevicePrimaryCtxReset", code::deinitialized, 1, false);
  std::printf("refused %d, no device %d\n", cu.reset(0), cu.reset(77));
  must(cu.synchronize() == code::success, "all work");
  expect(holds(cu, at, size, 0x31) && holds(cu, ordered, size, 0x32), "blocks as before");
  const device_pointer next = make(cu, size);
  std::printf("free %d %d\n", cu.free(next), cu.free_async(ordered, stream));
  must(cu.free_async(make(cu, size), stream) == code::success, "a free");
  std::printf("reset %d\n", cu.reset(0));
  std::printf("gone %d\n", cu.free(at));
  start(cu);
  const device_pointer again = make_filled(cu, size, 0x33);
  expect(holds(cu, again, size, 0x33), "new memory");
  std::printf("free %d\n", cu.free(again));
  const auto [free_bytes, total_bytes] = memory_of(cu);
  expect(free_bytes == total_bytes, "a reset leaves nothing behind");
  std::printf("stale %llu\n", cu.stale());
  expect(cu.misuses() == 0, "no access to memory that is not there, and no race");
}

// A device is reset while another thread allocates and frees on it, and waits for its work.
void reset_beside_frees(const arguments& all) {
  alarm(120);
  const driver cu = load_started();
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    std::vector<device_pointer> held;
    while (!is_over.load()) {
      start(cu);
      device_pointer at = 0;
      if (cu.allocate(&at, 24 * mebibyte) == code::success) held.push_back(at);
      (void)cu.fill(at, 1, mebibyte, nullptr);
      if (at != 0 && held.size() < 4) continue;
      for (const device_pointer each : held) (void)cu.free(each);
      held.clear();
    }
  });
  for (int round = 0; round < std::stoi(std::string(all.at(0))); ++round) (void)cu.reset(0);
  is_over = true;
  other.join();
  std::printf("done\n");
}

// A request that finds freed memory unfinished leaves the gate and waits: there the context ends,
// or would.
void reset_beside_a_wait(const arguments&) {
  struct meeting {
    const driver& cu;
    bool (*is_ending)() = nullptr;
    std::atomic<bool> has_begun = false;
    std::atomic<bool> is_over = false;
  };
  const driver cu = load_started();
  meeting with{cu};
  void (*on_gate)(void (*)(void*), void*) = exported("vmm_preload_on_gate");
  with.is_ending = exported("vmm_preload_is_ending");
  const device_pointer freed = make(cu, 4 * mebibyte);
  cu.manual(1);
  must(cu.fill(freed, 1, 4 * mebibyte, make_stream(cu)) == code::success, "a fill");
  must(cu.free(freed) == code::success, "a free");
  std::thread other([&] {
    while (!with.has_begun.load()) std::this_thread::yield();
    must(cu.reset(0) == code::success, "a reset");
    with.is_over = true;
  });
  const unsigned long long before = cu.calls("cuEventSynchronize");
  on_gate(
      [](void* data) {
        meeting& here = *static_cast<meeting*>(data);
        here.cu.finish();
        here.cu.manual(0);
        here.has_begun = true;
        while (!here.is_over.load() && !here.is_ending()) std::this_thread::yield();
      },
      &with);
  device_pointer at = 0;
  (void)cu.allocate(&at, 2 * mebibyte);
  other.join();
  expect(cu.calls("cuEventSynchronize") == before + 1, "a wait for the freed block");
  std::printf("stale %llu\n", cu.stale());
  start(cu);
  expect(cu.free(make(cu, 2 * mebibyte)) == code::success, "a free");
  no_misuse(cu);
}

// A device with access to a pool uses its memory: cuMemFree covers its work, too.
void pool_users(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load();
  const context_id first = start(cu, 0);
  constexpr std::size_t size = 8 * mebibyte;
  const device_pointer at = make_ordered(cu, size, nullptr);
  const access_description given{{device_location, 1}, 3};
  std::printf("access %d\n", cu.set_pool_access(pool_of(cu, 0), &given, 1));
  const context_id second = start(cu, 1);
  const stream_id on_second = make_stream(cu);
  must(cu.synchronize() == code::success, "all work");
  if (is_managed) cu.manual(1);
  must(cu.fill(at, 0x41, size, on_second) == code::success, "a fill by the other device");
  must(cu.set_current(first) == code::success, "the first device");
  std::printf("free %d\n", cu.free(at));
  const device_pointer next = make_ordered(cu, size, nullptr);
  if (is_managed) {
    expect(next + size <= at || at + size <= next, "no memory that the other device works on");
    cu.finish();
    cu.manual(0);
  }
  must(cu.fill(next, 0x42, size, nullptr) == code::success, "a fill");
  must(cu.synchronize() == code::success, "all work");
  expect(holds(cu, next, size, 0x42), "what was written last");
  std::printf("free %d\n", cu.free(next));
  must(cu.set_current(second) == code::success, "the second device");
  must(cu.synchronize() == code::success, "all work");
  expect(cu.misuses() == 0, "no access to memory that is not there, and no race");
}

}  // namespace caller
