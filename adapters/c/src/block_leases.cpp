// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "block_leases.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "../../../modules/share/ipc_wire.hpp"
#include "errors.hpp"
#include "per_process.hpp"

import vmm.backend;
import vmm.base;

namespace vmm_c {
namespace {

namespace ipc = vmm::ipc;
using guard = vmm::sync::lock_guard<vmm::sync::mutex>;

// A mapped file, while a counter of it is above 0.
class counter_file {
 public:
  counter_file(std::byte* base, std::size_t size_bytes) noexcept
      : base_(base), size_bytes_(size_bytes) {}
  counter_file(const counter_file&) = delete;
  counter_file& operator=(const counter_file&) = delete;
  ~counter_file() { (void)::munmap(base_, size_bytes_); }

  [[nodiscard]] std::int64_t* at(std::uint64_t offset_bytes) const noexcept {
    const bool fits = offset_bytes % sizeof(std::int64_t) == 0 &&
                      size_bytes_ >= sizeof(std::int64_t) &&
                      offset_bytes <= size_bytes_ - sizeof(std::int64_t);
    return fits ? reinterpret_cast<std::int64_t*>(base_ + offset_bytes) : nullptr;
  }

 private:
  std::byte* const base_;
  const std::size_t size_bytes_;
};

struct lent_counter {
  std::shared_ptr<counter_file> file;
  std::int64_t* at = nullptr;

  [[nodiscard]] bool is_held() const noexcept {
    return std::atomic_ref(*at).load(std::memory_order_acquire) > 0;
  }
};

// A connection of this process to a producer's server.
struct held_lease {
  int socket = -1;
  std::uint64_t inode = 0;
};

struct leases {
  const vmm::process_mark made_in{};
  vmm::sync::mutex lock;
  std::map<std::string, std::weak_ptr<counter_file>, std::less<>> files;
  std::map<std::uint64_t, lent_counter> lent;
  std::size_t looked_at = 64;                // so many are lent before those at 0 are looked for
  std::map<std::uint64_t, held_lease> held;  // by the producer's token
};

std::atomic<leases*> current_leases = nullptr;

// The same in both processes.
std::uint64_t counter_number(std::string_view file, std::uint64_t offset_bytes) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char each : file) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3U;
  return (hash ^ offset_bytes) * 0x100000001b3U;
}

std::shared_ptr<counter_file> map_file(const std::string& name) {
  if (name.size() < 2 || name[0] != '/' || name.find('/', 1) != std::string::npos) return nullptr;
  const std::string path = "/dev/shm" + name;
  const ipc::descriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat about{};
  if (!opened || ::fstat(opened.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      about.st_uid != ipc::os::own_uid() || about.st_size <= 0) {
    return nullptr;
  }
  const auto size = static_cast<std::size_t>(about.st_size);
  void* const base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, opened.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  return std::make_shared<counter_file>(static_cast<std::byte*>(base), size);
}

std::shared_ptr<counter_file> file_of(leases& all, const std::string& name) {
  std::weak_ptr<counter_file>& known = all.files[name];
  std::shared_ptr<counter_file> found = known.lock();
  if (found == nullptr) known = found = map_file(name);
  return found;
}

void forget_counted(leases& all) {
  std::erase_if(all.lent, [](const auto& each) { return !each.second.is_held(); });
  std::erase_if(all.files, [](const auto& each) { return each.second.expired(); });
  all.looked_at = std::max<std::size_t>(64, 2 * all.lent.size());
}

bool read_export(const vmm_block_export& block, ipc::wire_handle& handle) noexcept {
  std::memcpy(&handle, block.bytes, sizeof handle);
  return std::memcmp(handle.magic, ipc::magic, sizeof handle.magic) == 0;
}

vmm_status fail_bytes() noexcept {
  return fail(VMM_ERROR_INVALID_ARGUMENT, "the bytes are not those of vmm_allocator_export()");
}

bool send_lease(const held_lease& by, const ipc::wire_handle& message) noexcept {
  constexpr std::uint32_t patience_ms = 1000;
  return by.socket >= 0 && ipc::inode_of(by.socket) == by.inode &&
         ipc::send(by.socket, &message, sizeof message, -1, ipc::os::deadline_in(patience_ms)) == 0;
}

}  // namespace

bool is_held(std::uint64_t counter) noexcept {
  leases* const all = current_leases.load(std::memory_order_acquire);
  if (all == nullptr) return false;
  const guard lock(all->lock);
  const auto found = all->lent.find(counter);
  return found != all->lent.end() && found->second.is_held();
}

void take_back(std::uint64_t counter) noexcept {
  leases* const all = current_leases.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const guard lock(all->lock);
  const auto found = all->lent.find(counter);
  if (found == all->lent.end()) return;
  if (found->second.is_held()) std::atomic_ref(*found->second.at).store(0);
  all->lent.erase(found);
}

}  // namespace vmm_c

using namespace vmm_c;

vmm_status vmm_block_lend(const vmm_block_export* block, const char* file,
                          uint64_t offset_bytes) VMM_NOEXCEPT {
  if (block == nullptr || file == nullptr) return fail_null();
  return run([&]() -> vmm_status {
    ipc::wire_handle handle{};
    if (!read_export(*block, handle)) return fail_bytes();
    leases& all = of_process(current_leases);
    const guard lock(all.lock);
    if (all.lent.size() >= all.looked_at) forget_counted(all);
    const std::shared_ptr<counter_file> mapped = file_of(all, file);
    std::int64_t* const at = mapped == nullptr ? nullptr : mapped->at(offset_bytes);
    if (at == nullptr)
      return fail(VMM_ERROR_UNAVAILABLE,
                  "the counter cannot be lent: /dev/shm has no such file of this user, or it is "
                  "shorter");
    if (std::atomic_ref(*at).load() != 1)
      return fail(VMM_ERROR_INVALID_ARGUMENT, "the counter cannot be lent: its value is not 1");
    all.lent.insert_or_assign(counter_number(file, offset_bytes), lent_counter{mapped, at});
    return VMM_SUCCESS;
  });
}

vmm_status vmm_block_hold(const vmm_block_export* block, const char* file,
                          uint64_t offset_bytes) VMM_NOEXCEPT {
  if (block == nullptr || file == nullptr) return fail_null();
  return run([&]() -> vmm_status {
    ipc::wire_handle message{};
    if (!read_export(*block, message)) return fail_bytes();
    std::memcpy(message.magic, ipc::lease_magic, sizeof message.magic);
    message.number = counter_number(file, offset_bytes);
    leases& all = of_process(current_leases);
    const guard lock(all.lock);
    held_lease& by = all.held[message.token];
    if (send_lease(by, message)) return VMM_SUCCESS;
    if (by.socket >= 0 && ipc::inode_of(by.socket) == by.inode) ipc::os::close(by.socket);
    by = {};
    by.socket = ipc::connect_to(message.token, ipc::os::deadline_in(ipc::exchange_ms)).release();
    by.inode = ipc::inode_of(by.socket);
    if (by.socket >= 0 && ipc::is_own_peer(by.socket) && send_lease(by, message))
      return VMM_SUCCESS;
    ipc::os::close(by.socket);
    all.held.erase(message.token);
    return fail(VMM_ERROR_UNAVAILABLE,
                "the process that lends the counter has ended, is another "
                "user's, or has another /tmp");
  });
}
