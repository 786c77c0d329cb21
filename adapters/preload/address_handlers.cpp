// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Handlers of the calls that query memory and addresses, and of legacy IPC.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "accounts.h"
#include "cache.h"
#include "handlers.h"
#include "ipc.h"
#include "process.h"
#include "serve.h"
#include "settings.h"

namespace vmm::preload::handlers {

// ---- questions ----------------------------------------------------------------------------------

result_code memory_info(const call_site& site, std::size_t* free_bytes, std::size_t* total_bytes) {
  const result_code answer = site(free_bytes, total_bytes);
  if (answer != code::success || free_bytes == nullptr) return answer;
  if (is_managed()) {
    managed::device_share share;
    if (managed::find_share(share)) {
      if (total_bytes != nullptr) {
        share = share.within(*total_bytes);
        *total_bytes = share.total_bytes;
      }
      *free_bytes = share.free_bytes;
      return answer;
    }
    *free_bytes += managed::reusable_bytes();
  }
  if (is_caching()) *free_bytes += cache::kept_on(accounts::current_device());
  if (total_bytes != nullptr) *free_bytes = std::min(*free_bytes, *total_bytes);
  return answer;
}

result_code device_total(const call_site& site, std::size_t* total_bytes, device_id device) {
  const result_code answer = site(total_bytes, device);
  if (answer != code::success || total_bytes == nullptr || !is_managed()) return answer;
  const std::uint64_t share_bytes = managed::share_of(device);
  if (share_bytes != 0) *total_bytes = std::min<std::size_t>(*total_bytes, share_bytes);
  return answer;
}

namespace {

// The object at a queried address: a block of a pool, one that another process shared, free memory
// of a pool, or memory of the driver.
managed::place look_at(device_pointer at, managed::block_facts& into) noexcept {
  if (is_managed()) {
    const managed::place lies = managed::find(at, into);
    if (lies != managed::place::elsewhere) return lies;
  }
  ipc::opened_range opened;
  if (!ipc::find(at, opened)) return managed::place::elsewhere;
  into = {opened.base, opened.size, opened.number, opened.context, nullptr, false};
  return managed::place::in_block;
}

// The driver's result for plain memory. False: its result for the block is the same.
bool answer_for_block(const managed::block_facts& block, int attribute, void* data) noexcept {
  switch (attribute) {
    case pointer_attribute::context: std::memcpy(data, &block.context, sizeof block.context); break;
    case pointer_attribute::buffer_id: {
      // The driver's numbers begin at one; the library's have a bit that these do not reach.
      const std::uint64_t number = block.number | std::uint64_t{1} << 62;
      std::memcpy(data, &number, sizeof number);
      break;
    }
    case pointer_attribute::range_start: std::memcpy(data, &block.base, sizeof block.base); break;
    case pointer_attribute::range_size: std::memcpy(data, &block.size, sizeof block.size); break;
    case pointer_attribute::memory_pool: std::memcpy(data, &block.pool, sizeof block.pool); break;
    default: return false;
  }
  return true;
}

// After the driver's result, in its width of the attribute: queries of shareable kinds get the
// values of plain memory.
void change_for_block(const managed::block_facts& block, int attribute, void* data) noexcept {
  const bool is_capable = !block.is_ordered && chosen_settings().ipc == ipc_rule::share;
  const auto lowest = static_cast<unsigned char>(
      attribute == pointer_attribute::legacy_ipc_capable && is_capable ? 1 : 0);
  if (attribute == pointer_attribute::legacy_ipc_capable ||
      attribute == pointer_attribute::allowed_handle_types) {
    std::memcpy(data, &lowest, sizeof lowest);
  }
}

}  // namespace

result_code address_range(const call_site& site, device_pointer* base, std::size_t* size,
                          device_pointer at) {
  managed::block_facts block;
  const managed::place lies = look_at(at, block);
  if (lies == managed::place::elsewhere) return site(base, size, at);
  if (lies == managed::place::in_free_memory) return site(base, size, nobodys_address);
  if (base != nullptr) *base = block.base;
  if (size != nullptr) *size = block.size;
  return code::success;
}

result_code pointer_attribute_of(const call_site& site, void* data, int attribute,
                                 device_pointer at) {
  managed::block_facts block;
  const managed::place lies = look_at(at, block);
  if (lies == managed::place::in_free_memory) return site(data, attribute, nobodys_address);
  const bool is_in_block = lies == managed::place::in_block && data != nullptr;
  if (is_in_block && answer_for_block(block, attribute, data)) return code::success;
  const result_code answer = site(data, attribute, at);
  if (is_in_block && answer == code::success) change_for_block(block, attribute, data);
  return answer;
}

result_code pointer_attributes_of(const call_site& site, unsigned count, int* attributes,
                                  void** data, device_pointer at) {
  managed::block_facts block;
  const managed::place lies = look_at(at, block);
  if (lies == managed::place::in_free_memory) return site(count, attributes, data, nobodys_address);
  const result_code answer = site(count, attributes, data, at);
  if (answer != code::success || lies != managed::place::in_block) return answer;
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) continue;
    if (!answer_for_block(block, attributes[i], data[i])) {
      change_for_block(block, attributes[i], data[i]);
    }
  }
  return answer;
}

// ---- sharing with other processes ---------------------------------------------------------------

result_code ipc_export(const call_site& site, ipc_handle* handle, device_pointer at) {
  managed::block_facts block;
  const bool is_managed_block =
      is_managed() && managed::find(at, block) == managed::place::in_block && !block.is_ordered;
  if (!is_managed_block || handle == nullptr) return site(handle, at);
  if (chosen_settings().ipc == ipc_rule::share && ipc::share(block.base, *handle)) {
    return code::success;
  }
  static std::atomic<bool> has_said = false;
  if (!has_said.exchange(true)) {
    complain(
        "memory of a pool is not shared by cuIpcGetMemHandle; VMM_IPC=plain leaves cuMemAlloc to "
        "the driver");
  }
  return site(handle, at);
}

result_code ipc_open(const call_site& site, device_pointer* at, ipc_handle handle, unsigned flags) {
  return ipc::is_ours(handle) ? ipc::open(at, handle) : site(at, handle, flags);
}

result_code ipc_close(const call_site& site, device_pointer at) {
  result_code answer = code::success;
  return ipc::close(at, answer) ? answer : site(at);
}

}  // namespace vmm::preload::handlers
