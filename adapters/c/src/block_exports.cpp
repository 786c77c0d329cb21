// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "block_exports.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "../../../modules/share/ipc_server.hpp"
#include "../../../modules/share/ipc_wire.hpp"
#include "block_leases.hpp"
#include "errors.hpp"
#include "objects.hpp"
#include "per_process.hpp"

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.stream;

namespace vmm_c {
namespace {

namespace ipc = vmm::ipc;
using guard = vmm::sync::lock_guard<vmm::sync::mutex>;

struct piece {
  vmm::physical_handle handle{};
  std::uint64_t size_bytes = 0;
};

struct exported_block {
  device_memory* device = nullptr;
  std::uint64_t at = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::vector<piece> pieces;
};

struct imported_block {
  device_memory* device = nullptr;
  vmm::address_range range{};
};
using imported_blocks = std::map<std::uint64_t, imported_block>;  // by address

using place = std::pair<const device_memory*, std::uint64_t>;

struct sharing {
  const vmm::process_mark made_in{};
  vmm::sync::mutex lock;
  std::uint64_t last_number = 0;
  std::map<std::uint64_t, exported_block> exported;  // by number
  std::map<place, std::uint64_t> numbers;
  imported_blocks imported;
  imported_blocks closed;  // and still mapped
  // The latest descriptor: the driver's first export is slow while no other one is open.
  ipc::descriptor kept;
  std::uint64_t kept_of = 0;
  ipc::server server;
};

std::atomic<sharing*> current = nullptr;

sharing& here() {
  return of_process(current, [] { exported_count.store(0); });
}

void remove_name() noexcept {
  sharing* const all = current.load(std::memory_order_acquire);
  if (all != nullptr && all->made_in.is_here()) all->server.take_name_away();
}

void keep_descriptor(sharing& all, std::uint64_t number, ipc::descriptor latest) noexcept {
  if (all.kept) ipc::os::forget_in_children(all.kept.get());
  all.kept = std::move(latest);
  all.kept_of = number;
  if (all.kept) (void)ipc::os::close_in_children(all.kept.get());
}

// ---- the server's thread -----------------------------------------------------------------------

ipc::wire_reply describe(std::uint64_t number) noexcept {
  sharing& all = *current.load(std::memory_order_acquire);
  const guard lock(all.lock);
  const auto found = all.exported.find(number);
  if (found == all.exported.end()) return {};
  return {found->second.pieces.size(), found->second.offset_bytes, found->second.size_bytes};
}

int send_piece(std::uint64_t number, std::uint64_t index, int socket) noexcept {
  sharing& all = *current.load(std::memory_order_acquire);
  const guard lock(all.lock);
  const auto found = all.exported.find(number);
  if (found == all.exported.end() || index >= found->second.pieces.size()) return ENOENT;
  const piece& wanted = found->second.pieces[index];
  device_driver& driver = found->second.device->driver();
  const vmm::relaxed_capture relaxed(driver);
  const auto made = driver.export_handle(wanted.handle, vmm::share_kind::posix_fd);
  if (!made) return EIO;
  ipc::descriptor exported(static_cast<int>(made->descriptor));
  (void)::fcntl(exported.get(), F_SETFD, FD_CLOEXEC);
  const int failure =
      ipc::send(socket, &wanted.size_bytes, sizeof wanted.size_bytes, exported.get(), {});
  keep_descriptor(all, number, std::move(exported));
  return failure;
}

// ---- imports -----------------------------------------------------------------------------------

vmm::status map_piece(device_driver& driver, const ipc::shared_piece& from, vmm::address at,
                      bool& is_mapped) {
  vmm::shared_handle shared;
  shared.kind = vmm::share_kind::posix_fd;
  shared.descriptor = from.exported.get();
  shared.size_bytes = from.size_bytes;
  const auto made = driver.import_handle(shared);
  if (!made) return made.error();
  const vmm::status mapped = driver.map({at, from.size_bytes, *made, 0});
  is_mapped = mapped.has_value();
  const vmm::status released = driver.release(*made);  // the mapping keeps the memory
  return mapped ? released : mapped;
}

vmm::status unmap(device_driver& driver, vmm::address_range range, std::uint64_t mapped_bytes) {
  vmm::status done;
  if (mapped_bytes != 0) done = driver.unmap({range.base, mapped_bytes});
  return done ? driver.free_reservation(range) : done;
}

vmm::result<vmm::address_range> map_pieces(device_driver& driver, const ipc::received_block& from) {
  const auto range = driver.reserve({.size_bytes = from.whole_bytes});
  if (!range) return range;
  std::uint64_t mapped_bytes = 0;
  vmm::status done;
  for (const ipc::shared_piece& each : from.pieces) {
    bool is_mapped = false;
    done = map_piece(driver, each, range->base + mapped_bytes, is_mapped);
    if (is_mapped) mapped_bytes += each.size_bytes;
    if (!done) break;
  }
  const vmm::access_grant grant{driver.home(), vmm::access::read_write};
  if (done) done = driver.set_access(*range, {&grant, 1});
  if (done) return range;
  (void)unmap(driver, *range, mapped_bytes);
  return done.error();
}

// Unmaps closed blocks of a device until one cannot be now, as during a capture. The caller is in a
// call on the device's allocator, so the device stays.
void unmap_closed(sharing& all, const device_memory& device, bool captures) {
  while (!captures) {
    imported_blocks::node_type gone;
    {
      const guard lock(all.lock);
      const auto found = std::find_if(all.closed.begin(), all.closed.end(), [&](const auto& each) {
        return each.second.device == &device;
      });
      if (found == all.closed.end()) return;
      gone = all.closed.extract(found);
    }
    const vmm::address_range range = gone.mapped().range;
    device_driver& driver = gone.mapped().device->driver();
    const vmm::relaxed_capture relaxed(driver);
    const bool is_idle = !driver.feature_set().streams || driver.synchronize_all();
    if (is_idle && unmap(driver, range, range.size_bytes)) continue;
    const guard lock(all.lock);
    (void)all.closed.insert(std::move(gone));
    return;
  }
}

vmm_status check_sharing(device_driver& driver) noexcept {
  const vmm::features& can = driver.feature_set();
  if (can.export_posix_fd && can.release_while_mapped) return VMM_SUCCESS;
  return fail(VMM_ERROR_NOT_SUPPORTED,
              "the device's driver does not share memory with other processes by descriptors");
}

vmm_status fail_gone() noexcept {
  return fail(VMM_ERROR_UNAVAILABLE,
              "the block of another process cannot be mapped: it was freed, or that process has "
              "ended, is another user's, or has another /tmp");
}

}  // namespace

vmm_status export_block(device_memory& device, const vmm_allocation& block, vmm_block_export& out) {
  if (const vmm_status can = check_sharing(device.driver()); can != VMM_SUCCESS) return can;
  const std::uint64_t at = address_of(block.base).value;
  const auto segments = device.pool().segments({{at}, block.size_bytes});
  if (!segments) return fail(segments.error());
  exported_block made{&device, at, at - segments->front().range.base.value, block.size_bytes, {}};
  for (const auto& each : *segments) made.pieces.push_back({each.handle, each.range.size_bytes});
  sharing& all = here();
  const guard lock(all.lock);
  if (!all.server.is_started()) {
    if (!all.server.start({describe, send_piece, is_held, take_back}))
      return fail(VMM_ERROR_UNAVAILABLE,
                  "no block can be exported: make the folder /tmp/vmm-UID of mode 0700, this "
                  "user's, for the socket of the process");
    static const int at_exit = std::atexit(remove_name);
    (void)at_exit;
  }
  const auto known = all.numbers.try_emplace(place{&device, at}, all.last_number + 1);
  if (known.second) {
    all.exported.emplace(++all.last_number, std::move(made));
    exported_count.store(all.exported.size());
  }
  // A free in another thread either finds the export, or has taken the block before.
  vmm_allocation still{};
  const bool is_live = device.find(at, block.device, still);
  if (known.second && !is_live) {
    (void)all.exported.erase(known.first->second);
    (void)all.numbers.erase(known.first);
    exported_count.store(all.exported.size());
    return fail(VMM_ERROR_UNKNOWN_ADDRESS, "the block was freed by another thread");
  }
  ipc::wire_handle handle{};
  std::memcpy(handle.magic, ipc::magic, sizeof handle.magic);
  handle.token = all.server.token();
  handle.number = known.first->second;
  handle.size_bytes = block.size_bytes;
  static_assert(sizeof out.bytes == sizeof handle);
  std::memcpy(out.bytes, &handle, sizeof handle);
  return VMM_SUCCESS;
}

void end_export(const device_memory& device, std::uint64_t at) noexcept {
  sharing* const all = current.load(std::memory_order_acquire);
  if (all == nullptr || !all->made_in.is_here()) return;
  const guard lock(all->lock);
  const auto found = all->numbers.find(place{&device, at});
  if (found == all->numbers.end()) return;
  if (all->kept_of == found->second) keep_descriptor(*all, 0, ipc::descriptor());
  all->exported.erase(found->second);
  all->numbers.erase(found);
  exported_count.store(all->exported.size());
}

vmm_status import_block(device_memory& device, const vmm_block_export& from, bool captures,
                        vmm::address& at) {
  ipc::wire_handle handle;
  std::memcpy(&handle, from.bytes, sizeof handle);
  const bool is_zero = std::all_of(std::begin(handle.zero), std::end(handle.zero),
                                   [](std::uint64_t each) { return each == 0; });
  if (!is_zero || std::memcmp(handle.magic, ipc::magic, sizeof handle.magic) != 0)
    return fail(VMM_ERROR_INVALID_ARGUMENT, "the bytes are not those of vmm_allocator_export()");
  device_driver& driver = device.driver();
  if (const vmm_status can = check_sharing(driver); can != VMM_SUCCESS) return can;
  sharing& all = here();
  unmap_closed(all, device, captures);
  ipc::received_block received;
  if (!ipc::fetch(handle, received)) return fail_gone();
  const vmm::relaxed_capture relaxed(driver);
  const auto range = map_pieces(driver, received);
  if (!range) return fail(range.error());
  at = range->base + received.offset_bytes;
  try {
    const guard lock(all.lock);
    all.imported[at.value] = {&device, *range};
  } catch (const std::bad_alloc&) {
    (void)unmap(driver, *range, range->size_bytes);
    return fail_host_memory();
  }
  return VMM_SUCCESS;
}

bool end_import(const device_memory& device, std::uint64_t at, bool captures) {
  sharing& all = here();
  {
    const guard lock(all.lock);
    const auto found = all.imported.find(at);
    if (found == all.imported.end() || found->second.device != &device) return false;
    (void)all.closed.insert(all.imported.extract(found));
  }
  unmap_closed(all, device, captures);
  return true;
}

void end_sharing_of(device_memory& device) noexcept {
  sharing* const all = current.load(std::memory_order_acquire);
  if (all == nullptr || !all->made_in.is_here()) return;
  const guard lock(all->lock);
  for (auto each = all->numbers.begin(); each != all->numbers.end();) {
    const bool is_gone = each->first.first == &device;
    if (is_gone) all->exported.erase(each->second);
    if (is_gone && all->kept_of == each->second) keep_descriptor(*all, 0, ipc::descriptor());
    each = is_gone ? all->numbers.erase(each) : std::next(each);
  }
  exported_count.store(all->exported.size());
  for (imported_blocks* const list : {&all->imported, &all->closed}) {
    std::erase_if(*list, [&](const auto& each) {
      const imported_block& block = each.second;
      if (block.device != &device) return false;
      (void)unmap(device.driver(), block.range, block.range.size_bytes);
      return true;
    });
  }
}

}  // namespace vmm_c
