// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "ipc.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "../../modules/share/ipc_server.hpp"
#include "../../modules/share/ipc_wire.hpp"
#include "accounts.h"
#include "process.h"
#include "routes.h"
#include "settings.h"

namespace vmm::preload::ipc {
namespace {

using namespace vmm::ipc;

struct shared_block {
  std::vector<shared_piece> pieces;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct opened_block {
  wire_handle handle{};
  device_pointer base = 0;  // of the reservation
  std::size_t reserved_bytes = 0;
  device_pointer at = 0;
  std::size_t size_bytes = 0;
  context_id context = nullptr;
  std::uint64_t count = 0;
};

struct exchange {
  std::mutex lock;
  std::map<std::uint64_t, shared_block> shared;  // by the block's number
  std::map<device_pointer, opened_block> opened;
  std::map<device_pointer, opened_block> closed;  // and still mapped
  server serving;
};

std::atomic<std::uint64_t> shared_count;
std::atomic<std::uint64_t> opened_count;  // closed ones that are mapped, too
std::atomic<exchange*> known_exchange;

exchange& the() noexcept {
  static exchange* const only = [] {
    auto* const made = new exchange;
    known_exchange.store(made, std::memory_order_release);
    return made;
  }();
  return *only;
}

void count_opened(const exchange& x) noexcept {
  opened_count.store(x.opened.size() + x.closed.size(), std::memory_order_release);
}

// ---- the process that shares --------------------------------------------------------------------

// Of the server's thread.

wire_reply describe(std::uint64_t number) noexcept {
  exchange& x = the();
  const std::lock_guard<std::mutex> turn(x.lock);
  const auto found = x.shared.find(number);
  if (found == x.shared.end()) return {};
  const shared_block& block = found->second;
  return {block.pieces.size(), block.offset_bytes, block.size_bytes};
}

int send_piece(std::uint64_t number, std::uint64_t index, int socket) noexcept {
  exchange& x = the();
  const std::lock_guard<std::mutex> turn(x.lock);
  const auto found = x.shared.find(number);
  if (found == x.shared.end() || index >= found->second.pieces.size()) return ENOENT;
  const shared_piece& piece = found->second.pieces[index];
  return send(socket, &piece.size_bytes, sizeof piece.size_bytes, piece.exported.get(), {});
}

shared_block export_pieces(const managed::block_memory& memory) {
  shared_block made;
  managed::device_pools* const device = managed::process().devices.of_device(memory.device);
  if (device == nullptr) return made;
  made.offset_bytes = memory.offset_bytes;
  made.size_bytes = memory.size_bytes;
  for (const managed::memory_piece& each : memory.pieces) {
    descriptor exported(device->export_piece(each));
    if (!exported) return {};
    (void)fcntl(exported.get(), F_SETFD, FD_CLOEXEC);
    made.pieces.push_back({std::move(exported), each.size_bytes});
  }
  return made;
}

// ---- the process that opens ---------------------------------------------------------------------

template <class... Arguments>
result_code ask(entry_id entry, Arguments... arguments) noexcept {
  void* real = real_of(entry);
  if (real == nullptr) return code::not_initialized;
  return reinterpret_cast<result_code (*)(Arguments...)>(real)(arguments...);
}

constexpr int posix_descriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int read_and_write = 3;

result_code map_piece(const shared_piece& piece, device_pointer at) noexcept {
  physical_id handle = 0;
  void* from = reinterpret_cast<void*>(static_cast<std::intptr_t>(piece.exported.get()));
  result_code answer =
      ask(entry_id::cuMemImportFromShareableHandle, &handle, from, posix_descriptor);
  if (answer != code::success) return answer;
  answer = ask(entry_id::cuMemMap, at, static_cast<std::size_t>(piece.size_bytes), std::size_t{0},
               handle, flag_set{0});
  (void)ask(entry_id::cuMemRelease, handle);  // the mapping keeps it
  return answer;
}

// Maps all pieces side by side, for the current device. A failure undoes all of it.
result_code map_block(const received_block& block, device_pointer& base) noexcept {
  const auto whole = static_cast<std::size_t>(block.whole_bytes);
  const int device = accounts::current_device();
  if (device < 0) return code::invalid_context;
  result_code answer = ask(entry_id::cuMemAddressReserve, &base, whole, std::size_t{0},
                           device_pointer{0}, flag_set{0});
  if (answer != code::success) return answer;
  std::size_t mapped = 0;
  for (const shared_piece& each : block.pieces) {
    answer = map_piece(each, base + mapped);
    if (answer != code::success) break;
    mapped += each.size_bytes;
  }
  if (answer == code::success) {
    const access_description grant{{device_location, device}, read_and_write};
    answer = ask(entry_id::cuMemSetAccess, base, whole,
                 static_cast<const access_description*>(&grant), std::size_t{1});
  }
  if (answer == code::success) return answer;
  if (mapped != 0) (void)ask(entry_id::cuMemUnmap, base, mapped);
  (void)ask(entry_id::cuMemAddressFree, base, whole);
  return answer;
}

void unmap_block(const opened_block& block) noexcept {
  (void)ask(entry_id::cuMemUnmap, block.base, block.reserved_bytes);
  (void)ask(entry_id::cuMemAddressFree, block.base, block.reserved_bytes);
}

// Under the lock: the block, where the context has it open already, once more.
device_pointer open_again(exchange& x, const wire_handle& handle, context_id context) noexcept {
  for (auto& [at, block] : x.opened) {
    if (block.handle.token != handle.token || block.handle.number != handle.number) continue;
    if (block.context != context) continue;
    ++block.count;
    return at;
  }
  return 0;
}

// From list to list without host memory.
using one_block = std::map<device_pointer, opened_block>::node_type;

one_block take_closed(exchange& x) noexcept {
  const std::lock_guard<std::mutex> turn(x.lock);
  one_block taken;
  if (!x.closed.empty()) taken = x.closed.extract(x.closed.begin());
  count_opened(x);
  return taken;
}

void put_back(exchange& x, one_block&& block) noexcept {
  const std::lock_guard<std::mutex> turn(x.lock);
  (void)x.closed.insert(std::move(block));
  count_opened(x);
}

// What still uses the memory must have finished, and a capture is not disturbed.
void unmap_closed() noexcept {
  exchange& x = the();
  for (one_block gone = take_closed(x); !gone.empty(); gone = take_closed(x)) {
    const managed::idle_guard idle(gone.mapped().context);
    if (!idle.is_idle()) return put_back(x, std::move(gone));
    unmap_block(gone.mapped());
  }
}

}  // namespace

bool share(device_pointer base, ipc_handle& into) noexcept {
  exchange& x = the();
  try {
    const managed::block_memory memory = managed::process().blocks.memory_of(base);
    if (memory.pieces.empty()) return false;
    bool is_known = false;
    {
      const std::lock_guard<std::mutex> turn(x.lock);
      if (!x.serving.start({describe, send_piece})) {
        static bool has_said = false;
        if (std::exchange(has_said, true)) return false;
        complain(
            "no block can be shared: create this folder, owned by this user and of mode 0700: ",
            folder_at(0, os::own_uid()).text.data());
        return false;
      }
      is_known = x.shared.contains(memory.number);
    }
    if (!is_known) {
      shared_block made = export_pieces(memory);
      if (made.pieces.empty()) return false;
      const std::lock_guard<std::mutex> turn(x.lock);
      x.shared.try_emplace(memory.number, std::move(made));
      shared_count.store(x.shared.size(), std::memory_order_release);
    }
    wire_handle handle{};
    std::memcpy(handle.magic, magic, sizeof magic);
    handle.token = x.serving.token();
    handle.number = memory.number;
    handle.size_bytes = memory.size_bytes;
    std::memcpy(&into, &handle, sizeof into);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void forget(std::uint64_t number) noexcept {
  if (shared_count.load(std::memory_order_acquire) == 0) return;
  exchange& x = the();
  const std::lock_guard<std::mutex> turn(x.lock);
  x.shared.erase(number);
  shared_count.store(x.shared.size(), std::memory_order_release);
}

void forget_context(context_id gone) noexcept {
  if (opened_count.load(std::memory_order_acquire) == 0) return;
  exchange& x = the();
  std::map<device_pointer, opened_block> ended;
  {
    const std::lock_guard<std::mutex> turn(x.lock);
    for (auto* const list : {&x.opened, &x.closed}) {
      for (auto each = list->begin(); each != list->end();) {
        const auto it = each++;
        if (it->second.context == gone) (void)ended.insert(list->extract(it));
      }
    }
    count_opened(x);
  }
  for (const auto& [at, block] : ended) unmap_block(block);
}

bool is_ours(const ipc_handle& handle) noexcept {
  return std::memcmp(handle.bytes, magic, sizeof magic) == 0;
}

result_code open(device_pointer* at, const ipc_handle& handle) noexcept {
  if (at == nullptr) return code::invalid_value;
  wire_handle wanted;
  std::memcpy(&wanted, &handle, sizeof wanted);
  exchange& x = the();
  const context_id context = accounts::current_context();
  try {
    {
      const std::lock_guard<std::mutex> turn(x.lock);
      *at = open_again(x, wanted, context);
      if (*at != 0) return code::success;
    }
    received_block received;
    if (!fetch(wanted, received)) {
      complain(
          "a block that another process shared cannot be opened: it is freed, or that process has "
          "ended, is another user's or has another /tmp");
      return code::invalid_value;
    }
    opened_block made;
    made.handle = wanted;
    made.reserved_bytes = static_cast<std::size_t>(received.whole_bytes);
    made.size_bytes = static_cast<std::size_t>(received.size_bytes);
    made.count = 1;
    const result_code answer = map_block(received, made.base);
    if (answer != code::success) return answer;
    made.at = made.base + received.offset_bytes;
    made.context = context;
    {
      const std::lock_guard<std::mutex> turn(x.lock);
      *at = open_again(x, wanted, context);
      if (*at == 0) {
        x.opened[made.at] = made;
        count_opened(x);
        *at = made.at;
        return code::success;
      }
    }
    unmap_block(made);  // another thread was first
    return code::success;
  } catch (const std::bad_alloc&) {
    return code::out_of_memory;
  }
}

bool close(device_pointer at, result_code& answer) noexcept {
  if (opened_count.load(std::memory_order_acquire) == 0) return false;
  exchange& x = the();
  {
    const std::lock_guard<std::mutex> turn(x.lock);
    const auto found = x.opened.find(at);
    if (found == x.opened.end()) return false;
    answer = code::success;
    if (--found->second.count != 0) return true;
    (void)x.closed.insert(x.opened.extract(found));
  }
  unmap_closed();
  return true;
}

void finish() noexcept {
  exchange* const x = known_exchange.load(std::memory_order_acquire);
  if (x == nullptr || !x->lock.try_lock()) return;  // another thread is still at it
  x->serving.take_name_away();
  x->lock.unlock();
}

void end_capture() noexcept {
  if (opened_count.load(std::memory_order_acquire) != 0) unmap_closed();
}

bool find(device_pointer at, opened_range& into) noexcept {
  if (opened_count.load(std::memory_order_acquire) == 0) return false;
  exchange& x = the();
  const std::lock_guard<std::mutex> turn(x.lock);
  auto found = x.opened.upper_bound(at);
  if (found == x.opened.begin()) return false;
  --found;
  if (at - found->first >= found->second.size_bytes) return false;
  const opened_block& block = found->second;
  into = {block.at, block.size_bytes, block.handle.number, block.context};
  return true;
}

namespace {
thread_local exchange* forked_with [[gnu::tls_model("initial-exec")]] = nullptr;
}

void before_fork() noexcept {
  forked_with = known_exchange.load(std::memory_order_acquire);
  if (forked_with != nullptr) forked_with->lock.lock();
}

// The child's copies of the parent's descriptors would keep freed memory alive until the child
// ends.
void after_fork(bool is_child) noexcept {
  exchange* const x = std::exchange(forked_with, nullptr);
  if (x == nullptr) return;
  if (is_child) {
    x->shared.clear();
    x->serving.leave_to_parent();
    shared_count.store(0, std::memory_order_relaxed);
  }
  x->lock.unlock();
}

}  // namespace vmm::preload::ipc
