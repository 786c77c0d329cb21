// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How a program with the static runtime comes to the driver: dlopen, dlsym of the finder, and
// everything else by name, version and flags. No CUDA header is used.
#pragma once

#include <dlfcn.h>

#include "../../../adapters/preload/abi.h"
#include "words.h"

namespace caller {

using namespace vmm::preload;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// Ends the process where what a test needs is not there.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::printf("MISSING %s\n", what);
  std::fflush(stdout);
  std::_Exit(70);
}

struct driver {
  void* loaded = nullptr;
  result_code (*find)(const char*, void**, int, flag_set, int*) = nullptr;

  result_code (*init)(unsigned) = nullptr;
  result_code (*retain)(context_id*, device_id) = nullptr;
  result_code (*set_current)(context_id) = nullptr;
  result_code (*synchronize)() = nullptr;
  result_code (*allocate)(device_pointer*, std::size_t) = nullptr;
  result_code (*free)(device_pointer) = nullptr;
  result_code (*allocate_pitch)(device_pointer*, std::size_t*, std::size_t, std::size_t,
                                unsigned) = nullptr;
  result_code (*allocate_async)(device_pointer*, std::size_t, stream_id) = nullptr;
  result_code (*free_async)(device_pointer, stream_id) = nullptr;
  result_code (*allocate_from_pool)(device_pointer*, std::size_t, pool_id, stream_id) = nullptr;
  result_code (*default_pool)(pool_id*, device_id) = nullptr;
  result_code (*set_pool)(device_id, pool_id) = nullptr;
  result_code (*set_pool_access)(pool_id, const access_description*, std::size_t) = nullptr;
  result_code (*get_pool)(pool_id, int, void*) = nullptr;
  result_code (*put_pool)(pool_id, int, void*) = nullptr;
  result_code (*trim_pool)(pool_id, std::size_t) = nullptr;
  result_code (*info)(std::size_t*, std::size_t*) = nullptr;
  result_code (*total)(std::size_t*, device_id) = nullptr;
  result_code (*range)(device_pointer*, std::size_t*, device_pointer) = nullptr;
  result_code (*attribute)(void*, int, device_pointer) = nullptr;
  result_code (*attributes)(unsigned, int*, void**, device_pointer) = nullptr;
  result_code (*ipc)(ipc_handle*, device_pointer) = nullptr;
  result_code (*ipc_open)(device_pointer*, ipc_handle, unsigned) = nullptr;
  result_code (*ipc_close)(device_pointer) = nullptr;
  result_code (*export_range)(void*, device_pointer, std::size_t, int, flag_set) = nullptr;
  result_code (*enable_peer)(context_id, unsigned) = nullptr;
  result_code (*get_access)(flag_set*, const memory_location*, device_pointer) = nullptr;
  result_code (*reset)(device_id) = nullptr;
  result_code (*destroy_context)(context_id) = nullptr;
  result_code (*create_stream)(stream_id*, unsigned) = nullptr;
  result_code (*destroy_stream)(stream_id) = nullptr;
  result_code (*synchronize_stream)(stream_id) = nullptr;
  result_code (*wait_event)(stream_id, event_id, unsigned) = nullptr;
  result_code (*create_event)(event_id*, unsigned) = nullptr;
  result_code (*destroy_event)(event_id) = nullptr;
  result_code (*record_event)(event_id, stream_id) = nullptr;
  result_code (*begin_capture)(stream_id, int) = nullptr;
  result_code (*end_capture)(stream_id, graph_id*) = nullptr;
  result_code (*is_capturing)(stream_id, int*) = nullptr;
  result_code (*destroy_graph)(graph_id) = nullptr;
  result_code (*copy_any)(device_pointer, device_pointer, std::size_t) = nullptr;
  result_code (*copy_any_async)(device_pointer, device_pointer, std::size_t, stream_id) = nullptr;
  result_code (*copy)(device_pointer, device_pointer, std::size_t) = nullptr;
  result_code (*copy_async)(device_pointer, device_pointer, std::size_t, stream_id) = nullptr;
  result_code (*copy_in)(device_pointer, const void*, std::size_t, stream_id) = nullptr;
  result_code (*copy_out)(void*, device_pointer, std::size_t, stream_id) = nullptr;
  result_code (*fill)(device_pointer, unsigned char, std::size_t, stream_id) = nullptr;
  result_code (*reserve)(device_pointer*, std::size_t, std::size_t, device_pointer,
                         flag_set) = nullptr;
  result_code (*unreserve)(device_pointer, std::size_t) = nullptr;
  result_code (*create)(physical_id*, std::size_t, const memory_properties*, flag_set) = nullptr;
  result_code (*release)(physical_id) = nullptr;
  result_code (*map)(device_pointer, std::size_t, std::size_t, physical_id, flag_set) = nullptr;
  result_code (*unmap)(device_pointer, std::size_t) = nullptr;
  result_code (*set_access)(device_pointer, std::size_t, const access_description*,
                            std::size_t) = nullptr;
  result_code (*export_handle)(void*, physical_id, int, flag_set) = nullptr;
  result_code (*retain_handle)(physical_id*, void*) = nullptr;

