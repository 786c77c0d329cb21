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
// Modes of capture; the first one forbids most.
constexpr int any_thread = 0;
constexpr int relaxed = 2;

/// Ends the process where what a test needs is not there.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::printf("MISSING %s\n", what);
  std::fflush(stdout);
  std::_Exit(70);
}

/// A function of any type, by its address.
struct any_function {
  void* at = nullptr;
  template <class Function>
  operator Function*() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(at);
  }
};

/// What a library exports, or the process where none is named; it has to be there.
[[nodiscard]] inline any_function exported(const char* name, void* library = RTLD_DEFAULT) {
  void* const found = dlsym(library, name);
  must(found != nullptr, name);
  return {found};
}

struct driver {
  using finder = result_code (*)(const char*, void**, int, flag_set, int*);

  /// As load() takes them.
  driver(flag_set meaning, void* of)
      : flags(meaning), first(exported("cuGetProcAddress_v2", of == nullptr ? loaded : of)) {}

  void* loaded = open();
  flag_set flags;
  finder first;
  finder find = get("cuGetProcAddress", first);

  result_code (*init)(unsigned) = get("cuInit");
  result_code (*retain)(context_id*, device_id) = get("cuDevicePrimaryCtxRetain");
  result_code (*set_current)(context_id) = get("cuCtxSetCurrent");
  result_code (*synchronize)() = get("cuCtxSynchronize");
  result_code (*allocate)(device_pointer*, std::size_t) = get("cuMemAlloc");
  result_code (*free)(device_pointer) = get("cuMemFree");
  result_code (*allocate_pitch)(device_pointer*, std::size_t*, std::size_t, std::size_t,
                                unsigned) = get("cuMemAllocPitch");
  result_code (*allocate_async)(device_pointer*, std::size_t, stream_id) = get("cuMemAllocAsync");
  result_code (*free_async)(device_pointer, stream_id) = get("cuMemFreeAsync");
  result_code (*allocate_from_pool)(device_pointer*, std::size_t, pool_id,
                                    stream_id) = get("cuMemAllocFromPoolAsync");
  result_code (*default_pool)(pool_id*, device_id) = get("cuDeviceGetDefaultMemPool");
  result_code (*set_pool)(device_id, pool_id) = get("cuDeviceSetMemPool");
  result_code (*set_pool_access)(pool_id, const access_description*,
                                 std::size_t) = get("cuMemPoolSetAccess");
  result_code (*get_pool)(pool_id, int, void*) = get("cuMemPoolGetAttribute");
  result_code (*put_pool)(pool_id, int, void*) = get("cuMemPoolSetAttribute");
  result_code (*trim_pool)(pool_id, std::size_t) = get("cuMemPoolTrimTo");
  result_code (*info)(std::size_t*, std::size_t*) = get("cuMemGetInfo");
  result_code (*total)(std::size_t*, device_id) = get("cuDeviceTotalMem");
  result_code (*range)(device_pointer*, std::size_t*, device_pointer) = get("cuMemGetAddressRange");
  result_code (*attribute)(void*, int, device_pointer) = get("cuPointerGetAttribute");
  result_code (*attributes)(unsigned, int*, void**, device_pointer) = get("cuPointerGetAttributes");
  result_code (*ipc)(ipc_handle*, device_pointer) = get("cuIpcGetMemHandle");
  result_code (*ipc_open)(device_pointer*, ipc_handle, unsigned) = get("cuIpcOpenMemHandle");
  result_code (*ipc_close)(device_pointer) = get("cuIpcCloseMemHandle");
  result_code (*export_range)(void*, device_pointer, std::size_t, int,
                              flag_set) = get("cuMemGetHandleForAddressRange");
  result_code (*enable_peer)(context_id, unsigned) = get("cuCtxEnablePeerAccess");
  result_code (*get_access)(flag_set*, const memory_location*,
                            device_pointer) = get("cuMemGetAccess");
  result_code (*reset)(device_id) = get("cuDevicePrimaryCtxReset");
  result_code (*destroy_context)(context_id) = get("cuCtxDestroy");
  result_code (*create_stream)(stream_id*, unsigned) = get("cuStreamCreate");
  result_code (*destroy_stream)(stream_id) = get("cuStreamDestroy");
  result_code (*synchronize_stream)(stream_id) = get("cuStreamSynchronize");
  result_code (*wait_event)(stream_id, event_id, unsigned) = get("cuStreamWaitEvent");
  result_code (*create_event)(event_id*, unsigned) = get("cuEventCreate");
  result_code (*destroy_event)(event_id) = get("cuEventDestroy");
  result_code (*record_event)(event_id, stream_id) = get("cuEventRecord");
  result_code (*begin_capture)(stream_id, int) = get("cuStreamBeginCapture");
  result_code (*end_capture)(stream_id, graph_id*) = get("cuStreamEndCapture");
  result_code (*is_capturing)(stream_id, int*) = get("cuStreamIsCapturing");
  result_code (*destroy_graph)(graph_id) = get("cuGraphDestroy");
  result_code (*copy_any)(device_pointer, device_pointer, std::size_t) = get("cuMemcpy");
  result_code (*copy_any_async)(device_pointer, device_pointer, std::size_t,
                                stream_id) = get("cuMemcpyAsync");
  result_code (*copy)(device_pointer, device_pointer, std::size_t) = get("cuMemcpyDtoD");
  result_code (*copy_async)(device_pointer, device_pointer, std::size_t,
                            stream_id) = get("cuMemcpyDtoDAsync");
  result_code (*copy_out)(void*, device_pointer, std::size_t, stream_id) = get("cuMemcpyDtoHAsync");
  result_code (*fill)(device_pointer, unsigned char, std::size_t,
                      stream_id) = get("cuMemsetD8Async");
  result_code (*reserve)(device_pointer*, std::size_t, std::size_t, device_pointer,
                         flag_set) = get("cuMemAddressReserve");
  result_code (*unreserve)(device_pointer, std::size_t) = get("cuMemAddressFree");
  result_code (*create)(physical_id*, std::size_t, const memory_properties*,
                        flag_set) = get("cuMemCreate");
  result_code (*release)(physical_id) = get("cuMemRelease");
  result_code (*map)(device_pointer, std::size_t, std::size_t, physical_id,
                     flag_set) = get("cuMemMap");
  result_code (*unmap)(device_pointer, std::size_t) = get("cuMemUnmap");
  result_code (*set_access)(device_pointer, std::size_t, const access_description*,
                            std::size_t) = get("cuMemSetAccess");
  result_code (*export_handle)(void*, physical_id, int,
                               flag_set) = get("cuMemExportToShareableHandle");
  result_code (*retain_handle)(physical_id*, void*) = get("cuMemRetainAllocationHandle");

