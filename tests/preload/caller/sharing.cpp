// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes and devices reach: legacy IPC and DMA-BUF.
#include "../../../adapters/preload/nvml.h"
#include "driver.h"
#include "two_processes.h"
#include "words.h"

namespace caller {
namespace {

// How many of `size` bytes are not `value`.
std::size_t count_others(const driver& cu, device_pointer at, std::size_t size,
                         unsigned char value) {
  std::vector<unsigned char> seen(size);
  must(cu.copy_out(seen.data(), at, size, nullptr) == code::success, "a read");
  must(cu.synchronize() == code::success, "all work");
  return size - static_cast<std::size_t>(std::count(seen.begin(), seen.end(), value));
}

bool is_mapped(const driver& cu, device_pointer at) {
  constexpr int memory_type = 2;
  unsigned type = 0;
  return cu.attribute(&type, memory_type, at) == code::success;
}

// How many descriptors of exported memory and how many sockets the process has.
int count_shared() {
  int count = 0;
  for (int number = 0; number < 256; ++number) {
    char link[64];
    char target[256] = {};
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", number);
    if (readlink(link, target, sizeof target - 1) <= 0) continue;
    const std::string_view what(target);
    const bool is_shared = what.find("vmm-standin") != what.npos || what.starts_with("socket:");
    count += is_shared ? 1 : 0;
  }
  return count;
}

void show_memory(const driver& cu) {
  const auto [free_bytes, total_bytes] = memory_of(cu);
  std::printf("free %zu of %zu\n", free_bytes / mebibyte, total_bytes / mebibyte);
}

struct library_calls {
  template <class... Parameters>
  int call(const char* name, Parameters... parameters) const {
    int (*const found)(Parameters...) = exported(name, handle);
    return found(parameters...);
  }
  template <class Row>
  void show_rows(nvml::device_id device, const char* form) const {
    std::array<Row, 4> rows{};
    unsigned count = 0;
    const std::string name = std::string("nvmlDeviceGetComputeRunningProcesses") + form;
    expect(call(name.c_str(), device, &count, static_cast<Row*>(nullptr)) == 7, "a count first");
    expect(call(name.c_str(), device, &(count = 4), rows.data()) == 0 && count == 2, "two rows");
    std::printf(" %llu+%llu", mebibytes(rows[0].used_bytes), mebibytes(rows[1].used_bytes));
  }
  // Of each device: total, free and used, in both forms; used by this process and the other.
  void show() const {
    for (unsigned index = 0; index < 3; ++index) {
      nvml::device_id device = nullptr;
      nvml::memory one{};
      nvml::memory_v2 two{};
      (void)call("nvmlDeviceGetHandleByIndex_v2", index, &device);
      expect(call("nvmlDeviceGetMemoryInfo_v2", device, &two) == 25, "a version is needed");
      two.version = nvml::memory_v2_version;
      expect(call("nvmlDeviceGetMemoryInfo", device, &one) == 0, "memory");
      expect(call("nvmlDeviceGetMemoryInfo_v2", device, &two) == 0, "memory in its second form");
      expect(one.total_bytes == two.total_bytes && one.free_bytes == two.free_bytes &&
                 one.used_bytes == two.used_bytes,
             "one answer in both forms");
      std::printf("%u: %llu-%llu=%llu %llu;", index, mebibytes(one.total_bytes),
                  mebibytes(one.free_bytes), mebibytes(one.used_bytes),
                  mebibytes(two.reserved_bytes));
      show_rows<nvml::process_v1>(device, "");
      show_rows<nvml::process>(device, "_v2");
      show_rows<nvml::process>(device, "_v3");
      std::printf("\n");
    }
  }
  static unsigned long long mebibytes(std::uint64_t bytes) { return bytes / mebibyte; }