  // The stub driver's controls.
  void (*manual)(int) = nullptr;
  void (*finish)() = nullptr;
  unsigned long long (*misuses)() = nullptr;
  unsigned long long (*calls)(const char*) = nullptr;
  void (*fail)(const char*, int, unsigned, bool) = nullptr;
  void (*on_call)(const char*, void (*)(void*), void*) = nullptr;
  unsigned long long (*stale)() = nullptr;
  int (*create_context)(context_id*, int) = nullptr;

  template <class Function>
  void get(Function*& into, const char* name, int version, flag_set flags) {
    void* found = nullptr;
    int why = 0;
    must(find(name, &found, version, flags, &why) == code::success && found != nullptr, name);
    into = reinterpret_cast<Function*>(found);
  }
  template <class Function>
  void control(Function*& into, const char* name) {
    into = reinterpret_cast<Function*>(dlsym(loaded, name));
    must(into != nullptr, name);
  }
};

/// As the static runtime of CUDA 12 and 13 does it, with stream 0 meaning what `flags` say. The
/// finder is that of the library `of`, where one is named.
[[nodiscard]] driver load(flag_set flags = find_legacy_stream, void* of = nullptr);
/// Starts the driver and makes the primary context of a device current.
context_id start(const driver& cu, device_id device = 0);
[[nodiscard]] inline driver load_started() {
  const driver cu = load();
  start(cu);
  return cu;
}

/// The stub driver saw no access to memory that is not there, and no race.
inline void no_misuse(const driver& cu) {
  (void)cu.synchronize();
  expect(cu.misuses() == 0, "no access to memory that is not there, and no race");
}

/// Memory of cuMemAlloc and of cuMemAllocAsync, a stream, and the device's memory; end the program
/// on failure.
[[nodiscard]] inline device_pointer make(const driver& cu, std::size_t size) {
  device_pointer at = 0;
  must(cu.allocate(&at, size) == code::success, "memory");
  return at;
}
[[nodiscard]] inline device_pointer make_ordered(const driver& cu, std::size_t size,
                                                 stream_id stream) {
  device_pointer at = 0;
  must(cu.allocate_async(&at, size, stream) == code::success, "memory");
  return at;
}
struct memory_sizes {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};
[[nodiscard]] inline memory_sizes memory_of(const driver& cu) {
  memory_sizes now;
  must(cu.info(&now.free_bytes, &now.total_bytes) == code::success, "cuMemGetInfo");
  return now;
}
[[nodiscard]] inline bool do_overlap(device_pointer one, device_pointer other, std::size_t size) {
  return one < other + size && other < one + size;
}
/// Whether `size` bytes can be read, and all are `value`.
[[nodiscard]] inline bool holds(const driver& cu, device_pointer at, std::size_t size,
                                unsigned char value) {
  std::vector<unsigned char> seen(size);
  return cu.copy_out(seen.data(), at, size, nullptr) == code::success && are_all(seen, value);
}
[[nodiscard]] inline stream_id make_stream(const driver& cu) {
  stream_id made = nullptr;
  must(cu.create_stream(&made, non_blocking_stream) == code::success, "a stream");
  return made;
}

}  // namespace caller
