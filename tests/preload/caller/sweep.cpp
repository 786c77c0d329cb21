// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Each request of the library for host memory fails, one after the other, in each kind of call. No
// call loses memory: in the end all of the device's is free. After each call the library's
// invariants hold.

#include "driver.h"
#include "words.h"

namespace caller {
namespace {

constexpr std::size_t swept_bytes = 3 * mebibyte;

device_pointer make(const driver& cu) { return caller::make(cu, swept_bytes); }

struct setting {
  const driver& cu;
  stream_id streams[2] = {};
  device_pointer plain = 0;
  device_pointer ordered = 0;  // of the first stream, which works on it

  void free_plain() {
    if (cu.free(plain) == code::success) plain = 0;
  }
};

struct step {
  const char* name;
  void (*before)(setting& s);
  void (*run)(setting& s);
};

void nothing_before(setting&) {}

// Frees that wait for the end of a capture.
void free_while_captured(setting& s) {
  const device_pointer more[] = {make(s.cu), make(s.cu)};
  graph_id graph = nullptr;
  must(s.cu.begin_capture(s.streams[1], relaxed) == code::success, "a capture");
  for (const device_pointer each : more) must(s.cu.free(each) == code::success, "a free");
  must(s.cu.end_capture(s.streams[1], &graph) == code::success, "its end");
  must(s.cu.destroy_graph(graph) == code::success, "the graph");
}

void allocate(setting& s) { must(s.cu.free(make(s.cu)) == code::success, "a free"); }

void allocate_async(setting& s) {
  const device_pointer at = make_ordered(s.cu, swept_bytes, s.streams[1]);
  must(s.cu.free_async(at, s.streams[1]) == code::success, "a free");
}

constexpr std::array steps{
    step{"allocate", nothing_before, allocate},
    step{"allocate in order", nothing_before, allocate_async},
    step{"allocate after a capture", free_while_captured, allocate},
    step{"free", nothing_before, [](setting& s) { s.free_plain(); }},
    step{"free after a capture", free_while_captured, [](setting& s) { s.free_plain(); }},
    step{"free of an ordered block", nothing_before,
         [](setting& s) {
           if (s.cu.free(s.ordered) == code::success) s.ordered = 0;
         }},
    step{"free of a plain block in order", nothing_before,
         [](setting& s) {
           if (s.cu.free_async(s.plain, s.streams[0]) == code::success) s.plain = 0;
         }},
    step{"free on another stream", nothing_before,
         [](setting& s) {
           if (s.cu.free_async(s.ordered, s.streams[1]) == code::success) s.ordered = 0;
         }},
};

setting prepare(const driver& cu) {
  setting s{cu};
  for (stream_id& each : s.streams) each = make_stream(cu);
  s.plain = make(cu);
  s.ordered = make_ordered(cu, swept_bytes, s.streams[0]);
  cu.manual(1);
  must(cu.fill(s.ordered, 1, swept_bytes, s.streams[0]) == code::success, "a fill");
  return s;
}

void finish(setting& s) {
  s.cu.finish();
  s.cu.manual(0);
  if (s.plain != 0) must(s.cu.free(s.plain) == code::success, "a free");
  if (s.ordered != 0) must(s.cu.free(s.ordered) == code::success, "a free");
  for (const stream_id each : s.streams)
    must(s.cu.destroy_stream(each) == code::success, "a stream");
  must(s.cu.synchronize() == code::success, "all work");
  for (int i = 0; i < 3; ++i) must(s.cu.free(make(s.cu)) == code::success, "a free");
  // A request that cannot be met has everything given back.
  const memory_properties like = device_memory();
  physical_id handle = 0;
  must(s.cu.create(&handle, std::size_t{1} << 45, &like, 0) == code::out_of_memory, "no memory");
}

}  // namespace

void allocation_sweep(const arguments&) {
  const driver cu = load_started();
  bool (*fail_new)(int) = exported("vmm_preload_fail_new");
  const char* (*find_broken)() = exported("vmm_preload_find_broken");
  for (const step& each : steps) {
    int nth = 0;
    bool was_struck = true;
    while (was_struck) {
      setting s = prepare(cu);
      each.before(s);
      (void)fail_new(++nth);
      each.run(s);
      was_struck = fail_new(0);
      if (const char* const broken = find_broken(); broken != nullptr) expect(false, broken);
      finish(s);
      const auto [free_bytes, total_bytes] = memory_of(cu);
      if (free_bytes != total_bytes) {
        std::printf("%s loses %zu bytes at request %d\n", each.name, total_bytes - free_bytes, nth);
        return;
      }
    }
    std::printf("%s\n", each.name);
  }
  expect(cu.misuses() == 0, "no access to memory that is not there, and no race");
}

}  // namespace caller
