// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The plain functions of vmm_allocator.h, which frameworks load by name: over the allocator that
// vmm_plugin_use() names, else over that of the process.
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>

#include "errors.hpp"
#include "vmm_allocator.h"

#include "allocator_object.hpp"
#include "device_memory.hpp"

import vmm.base;

namespace vmm_c {
namespace {

std::atomic<vmm_allocator*> plugin_in_use = nullptr;
std::atomic<vmm_plugin_failure> plugin_failure = nullptr;

// That of the process, which is never destroyed.
vmm_allocator* allocator_of_process() noexcept {
  static vmm_allocator* const made = [] {
    vmm_allocator* out = nullptr;
    vmm_allocator_options options;
    (void)vmm_allocator_options_init(&options, sizeof(options));
    options.read_environment = 1;
    (void)vmm_allocator_create(&options, &out);
    return out;
  }();
  return made;
}

vmm_allocator* plugin_allocator() noexcept {
  vmm_allocator* const chosen = plugin_in_use.load(std::memory_order_acquire);
  return chosen != nullptr ? chosen : allocator_of_process();
}

void say(const char* call, const void* at) noexcept {
  vmm::without_write_signals(
      [&] { (void)std::fprintf(stderr, "vmm: %s(%p): %s\n", call, at, vmm_last_error_text()); });
}

// Begins like PyTorch's own error, which programs match before they retry with less memory.
std::array<char, 640> text_of_failure(vmm_status failed) {
  const bool is_short = failed == VMM_ERROR_OUT_OF_MEMORY || failed == VMM_ERROR_OVER_BUDGET ||
                        failed == VMM_ERROR_OUT_OF_ADDRESSES;
  std::array<char, 640> text;
  (void)std::snprintf(text.data(), text.size(), "%s%s", is_short ? "CUDA out of memory. " : "",
                      vmm_last_error_text());
  return text;
}

}  // namespace
}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_plugin_use(vmm_allocator* allocator) VMM_NOEXCEPT {
  plugin_in_use.store(allocator, std::memory_order_release);
  return VMM_SUCCESS;
}

vmm_status vmm_plugin_set_failure(vmm_plugin_failure failure) VMM_NOEXCEPT {
  plugin_failure.store(failure, std::memory_order_release);
  return VMM_SUCCESS;
}

// Not VMM_NOEXCEPT: what the framework's function throws goes through.
void* vmm_plugin_malloc(int64_t size_bytes, int32_t device, vmm_stream stream) {
  void* at = nullptr;
  if (size_bytes == 0) return at;
  const auto size = static_cast<std::uint64_t>(size_bytes);
  const vmm_status done = vmm_allocator_allocate(plugin_allocator(), size, device, stream, &at);
  if (done == VMM_SUCCESS) return at;
  const vmm_plugin_failure raise = plugin_failure.load(std::memory_order_acquire);
  if (raise != nullptr)
    raise("vmm_plugin_malloc", "vmm_allocator.h", 0, text_of_failure(done).data());
  return nullptr;
}

void vmm_plugin_free(void* at, uint64_t size_bytes, int32_t device,
                     vmm_stream stream) VMM_NOEXCEPT {
  (void)size_bytes;
  (void)device;
  (void)stream;
  if (vmm_allocator_free(plugin_allocator(), at) != VMM_SUCCESS) say("vmm_plugin_free", at);
}

void vmm_plugin_record_stream(void* at, vmm_stream stream) VMM_NOEXCEPT {
  if (vmm_allocator_record_stream(plugin_allocator(), at, stream) != VMM_SUCCESS)
    say("vmm_plugin_record_stream", at);
}

void vmm_plugin_init(int32_t device_count) VMM_NOEXCEPT { (void)device_count; }

void vmm_plugin_empty_cache(void) VMM_NOEXCEPT {
  const vmm_status done = on_allocator(plugin_allocator(), [](allocator_object& on) {
    // While captures are announced nothing is waited for, as in PyTorch's own.
    (void)on_devices(on, VMM_ALL_DEVICES, [&](device_memory& device, std::int32_t) {
      if (!on.captures()) (void)device.wait_for_frees(false);
      return VMM_SUCCESS;
    });
    return trim(on, VMM_ALL_DEVICES, 0, nullptr);
  });
  if (done != VMM_SUCCESS) say("vmm_plugin_empty_cache", nullptr);
}

void vmm_plugin_memory_fraction(double fraction, int32_t device) VMM_NOEXCEPT {
  vmm_allocator* const allocator = plugin_allocator();
  const vmm_status done = run([&] {
    return on_allocator(allocator, [&](allocator_object& on) -> vmm_status {
      if (!(fraction >= 0.0))  // not a number, too
        return fail(VMM_ERROR_INVALID_ARGUMENT, "a fraction of memory is a number from 0 to 1");
      device_memory* there = nullptr;
      if (const vmm_status got = need_device(on, device, there); got != VMM_SUCCESS) return got;
      const auto memory = there->driver().query_memory(there->driver().home());
      if (!memory) return fail(memory.error());
      const double bytes = fraction * static_cast<double>(memory->total_bytes);
      there->set_limit(fraction >= 1.0 ? 0 : static_cast<std::uint64_t>(bytes) | 1U);
      return VMM_SUCCESS;
    });
  });
  if (done != VMM_SUCCESS) say("vmm_plugin_memory_fraction", nullptr);
}

void* vmm_plugin_base(void* at, uint64_t* size_bytes) VMM_NOEXCEPT {
  vmm_allocation found{};
  if (vmm_allocator_find(plugin_allocator(), at, &found) != VMM_SUCCESS) return nullptr;
  if (size_bytes != nullptr) *size_bytes = found.size_bytes;
  return found.base;
}

}  // extern "C"
