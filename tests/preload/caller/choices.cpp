// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What a program says before its first block, of another device, or beside another thread.

#include "driver.h"
#include "words.h"

namespace caller {

// A pool that is chosen before the first block is the one that serves.
void early_pool(const arguments&) {
  const driver cu = load_started();
  int own = 0;
  for (const pool_id pool : {reinterpret_cast<pool_id>(&own), pool_of(cu, 0)}) {
    must(cu.set_pool(0, pool) == code::success, "a pool");
    must(cu.free_async(make_ordered(cu, mebibyte, nullptr), nullptr) == code::success, "a free");
  }
  done(cu);
}

// Access to a pool that is given before its first block.
void early_access(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load_started();
  const access_description given{{device_location, 1}, 3};
  std::printf("access %d\n", cu.set_pool_access(pool_of(cu, 0), &given, 1));
  const device_pointer at = make_ordered(cu, mebibyte, nullptr);
  flag_set rights = 0;
  if (is_managed) {
    expect(cu.get_access(&rights, &given.location, at) == code::success && rights == 3,
           "rights that were given before");
  }
  must(cu.free_async(at, nullptr) == code::success, "a free");
  done(cu);
}

// A pool says where its memory lies, not the stream.
void pool_elsewhere(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load();
  const context_id first = start(cu, 0);
  const device_pointer on_first = make(cu, mebibyte);
  const context_id second = start(cu, 1);
  const device_pointer block = make(cu, mebibyte);
  const stream_id on_second = make_stream(cu);
  must(cu.set_current(first) == code::success, "the first device");
  device_pointer at = 0;
  must(cu.allocate_from_pool(&at, mebibyte, pool_of(cu, 0), on_second) == code::success, "memory");
  std::printf("on the pool's device %d\n", context_of(cu, at) == first ? 1 : 0);
  must(cu.free_async(at, on_second) == code::success, "a free");
  must(cu.allocate_from_pool(&at, mebibyte, pool_of(cu, 1), on_second) == code::success, "memory");
  if (is_managed) expect(context_of(cu, at) == second, "memory of the second device");
  must(cu.free_async(at, on_second) == code::success, "a free");
  must(cu.free(on_first) == code::success && cu.free(block) == code::success, "a free");
  no_misuse(cu);
}

// One thread captures, over and over, and another frees: no capture is spoiled.
void capture_storm(const arguments&) {
  const driver cu = load();
  const context_id context = start(cu);
  const stream_id stream = make_stream(cu);
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    must(cu.set_current(context) == code::success, "the context");
    while (!is_over) must(cu.free(make(cu, 4096)) == code::success, "a free");
  });
  int spoiled = 0;
  for (int i = 0; i < 4000; ++i) {
    graph_id graph = nullptr;
    must(cu.begin_capture(stream, relaxed) == code::success, "a capture");
    const result_code ended = cu.end_capture(stream, &graph);
    spoiled += ended != code::success || graph == nullptr ? 1 : 0;
    if (graph != nullptr) must(cu.destroy_graph(graph) == code::success, "the graph");
  }
  is_over = true;
  other.join();
  std::printf("spoiled %d\n", spoiled);
}

}  // namespace caller
