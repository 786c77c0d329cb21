// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What VMM_MODE=vmm and VMM_MODE=cache must keep. Each word also runs without the library and must
// print the same.

#include "driver.h"
#include "words.h"

namespace caller {
namespace {

// An allocation and a free.
unsigned long long queries_of_a_turn(const driver& cu, stream_id stream) {
  const unsigned long long before = cu.calls("cuStreamIsCapturing");
  const device_pointer at = make_ordered(cu, mebibyte, stream);
  must(cu.free_async(at, stream) == code::success, "a free");
  return cu.calls("cuStreamIsCapturing") - before;
}

struct said {
  result_code code = -1;
  std::uint64_t value = 0;
};

said ask(const driver& cu, int attribute, device_pointer at) {
  said answer;
  answer.code = cu.attribute(&answer.value, attribute, at);
  return answer;
}

void ask_all(const driver& cu, context_id context, device_pointer at, std::size_t size) {
  const said of_context = ask(cu, pointer_attribute::context, at + 7);
  expect(of_context.value == reinterpret_cast<std::uintptr_t>(context), "the context");
  const said start_of = ask(cu, pointer_attribute::range_start, at + 7);
  const said size_of = ask(cu, pointer_attribute::range_size, at + size - 1);
  expect(start_of.value == at && size_of.value == size, "the range");
  std::printf("codes %d %d %d\n", of_context.code, start_of.code, size_of.code);
  const said type = ask(cu, 2, at);
  const said pointer = ask(cu, 3, at + 5);
  const said managed = ask(cu, 8, at);
  std::printf("type %d %d, pointer %d, managed %d %d\n", type.code, static_cast<int>(type.value),
              pointer.code, managed.code, static_cast<int>(managed.value));
  expect(pointer.value == at + 5, "the pointer");
  std::printf("host pointer %d\n", ask(cu, 4, at).code);
  device_pointer base = 0;
  std::size_t bytes = 0;
  std::printf("range %d\n", cu.range(&base, &bytes, at + size / 2));
  expect(base == at && bytes == size, "base and size");
  int wanted[3] = {pointer_attribute::range_start, 2, pointer_attribute::context};
  std::uint64_t start_at = 0;
  unsigned kind = 0;
  std::uint64_t home = 0;
  void* into[3] = {&start_at, &kind, &home};
  std::printf("several %d, type %u\n", cu.attributes(3, wanted, into, at + 1), kind);
  expect(start_at == at && home == of_context.value, "several at once");
}

constexpr std::size_t segment = 20 * mebibyte;

void map_segment(const driver& cu, device_pointer at, physical_id handle) {
  const access_description grant{{device_location, 0}, 3};
  must(cu.map(at, segment, 0, handle, 0) == code::success, "a mapping");
  must(cu.set_access(at, segment, &grant, 1) == code::success, "access");
}

}  // namespace

// Memory that work in flight can touch is not handed out, and no thread waits for it.
void in_flight(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  constexpr std::size_t size = 8 * mebibyte;
  const device_pointer first = make(cu, size);
  if (is_managed) {
    cu.manual(1);
    must(cu.fill(first, 0x11, size, stream) == code::success, "a fill");
    expect(cu.free(first) == code::success, "a free beside running work");
    const device_pointer second = make(cu, size);
    expect(!do_overlap(first, second, size), "no memory in flight is handed out");
    int state = -1;
    expect(cu.is_capturing(stream, &state) == code::success, "the stream lives");
    cu.finish();
    const device_pointer third = make(cu, size);
    expect(third == first, "it is handed out when the work has passed");
    cu.manual(0);
    must(cu.free(second) == code::success && cu.free(third) == code::success, "a free");
  } else {
    must(cu.free(first) == code::success, "a free");
  }
  // The order of one stream: reused at once, behind the work before.
  const device_pointer one = make_ordered(cu, size, stream);
  must(cu.fill(one, 0x22, size, stream) == code::success, "a fill");
  must(cu.free_async(one, stream) == code::success, "a free");
  const device_pointer two = make_ordered(cu, size, stream);
  if (is_managed) expect(two == one, "the stream's own memory comes back at once");
  must(cu.fill(two, 0x33, size, stream) == code::success, "a fill");
  must(cu.synchronize_stream(stream) == code::success, "the stream");
  expect(holds(cu, two, size, 0x33), "what was written last");
  // Memory of a stream is freed after everything, and memory without one in a stream's order.
  must(cu.free(two) == code::success, "cuMemFree of a stream's memory");
  const device_pointer three = make_filled(cu, size, 0x44, stream);
  must(cu.free_async(three, stream) == code::success, "cuMemFreeAsync of memory without a stream");
  done(cu);
}

// A capture that is under way is not spoiled by frees of others.
void captured(const arguments& all) {
  const bool is_managed = !all.empty();
  const bool is_newer = all.size() > 1;  // the driver may begin captures by other calls
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  const stream_id other = make_stream(cu);
  const device_pointer inside = make(cu, mebibyte);
  const device_pointer beside = make(cu, mebibyte);
  const device_pointer ordered = make_ordered(cu, mebibyte, other);
  const auto queries_alike = [&] { return (queries_of_a_turn(cu, other) != 0) == is_newer; };
  if (is_managed) expect(queries_alike(), "queries without a capture");
  must(cu.begin_capture(stream, relaxed) == code::success, "a capture");
  if (is_managed) expect(queries_of_a_turn(cu, other) != 0, "queries during a capture");
  must(cu.fill(inside, 0x55, mebibyte, stream) == code::success, "a captured fill");
  if (is_managed) expect(cu.free(beside) == code::success, "cuMemFree while a stream is captured");
  must(cu.free_async(ordered, other) == code::success, "a free on a stream that is not captured");
  const unsigned long long marks = cu.calls("cuCtxRecordEvent");
  device_pointer none = 0;
  const result_code in_capture = cu.allocate_async(&none, mebibyte, stream);
  std::printf("allocate on the captured stream %d\n", in_capture);
  graph_id graph = nullptr;
  std::printf("end %d\n", cu.end_capture(stream, &graph));
  expect(graph != nullptr, "the capture is whole");
  expect(cu.calls("cuCtxRecordEvent") == marks, "no mark of all work while a stream is captured");
  if (!is_managed) must(cu.free(beside) == code::success, "a free");
  const device_pointer next = make(cu, mebibyte);
  if (is_managed) {
    (void)cu.synchronize();
    std::set<device_pointer> seen;
    for (int i = 0; i < 4; ++i) seen.insert(make(cu, mebibyte));
    expect(seen.contains(beside), "what was put off is free after the capture");
  }
  if (is_managed) expect(queries_alike(), "queries after the capture");
  must(cu.free(next) == code::success, "a free");
  must(cu.destroy_graph(graph) == code::success, "the graph");
  done(cu);
}

// The driver's queries have the same results for blocks as for plain memory.
void questions(const arguments& all) {
  const driver cu = load();
  const context_id context = start(cu);
  constexpr std::size_t size = 3'000'000;
  const device_pointer at = make(cu, size);
  expect(at % 256 == 0, "aligned to 256 bytes");
  ask_all(cu, context, at, size);
  const device_pointer other = make(cu, size);
  expect(ask(cu, pointer_attribute::buffer_id, at).value !=
             ask(cu, pointer_attribute::buffer_id, other).value,
         "each block has a number of its own");
  device_pointer pitched = 0;
  std::size_t pitch = 0;
  std::printf("pitch %d", cu.allocate_pitch(&pitched, &pitch, 1000, 30, 4));
  std::printf(" %zu, odd element %d\n", pitch, cu.allocate_pitch(&pitched, &pitch, 1000, 30, 5));
  const memory_sizes before = memory_of(cu);
  must(cu.free(make(cu, 64 * mebibyte)) == code::success, "a free");
  expect(memory_of(cu).free_bytes == before.free_bytes, "what is freed counts as free");
  expect(before.free_bytes <= before.total_bytes, "no more is free than there is");
  // Plain memory has no handle to retain; programs query it to decide how to share memory.
  physical_id handle = 0;
  const result_code retained = cu.retain_handle(&handle, reinterpret_cast<void*>(at));
  if (!all.empty()) expect(retained != code::success, "a block has no handle");
  // Freed memory is unknown again.
  must(cu.free(at) == code::success, "a free");
  device_pointer base = 0;
  std::printf("after the free: range %d, context %d, again %d, inside %d\n",
              cu.range(&base, nullptr, at), ask(cu, pointer_attribute::context, at).code,
              cu.free(at), cu.free(other + 512));
  int wanted[1] = {pointer_attribute::context};
  std::uint64_t home = 1;
  void* into[1] = {&home};
  std::printf("several %d %d\n", cu.attributes(1, wanted, into, at), static_cast<int>(home));
  must(cu.free(other) == code::success, "a free");
  done(cu);
}

// Calls with pointers of other allocations go to the driver.
void foreign(const arguments&) {
  const driver cu = load_started();
  const unsigned long long before = cu.calls("cuMemFree");
  std::printf("unknown %d, of the host %d\n", cu.free(0x1234'5000), cu.free(0x7fff'0000'0000));
  expect(cu.calls("cuMemFree") == before + 2, "unknown pointers reach the driver");
  std::printf("unknown, in order %d\n", cu.free_async(0x1234'5000, nullptr));
  // Memory of a pool that the program chose is the driver's.
  device_pointer at = 0;
  int own = 0;
  must(cu.allocate_from_pool(&at, 4096, reinterpret_cast<pool_id>(&own), nullptr) == code::success,
       "memory of a pool");
  std::printf("of a pool %d\n", cu.free_async(at, nullptr));
  must(cu.allocate_from_pool(&at, 4096, pool_of(cu, 0), nullptr) == code::success,
       "memory of the default pool");
  std::printf("of the default pool %d\n", cu.free(at));
  done(cu);
}

// The figures of the default pool, and what a trim leaves.
void pool_figures(const arguments& all) {
  const driver cu = load_started();
  const pool_id pool = pool_of(cu, 0);
  const auto figure = [&](int which) {
    std::uint64_t bytes = 1;
    must(cu.get_pool(pool, which, &bytes) == code::success, "a figure");
    return bytes;
  };
  const auto print = [&](const char* when) {
    const std::uint64_t used = figure(pool_attribute::used);
    std::printf("%s: used %llu\n", when, static_cast<unsigned long long>(used));
    expect(figure(pool_attribute::reserved) >= used, "what is used is held");
    expect(figure(pool_attribute::used_high) >= used, "a high one is as high as the figure");
  };
  print("nothing");
  device_pointer plain = make(cu, 3 * mebibyte);
  const device_pointer small = make_ordered(cu, 1000, nullptr);
  const device_pointer large = make_ordered(cu, 5 * mebibyte, nullptr);
  print("two blocks");
  must(cu.free_async(large, nullptr) == code::success, "a free");
  print("one block");
  if (!all.empty()) {
    expect(figure(pool_attribute::used_high) == 1024 + 5 * mebibyte, "the most that was used");
    expect(figure(pool_attribute::reserved_high) == figure(pool_attribute::reserved), "and held");
  }
  std::uint64_t zero = 0;
  must(cu.put_pool(pool, pool_attribute::used_high, &zero) == code::success, "a reset");
  expect(figure(pool_attribute::used_high) == 1024, "a high one starts again");
  must(cu.free_async(make_ordered(cu, 6 * mebibyte, nullptr), nullptr) == code::success, "a free");
  if (!all.empty())
    expect(figure(pool_attribute::used_high) == 1024 + 6 * mebibyte, "and has a new one");
  must(cu.free_async(small, nullptr) == code::success, "a free");
  must(cu.synchronize() == code::success, "all work");
  must(cu.trim_pool(pool, std::size_t{1} << 40) == code::success, "a trim of nothing");
  if (!all.empty()) expect(figure(pool_attribute::reserved) != 0, "what may stay stays");
  must(cu.trim_pool(pool, 0) == code::success, "a trim");
  std::printf("trimmed: held %d\n", figure(pool_attribute::reserved) != 0);
  int own = 0;
  std::uint64_t bytes = 1;
  std::printf("another pool %d", cu.get_pool(reinterpret_cast<pool_id>(&own), 7, &bytes));
  std::printf(" %llu, no value %d\n", static_cast<unsigned long long>(bytes),
              cu.get_pool(pool, pool_attribute::used, nullptr));
  must(cu.free(plain) == code::success, "a free");
  done(cu);
}

// A copy leaves its source readable, and a second copy from it gives the same.
void copies(const arguments&) {
  const driver cu = load_started();
  constexpr std::size_t size = 6 * mebibyte;
  const device_pointer source = make_filled(cu, size, 0x5a);
  const device_pointer first = make(cu, 2 * size);
  const device_pointer second = make(cu, size);
  must(cu.copy(first, source, size) == code::success, "a copy");
  must(cu.copy_async(second, source, size, nullptr) == code::success, "a second copy");
  must(cu.synchronize() == code::success, "all work");
  expect(holds(cu, source, size, 0x5a), "the source is as before");
  expect(holds(cu, first, size, 0x5a) && holds(cu, second, size, 0x5a), "both copies");
  must(cu.free(source) == code::success, "a free");
  (void)make_filled(cu, size, 0x00);
  must(cu.synchronize() == code::success, "all work");
  expect(holds(cu, first, size, 0x5a) && holds(cu, second, size, 0x5a), "both, without the source");
  done(cu);
}

// A buffer that grows by copying: the old one is only freed afterwards.
void copy_and_grow(const arguments&) {
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  std::size_t size = 5 * mebibyte + 1000;
  device_pointer at = make_filled(cu, size, 0x21, stream);
  for (int round = 0; round < 4; ++round) {
    const device_pointer larger = make(cu, 2 * size);
    result_code copied{};
    switch (round) {
      case 0: copied = cu.copy(larger, at, size); break;
      case 1: copied = cu.copy_async(larger, at, size, stream); break;
      case 2: copied = cu.copy_any(larger, at, size); break;
      default: copied = cu.copy_any_async(larger, at, size, stream); break;
    }
    std::printf("copy %d", copied);
    must(cu.synchronize() == code::success, "all work");
    std::printf(" free %d", cu.free(at));
    std::printf(" holds %d\n", holds(cu, larger, size, 0x21) ? 1 : 0);
    must(cu.fill(larger, 0x21, 2 * size, stream) == code::success, "a fill");
    at = larger;
    size *= 2;
  }
  std::printf("free %d\n", cu.free(at));
  no_misuse(cu);
}

// A buffer is doubled by a copy, over and over; both are looked at before the old one goes. Nothing
// is lost on the way.
void resize_loop(const arguments&) {
  const driver cu = load_started();
  constexpr std::size_t size = 24 * mebibyte;
  must(cu.free(make(cu, 3 * size)) == code::success, "memory");
  must(cu.synchronize() == code::success, "all work");
  const memory_sizes before = memory_of(cu);
  for (int round = 0; round < 12; ++round) {
    const auto value = static_cast<unsigned char>(round + 1);
    const device_pointer small = make_filled(cu, size, value);
    const device_pointer large = make(cu, 2 * size);
    std::printf("copy %d", cu.copy(large, small, size));
    std::printf(" holds %d %d", holds(cu, large, size, value), holds(cu, small, size, value));
    std::printf(" free %d", cu.free(small));
    std::printf(" holds %d", holds(cu, large, size, value));
    std::printf(" free %d\n", cu.free(large));
  }
  must(cu.synchronize() == code::success, "all work");
  expect(memory_of(cu).free_bytes >= before.free_bytes, "as much is free as before");
  no_misuse(cu);
}

// A program to which the source still belongs after the copy: it writes there, or only reads.
void copy_then_write(const arguments&) {
  const driver cu = load_started();
  constexpr std::size_t size = 4 * mebibyte;
  const device_pointer target = make(cu, size);
  const device_pointer source = make_filled(cu, size, 0x31);
  must(cu.copy(target, source, size) == code::success, "a copy");
  std::printf("write %d\n", cu.fill(source, 0x32, size, nullptr));
  must(cu.synchronize() == code::success, "all work");
  std::printf("target holds the copy %d\n", holds(cu, target, size, 0x31) ? 1 : 0);
}

void copy_then_read(const arguments&) {
  const driver cu = load_started();
  constexpr std::size_t size = 4 * mebibyte;
  const device_pointer target = make(cu, size);
  const device_pointer source = make_filled(cu, size, 0x41);
  must(cu.copy(target, source, size) == code::success, "a copy");
  std::printf("target %d\n", holds(cu, target, size, 0x41) ? 1 : 0);
  std::printf("source %d\n", holds(cu, source, size, 0x41) ? 1 : 0);
}

// Each device has memory of its own, also for threads that change between them; access granted to
// another device applies to memory mapped later.
void devices(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load();
  const context_id first = start(cu, 0);
  const device_pointer on_first = make(cu, mebibyte);
  const context_id second = start(cu, 1);
  const device_pointer on_second = make(cu, mebibyte);
  expect(context_of(cu, on_first) == first && context_of(cu, on_second) == second,
         "the device's context");
  // The second device, whose context is current, may use the first one's memory.
  std::printf("peer %d\n", cu.enable_peer(first, 0));
  must(cu.set_current(first) == code::success, "the first device");
  const device_pointer later = make(cu, 256 * mebibyte);
  const memory_location user{device_location, 1};
  // A large block may begin in memory that was mapped before, and ends in memory that was not.
  for (const device_pointer at : {on_first, later, later + 255 * mebibyte}) {
    flag_set rights = 0;
    if (is_managed)
      expect(cu.get_access(&rights, &user, at) == code::success && rights == 3, "a peer's rights");
  }
  // Freed where another device is current.
  must(cu.set_current(second) == code::success, "the second device");
  std::printf("free %d %d\n", cu.free(on_first), cu.free(later));
  must(cu.set_current(first) == code::success, "the first device");
  std::printf("free %d\n", cu.free(on_second));
  done(cu);
}

// Everything that can be used again is given first; then the driver's own error.
void short_of_memory(const arguments&) {
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  const auto [free_bytes, total_bytes] = memory_of(cu);
  device_pointer none = 0;
  std::printf("too much %d %d\n", cu.allocate(&none, total_bytes * 2),
              cu.allocate_async(&none, total_bytes * 2, stream));
  const std::size_t most = free_bytes / 4 * 3;
  for (int i = 0; i < 3; ++i) {
    const device_pointer at = make(cu, most);
    must(cu.fill(at, 1, mebibyte, stream) == code::success, "a fill");
    std::printf("most %d\n", cu.free(at));
    device_pointer ordered = 0;
    std::printf("in order %d", cu.allocate_async(&ordered, most, stream));
    std::printf(" %d\n", cu.free_async(ordered, stream));
    // Physical memory that the program makes itself finds room, too.
    const memory_properties like = device_memory();
    physical_id handle = 0;
    const std::size_t whole = most / (2 * mebibyte) * (2 * mebibyte);
    std::printf("physical %d", cu.create(&handle, whole, &like, 0));
    std::printf(" %d\n", cu.release(handle));
  }
  done(cu);
}

// The program's calls and libvmm.so's allocators in turn, each with three quarters of the device.
void another_library(const arguments& all) {
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  void* const library = dlopen(all.at(0).data(), RTLD_NOW);
  must(library != nullptr, "libvmm.so");
  int (*create)(const void*, void**) = exported("vmm_allocator_create", library);
  int (*allocate)(void*, std::uint64_t, std::int32_t, void*, void**) =
      exported("vmm_allocator_allocate", library);
  int (*free_block)(void*, void*) = exported("vmm_allocator_free", library);
  void* allocator = nullptr;
  must(create(nullptr, &allocator) == 0, "an allocator");
  const auto [free_bytes, total_bytes] = memory_of(cu);
  const std::size_t most = free_bytes / 4 * 3;
  for (int turn = 0; turn < 3; ++turn) {
    void* block = nullptr;
    std::printf("library %d", allocate(allocator, most, 0, nullptr, &block));
    std::printf(" %d\n", free_block(allocator, block));
    device_pointer at = 0;
    if (turn == 1) {
      std::printf("in order %d", cu.allocate_async(&at, most, stream));
      std::printf(" %d\n", cu.free_async(at, stream));
    } else {
      std::printf("plain %d", cu.allocate(&at, most));
      std::printf(" %d\n", cu.free(at));
    }
  }
  done(cu);
}

// Both pools of a device share one budget of 64 MiB: idle memory of one serves the other.
void budget(const arguments&) {
  const driver cu = load_started();
  const stream_id stream = make_stream(cu);
  device_pointer plain = 0;
  device_pointer ordered = 0;
  device_pointer small = 0;
  std::printf("plain %d", cu.allocate(&plain, 40 * mebibyte));
  std::printf(" ordered %d\n", cu.allocate_async(&ordered, 40 * mebibyte, stream));
  std::printf("free %d", cu.free(plain));
  std::printf(" ordered %d\n", cu.allocate_async(&ordered, 40 * mebibyte, stream));
  std::printf("plain %d", cu.allocate(&plain, 40 * mebibyte));
  std::printf(" small %d\n", cu.allocate(&small, 512));
  std::printf("free %d %d", cu.free(small), cu.free_async(ordered, stream));
  std::printf(" plain %d\n", cu.allocate(&plain, 60 * mebibyte));
  done(cu);
}

// A device that is reset has no memory any more, and gives new.
void reset(const arguments&) {
  const driver cu = load_started();
  const device_pointer at = make(cu, mebibyte);
  std::printf("reset %d\n", cu.reset(0));
  std::printf("gone %d\n", cu.free(at));
  start(cu);
  const device_pointer next = make_filled(cu, mebibyte, 9);
  expect(holds(cu, next, mebibyte, 9), "new memory");
  std::printf("free %d\n", cu.free(next));
  no_misuse(cu);
}

// Stream 0 is another stream in each thread: its memory is the driver's.
void per_thread(const arguments&) {
  const driver cu = load(find_per_thread_stream);
  start(cu);
  device_pointer at = 0;
  std::printf("allocate %d\n", cu.allocate_async(&at, 100'000, nullptr));
  std::printf("free %d\n", cu.free_async(at, nullptr));
  const device_pointer plain = make_filled(cu, 100'000, 3);
  std::printf("in order %d\n", cu.free_async(plain, nullptr));
  const stream_id stream = make_stream(cu);
  std::printf("on a stream %d", cu.allocate_async(&at, 100'000, stream));
  std::printf(" %d\n", cu.free_async(at, nullptr));
  done(cu);
}

// A growth that fails in the middle leaves all blocks as they were, and loses nothing.
void failed_growth(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load_started();
  const device_pointer first = make_filled(cu, 4 * mebibyte, 0x77);
  const std::size_t before = memory_of(cu).free_bytes;
  if (is_managed) {
    for (const char* call : {"cuMemMap", "cuMemSetAccess", "cuMemCreate"}) {
      cu.fail(call, code::out_of_memory, 1, false);
      device_pointer at = 0;
      const result_code made = cu.allocate(&at, 128 * mebibyte);
      expect(made == code::success || made == code::out_of_memory, "the driver's own answer");
      if (made == code::success) must(cu.free(at) == code::success, "a free");
    }
  }
  expect(holds(cu, first, 4 * mebibyte, 0x77), "live memory is as before");
  must(cu.synchronize() == code::success, "all work");
  must(cu.free(make(cu, mebibyte)) == code::success, "a free");
  const std::size_t after = memory_of(cu).free_bytes;
  expect(after + 4 * mebibyte >= before && after <= before + 4 * mebibyte, "nothing is lost");
  must(cu.free(first) == code::success, "a free");
  done(cu);
}

// How much of the device's memory is still taken when everything has been freed and the program
// goes on with little.
void kept(const arguments&) {
  const driver cu = load_started();
  std::vector<device_pointer> all_blocks;
  for (int i = 0; i < 32; ++i) all_blocks.push_back(make(cu, 40 * mebibyte));
  for (const device_pointer each : all_blocks) must(cu.free(each) == code::success, "a free");
  must(cu.synchronize() == code::success, "all work");
  for (int i = 0; i < 4; ++i) must(cu.free(make(cu, mebibyte)) == code::success, "a free");
  const unsigned long long made = cu.calls("cuMemCreate");
  const unsigned long long released = cu.calls("cuMemRelease");
  // Handles that were made first, and are kept, are smaller than those that go.
  std::printf("went back %d\n", made != 0 && released * 4 > made ? 1 : 0);
}

// A host that runs ahead of the device: what it has freed is used again before more is taken.
void run_ahead(const arguments& all) {
  const driver cu = load_started();
  if (!all.empty()) cu.manual(1);  // work finishes only when a call waits for it
  const stream_id stream = make_stream(cu);
  const auto [free_bytes, total_bytes] = memory_of(cu);
  const std::size_t size = free_bytes / 200;
  for (int i = 0; i < 600; ++i) {
    const device_pointer at = make(cu, size);
    must(cu.fill(at, 1, 4096, stream) == code::success, "a fill");
    must(cu.free(at) == code::success, "a free");
  }
  done(cu);
}

// Thousands of small blocks take little address space and no mapping each.
void small_blocks(const arguments& all) {
  const bool is_managed = !all.empty();
  const driver cu = load_started();
  const unsigned long long mapped = cu.calls("cuMemMap");
  const unsigned long long reserved = cu.calls("cuMemAddressReserve");
  std::vector<device_pointer> all_blocks;
  for (int i = 0; i < 4000; ++i) all_blocks.push_back(make(cu, 1000));
  if (is_managed) {
    expect(cu.calls("cuMemMap") - mapped < 20, "few mappings");
    expect(cu.calls("cuMemAddressReserve") - reserved < 5, "few reservations");
  }
  std::set<device_pointer> distinct(all_blocks.begin(), all_blocks.end());
  expect(distinct.size() == all_blocks.size(), "each block once");
  for (const device_pointer each : all_blocks) must(cu.free(each) == code::success, "a free");
  done(cu);
}

// ---- physical handles ---------------------------------------------------------------------------

// As expandable segments do it: create, map, use, unmap, release, over and over.
void handles(const arguments& all) {
  const bool is_caching = !all.empty();
  const driver cu = load_started();
  device_pointer base = 0;
  must(cu.reserve(&base, 8 * segment, 0, 0, 0) == code::success, "addresses");
  for (int round = 0; round < 10; ++round) {
    physical_id made[4] = {};
    for (std::size_t i = 0; i < 4; ++i) {
      const device_pointer at = base + i * segment;
      made[i] = make_physical(cu, segment);
      map_segment(cu, at, made[i]);
      const auto value = static_cast<unsigned char>(round + static_cast<int>(i));
      must(cu.fill(at, value, segment, nullptr) == code::success, "a fill");
      expect(holds(cu, at, 4096, value), "what was written");
    }
    must(cu.synchronize() == code::success, "all work");
    for (std::size_t i = 0; i < 4; ++i) {
      must(cu.unmap(base + i * segment, segment) == code::success, "an unmap");
      must(cu.release(made[i]) == code::success, "a release");
    }
  }
  if (is_caching) expect(cu.calls("cuMemCreate") == 4, "four handles for forty requests");
  // Released while it is mapped: it lives until the unmap, and is not reused until then.
  const physical_id mapped = make_physical(cu, segment);
  map_segment(cu, base, mapped);
  must(cu.release(mapped) == code::success, "a release");
  must(cu.fill(base, 0x66, segment, nullptr) == code::success, "a fill");
  const physical_id other = make_physical(cu, segment);
  map_segment(cu, base + segment, other);
  must(cu.fill(base + segment, 0x67, segment, nullptr) == code::success, "a fill");
  expect(holds(cu, base, 4096, 0x66), "memory that was released while it was mapped");
  must(cu.unmap(base, 2 * segment) == code::success, "an unmap");
  std::printf("again %d\n", cu.release(other));
  // Retained memory is free memory, and is released when memory is short.
  const auto [free_bytes, total_bytes] = memory_of(cu);
  const device_pointer most = make(cu, free_bytes - 4 * mebibyte);
  std::printf("most %d\n", cu.free(most));
  must(cu.unreserve(base, 8 * segment) == code::success, "the addresses");
  done(cu);
}

// PROGRAM is queried until it prints TEXT: while a handle and a block are in use, or afterwards.
void shown(const arguments& all) {
  must(all.size() == 2 || all.size() == 3, "PROGRAM TEXT [afterwards]");
  const driver cu = load_started();
  const device_pointer block = make(cu, segment);
  const physical_id handle = make_physical(cu, segment);
  if (all.size() == 3) {
    must(cu.release(handle) == code::success, "a release");
    must(cu.free(block) == code::success, "a free");
  }
  must(unsetenv("LD_PRELOAD") == 0, "the program that looks is none of ours");
  const std::string command = "'" + std::string(all[0]) + "' --json";
  std::string said;
  for (int turn = 0; turn < 500 && said.find(all[1]) == std::string::npos; ++turn) {
    said.clear();
    FILE* const from = popen(command.c_str(), "r");
    must(from != nullptr, "the program that looks");
    for (int each = std::fgetc(from); each != EOF; each = std::fgetc(from))
      said += static_cast<char>(each);
    (void)pclose(from);
  }
  std::printf("%s", said.c_str());
}

// A handle that may have other owners is never retained.
void shared_handles(const arguments&) {
  const driver cu = load_started();
  const memory_properties like = device_memory(1);
  const physical_id handle = make_physical(cu, segment, like);
  int descriptor = -1;
  std::printf("export %d\n", cu.export_handle(&descriptor, handle, 1, 0));
  must(cu.release(handle) == code::success, "a release");
  physical_id next = make_physical(cu, segment, like);
  expect(cu.calls("cuMemCreate") == 2, "exported memory is not handed out again");
  device_pointer base = 0;
  must(cu.reserve(&base, segment, 0, 0, 0) == code::success, "addresses");
  must(cu.map(base, segment, 0, next, 0) == code::success, "a mapping");
  physical_id retained = 0;
  std::printf("retain %d\n", cu.retain_handle(&retained, reinterpret_cast<void*>(base)));
  must(cu.unmap(base, segment) == code::success, "an unmap");
  std::printf("release %d %d\n", cu.release(next), cu.release(retained));
  next = make_physical(cu, segment, like);
  expect(cu.calls("cuMemCreate") == 3, "retained memory is not handed out again");
  std::printf("release %d\n", cu.release(next));
}

}  // namespace caller