  void* handle = dlopen("libnvidia-ml.so.1", RTLD_NOW);
};

void make_in_library(const std::string& path, std::uint64_t size_bytes) {
  const library_calls other{dlopen(path.c_str(), RTLD_NOW)};
  void* allocator = nullptr;
  void* block = nullptr;
  must(other.handle != nullptr, "libvmm.so");
  must(other.call("vmm_allocator_create", static_cast<const void*>(nullptr), &allocator) == 0 &&
           other.call("vmm_allocator_allocate", allocator, size_bytes, 0,
                      static_cast<void*>(nullptr), &block) == 0,
       "a block of libvmm.so");
}

}  // namespace

// The requests of a process that shares its memory, and those that fail.
void ipc(const arguments&) {
  const driver cu = load_started();
  const device_pointer at = make(cu, mebibyte, 1);
  unsigned capable = 7;
  unsigned long long kinds = 0;
  std::printf("capable %d", cu.attribute(&capable, pointer_attribute::legacy_ipc_capable, at));
  std::printf(" %u, kinds %d", capable,
              cu.attribute(&kinds, pointer_attribute::allowed_handle_types, at));
  std::printf(" %llu\n", kinds);
  ipc_handle handle{};
  std::printf("export %d\n", cu.ipc(&handle, at));
  std::printf("free %d\n", cu.free(at));
  const device_pointer ordered = make_ordered(cu, mebibyte, nullptr);
  std::printf("unknown %d\n", cu.ipc(&handle, 0x1234'5000));
  std::printf("close unknown %d\n", cu.ipc_close(0x1234'5000));
  const ipc_handle foreign{};
  device_pointer opened = 0;
  std::printf("open foreign %d\n", cu.ipc_open(&opened, foreign, 1));
  std::printf("free %d\n", cu.free_async(ordered, nullptr));
}

// The same memory at two addresses, with its neighbours separate.
void ipc_within(const arguments&) {
  const driver cu = load();
  const context_id context = start(cu);
  const device_pointer before = make(cu, 3000, 0x11);
  const device_pointer small = make(cu, 5000, 0x22);
  const device_pointer after = make(cu, 7000, 0x33);
  const device_pointer large = make(cu, 70 * mebibyte, 0x44);
  std::size_t size = 5000;
  for (const device_pointer at : {small, large}) {
    const ipc_handle handle = handle_of(cu, at + 100);
    const ipc_handle again = handle_of(cu, at);
    expect(std::string_view(handle.bytes, 64) == std::string_view(again.bytes, 64),
           "the same handle");
    const device_pointer there = opened(cu, handle);
    expect(opened(cu, handle) == there, "a second open");
    expect(there != at && there % 256 == at % 256, "another address");
    device_pointer base = 0;
    std::size_t bytes = 0;
    expect(cu.range(&base, &bytes, there + size / 2) == code::success, "its range");
    expect(base == there && bytes == size, "its base and size");
    expect(context_of(cu, there) == context, "its context");
    must(cu.fill(there, 0x55, size, nullptr) == code::success, "a fill");
    must(cu.synchronize() == code::success, "all work");
    expect(count_others(cu, at, size, 0x55) == 0, "what was written at the other address");
    expect(cu.ipc_close(there) == code::success, "the first close");
    expect(count_others(cu, there, size, 0x55) == 0, "it is still open");
    expect(cu.ipc_close(there) == code::success, "the last close");
    expect(cu.ipc_close(there) != code::success, "one too many");
    size = 70 * mebibyte;
  }
  expect(count_others(cu, before, 3000, 0x11) == 0, "the neighbour before");
  expect(count_others(cu, after, 7000, 0x33) == 0, "the neighbour after");
  for (const device_pointer each : {before, small, after, large})
    must(cu.free(each) == code::success, "a free");
  done(cu);
}

// Another process gets what the block held.
void ipc_child(const arguments&) {
  const driver cu = load();
  both_ways pipes{};
  const std::size_t sizes[] = {3000, 5 * mebibyte};
  const pid_t child = start_child(pipes, [&](int from, int to) {
    start(cu);
    for (const std::size_t size : sizes) {
      const device_pointer at = opened(cu, hear<ipc_handle>(from));
      say(to, count_others(cu, at, size, 0x66));
      must(cu.ipc_close(at) == code::success, "a close");
    }
  });
  start(cu);
  for (const std::size_t size : sizes) {
    const device_pointer at = make(cu, size, 0x66);
    say(pipes.to_child[1], handle_of(cu, at));
    std::printf("other bytes %zu\n", hear<std::size_t>(pipes.to_parent[0]));
    must(cu.free(at) == code::success, "a free");
  }
  end_child(child);
}

// A block that was freed, and a process that is gone, share nothing any more; what is open stays.
void ipc_gone(const arguments&) {
  const driver cu = load();
  both_ways pipes{};
  const pid_t child = start_child(pipes, [&](int from, int to) {
    start(cu);
    const device_pointer freed = make(cu, mebibyte, 1);
    const device_pointer live = make(cu, mebibyte, 0x77);
    for (const device_pointer each : {freed, live}) say(to, handle_of(cu, each));
    must(cu.free(freed) == code::success, "a free");
    say(to, 1);
    (void)hear<int>(from);
  });
  start(cu);
  const auto freed = hear<ipc_handle>(pipes.to_parent[0]);
  const auto live = hear<ipc_handle>(pipes.to_parent[0]);
  (void)hear<int>(pipes.to_parent[0]);
  device_pointer at = 0;
  std::printf("freed %d\n", cu.ipc_open(&at, freed, 1));
  std::printf("live %d\n", cu.ipc_open(&at, live, 1));
  say(pipes.to_child[1], 1);
  end_child(child);
  std::printf("other bytes %zu\n", count_others(cu, at, mebibyte, 0x77));
  std::printf("close %d\n", cu.ipc_close(at));
  std::printf("gone %d\n", cu.ipc_open(&at, live, 1));
}

// A block that is closed while another thread captures does not spoil the capture, and is unmapped
// after it.
void ipc_captured(const arguments&) {
  const driver cu = load();
  const context_id context = start(cu);
  const device_pointer at = make(cu, mebibyte, 1);
  const ipc_handle handle = handle_of(cu, at);
  device_pointer there = opened(cu, handle);
  const stream_id stream = make_stream(cu);
  must(cu.begin_capture(stream, any_thread) == code::success, "a capture");
  std::thread([&] {
    must(cu.set_current(context) == code::success, "the context");
    std::printf("close %d\n", cu.ipc_close(there));
    std::printf("close again %d\n", cu.ipc_close(there));
  }).join();
  graph_id graph = nullptr;
  std::printf("capture %d", cu.end_capture(stream, &graph));
  std::printf(" %s\n", graph != nullptr ? "whole" : "spoiled");
  std::printf("mapped %d\n", is_mapped(cu, there) ? 1 : 0);
  there = opened(cu, handle);
  std::printf("close %d, mapped %d\n", cu.ipc_close(there), is_mapped(cu, there) ? 1 : 0);
}

// Each context opens a block for itself, at an address of its own.
void ipc_contexts(const arguments&) {
  const driver cu = load();
  const context_id first = start(cu, 0);
  const device_pointer at = make(cu, mebibyte, 0x42);
  const ipc_handle handle = handle_of(cu, at);
  const device_pointer here = opened(cu, handle);
  const context_id second = start(cu, 1);
  const device_pointer there = opened(cu, handle);
  expect(there != here, "an address of its own");
  expect(context_of(cu, here) == first && context_of(cu, there) == second, "their contexts");
  std::printf("close %d", cu.ipc_close(here));
  std::printf(", mapped %d %d\n", is_mapped(cu, here) ? 1 : 0, is_mapped(cu, there) ? 1 : 0);
  std::printf("close %d", cu.ipc_close(there));
  std::printf(", mapped %d\n", is_mapped(cu, there) ? 1 : 0);
}

// A forked child does not keep what its parent shares.
void ipc_fork(const arguments&) {
  const driver cu = load_started();
  const int before = count_shared();
  const device_pointer at = make(cu, 3 * mebibyte, 1);
  const ipc_handle handle = handle_of(cu, at);
  expect(count_shared() > before, "descriptors of what is shared");
  in_child([&] {
    std::printf("kept by the child %d\n", count_shared() - before);
    return 0;
  });
  device_pointer there = 0;
  std::printf("still shared %d\n", cu.ipc_open(&there, handle, 1));
}

// A block that went with its device is not shared any more, and its memory is let go.
void ipc_reset(const arguments&) {
  const driver cu = load_started();
  const device_pointer at = make(cu, 5 * mebibyte, 0x42);
  const ipc_handle handle = handle_of(cu, at);
  must(cu.reset(0) == code::success, "a reset");
  start(cu);
  device_pointer other = 0;
  std::printf("after the reset %d\n", cu.ipc_open(&other, handle, 1));
}

// A descriptor for network cards, of pages around a block.
void dma_buf(const arguments&) {
  const driver cu = load_started();
  for (const std::size_t size : {std::size_t{4096}, 3 * mebibyte, 90 * mebibyte}) {
    const device_pointer at = make(cu, size, 1);
    const device_pointer begin = at / 4096 * 4096;
    int descriptor = -1;
    constexpr int kind = 1;
    const std::size_t bytes = (at - begin + size + 4095) / 4096 * 4096;
    std::printf("dma_buf %d", cu.export_range(&descriptor, begin, bytes, kind, 0));
    std::printf(" %s\n", descriptor >= 0 ? "a descriptor" : "none");
    if (descriptor >= 0) close(descriptor);
    must(cu.free(at) == code::success, "a free");
  }
}

// ---- tenants of an owner ------------------------------------------------------------------------

// The device is what the owner lets this tenant have.
void market(const arguments&) {
  const driver cu = load_started();
  const auto show_device = [&] {
    std::size_t total_bytes = 0;
    std::printf("device %d", cu.total(&total_bytes, 0));
    std::printf(" %zu\n", total_bytes / mebibyte);
  };
  device_pointer at = 0;
  device_pointer more = 0;
  show_device();
  show_memory(cu);
  show_device();
  std::printf("allocate %d\n", cu.allocate(&at, 40 * mebibyte));
  if (at != 0) {
    must(cu.fill(at, 5, 40 * mebibyte, nullptr) == code::success, "a fill");
    expect(holds(cu, at, 40 * mebibyte, 5), "memory of the owner");
  }
  show_memory(cu);
  std::printf("too much %d\n", cu.allocate(&more, 100 * mebibyte));
  std::printf("free %d\n", cu.free(at));
  show_memory(cu);
  if (at != 0) {
    const device_pointer odd[] = {make(cu, 300), make(cu, 300), make(cu, 300)};
    for (const device_pointer each : odd) must(cu.free(each) == code::success, "a free");
    const auto [free_bytes, total_bytes] = memory_of(cu);
    expect(free_bytes == total_bytes, "what is freed is free, to the byte");
  }
  done(cu);
}

// The device as NVML shows it: before the driver is loaded, and once a tenant of this process holds
// 40 MiB: this library's, or that of libvmm.so, which a word names. Or once the owner refused it.
void market_nvml(const arguments& all) {
  const library_calls calls;
  must(calls.handle != nullptr, "libnvidia-ml.so.1");
  calls.show();
  const driver cu = load_started();
  if (all.empty()) {
    device_pointer at = 0;
    (void)cu.allocate(&at, 40 * mebibyte);
  } else {
    make_in_library(std::string(all.at(0)), 40 * mebibyte);
  }
  calls.show();
  std::printf("free %zu\n", memory_of(cu).free_bytes / mebibyte);
  calls.show();
}

// Memory of both libraries' tenants, of that first which the second word names.
void market_both(const arguments& all) {
  const driver cu = load_started();
  for (const bool is_library : {all.at(1) == "library", all.at(1) != "library"}) {
    if (is_library)
      make_in_library(std::string(all.at(0)), 20 * mebibyte);
    else
      (void)make(cu, 20 * mebibyte);
    show_memory(cu);
  }
  device_pointer at = 0;
  std::printf("more %d\n", cu.allocate(&at, 40 * mebibyte));
}

// What one process has freed serves the other, whose turn comes once: an owner leaves a tenant in
// peace that requests again what it gave.
void market_pair(const arguments&) {
  ::alarm(60);
  both_ways pipes;
  const pid_t child = start_child(pipes, [&](int from, int to) {
    const driver cu = load_started();
    const device_pointer at = make(cu, 40 * mebibyte, 7);
    must(cu.free(at) == code::success, "a free");
    say(to, 1);
    (void)hear<int>(from);
  });
  const driver cu = load_started();
  (void)hear<int>(pipes.to_parent[0]);
  device_pointer at = 0;
  std::printf("allocate %d\n", cu.allocate(&at, 60 * mebibyte));
  if (at != 0) std::printf("free %d\n", cu.free(at));
  say(pipes.to_child[1], 1);
  end_child(child);
  no_misuse(cu);
}

}  // namespace caller