  // The stub driver's controls.
  void (*manual)(int) = control("vmm_standin_manual");
  void (*finish)() = control("vmm_standin_finish");
  unsigned long long (*misuses)() = control("vmm_standin_misuses");
  unsigned long long (*calls)(const char*) = control("vmm_standin_calls");
  void (*fail)(const char*, int, unsigned, bool) = control("vmm_standin_fail");
  void (*on_call)(const char*, void (*)(void*), void*) = control("vmm_standin_on_call");
  unsigned long long (*stale)() = control("vmm_standin_stale");
  int (*create_context)(context_id*, int) = control("vmm_standin_create_context");

 private:
  [[nodiscard]] static void* open() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    must(library != nullptr, "libcuda.so.1");
    return library;
  }
  [[nodiscard]] any_function get(const char* name, finder by) const {
    any_function found;
    int why = 0;
    must(by(name, &found.at, 12000, flags, &why) == code::success && found.at != nullptr, name);
    return found;
  }
  [[nodiscard]] any_function get(const char* name) const { return get(name, find); }
  [[nodiscard]] any_function control(const char* name) const { return exported(name, loaded); }
};

/// As the static runtime of CUDA 12 and 13 does it, with stream 0 meaning what `flags` say. The
/// finder is that of the library `of`, where one is named.
[[nodiscard]] inline driver load(flag_set flags = find_legacy_stream, void* of = nullptr) {
  return {flags, of};
}
/// Starts the driver and makes the primary context of a device current.
inline context_id start(const driver& cu, device_id device = 0) {
  context_id context = nullptr;
  must(cu.init(0) == code::success, "cuInit");
  must(cu.retain(&context, device) == code::success, "cuDevicePrimaryCtxRetain");
  must(cu.set_current(context) == code::success, "cuCtxSetCurrent");
  return context;
}
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
/// The last of a word that saw none.
inline void done(const driver& cu) {
  no_misuse(cu);
  std::printf("done\n");
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
[[nodiscard]] inline device_pointer make_filled(const driver& cu, std::size_t size,
                                                unsigned char value, stream_id stream = nullptr) {
  const device_pointer at = make(cu, size);
  must(cu.fill(at, value, size, stream) == code::success, "a fill");
  return at;
}
/// Physical memory of the first device.
[[nodiscard]] inline memory_properties device_memory(int handle_types = 0) {
  memory_properties like{};
  like.type = 1;
  like.handle_types = handle_types;
  like.location = {device_location, 0};
  return like;
}
[[nodiscard]] inline physical_id make_physical(const driver& cu, std::size_t size,
                                               const memory_properties& like = device_memory()) {
  physical_id made = 0;
  must(cu.create(&made, size, &like, 0) == code::success, "physical memory");
  return made;
}
[[nodiscard]] inline pool_id pool_of(const driver& cu, device_id device) {
  pool_id pool = nullptr;
  must(cu.default_pool(&pool, device) == code::success, "the default pool");
  return pool;
}
[[nodiscard]] inline context_id context_of(const driver& cu, device_pointer at) {
  context_id home = nullptr;
  must(cu.attribute(&home, pointer_attribute::context, at) == code::success, "a context");
  return home;
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
