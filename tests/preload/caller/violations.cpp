// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Programs beside a library whose books are wrong: the pool has a block again that the library has
// not freed.
#include <dlfcn.h>

#include "driver.h"
#include "words.h"

namespace caller {
namespace {

constexpr std::size_t lost_bytes = 8 * mebibyte;

void lose(device_pointer at) {
  bool (*lose_block)(device_pointer) = exported("vmm_preload_lose");
  must(lose_block(at), "a library that can lose a block");
}

}  // namespace

// The program goes on, with memory of the driver; blocks from before can still be freed.
void lost_block(const arguments& all) {
  const driver cu = load_started();
  const device_pointer first = make(cu, lost_bytes);
  const device_pointer other = make(cu, lost_bytes);
  if (!all.empty()) lose(first);
  const device_pointer second = make(cu, lost_bytes);
  expect(!do_overlap(first, second, lost_bytes), "no memory of a live block is handed out");
  const device_pointer third = make(cu, lost_bytes);
  for (const device_pointer each : {second, other, first, third})
    expect(cu.free(each) == code::success, "a free");
  expect(cu.synchronize() == code::success, "all work");
  done(cu);
}

// A free that would give memory to the pool which is live again ends the process.
void block_in_two_hands(const arguments&) {
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  const device_pointer first = make(cu, lost_bytes);
  cu.manual(1);
  must(cu.fill(first, 1, lost_bytes, stream) == code::success, "a fill");
  must(cu.free(first) == code::success, "a free");
  lose(first);
  const device_pointer second = make(cu, lost_bytes);
  must(second == first, "memory of a freed block");
  cu.finish();
  std::printf("waits\n");
  std::fflush(stdout);
  (void)make(cu, lost_bytes);
  std::printf("goes on\n");
}

}  // namespace caller
