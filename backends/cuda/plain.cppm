// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda:plain (internal) - the accounts behind cuda_memory::plain: reservations that are memory
// from end to end, and handles and mappings that are records.
//
// It keeps docs/contract.md but for what contents_stay says: who maps a handle elsewhere finds what
// lay at the new addresses. Handles are mapped whole and once. No driver call is made here.
//
// I1  Mappings do not overlap; each lies in one reservation and is the whole of one handle.
// I2  A handle has at most one mapping. The handles together are not larger than the device.
// I3  A failed call changes nothing; what may throw comes before the first change.
// I4  A forked child is refused before the lock is taken.
//
// Thread safety: all of it, one lock. Cost: logarithmic; for a program that is being debugged.
module;
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

module vmm.cuda:plain;

import vmm.backend;

namespace vmm {

class plain_space {
 public:
  struct limits {
    std::uint64_t granule_bytes = 0;
    std::uint64_t device_bytes = 0;
    location home{};
  };
  explicit plain_space(const limits& known) noexcept : limits_(known) {}
  plain_space(const plain_space&) = delete;
  plain_space& operator=(const plain_space&) = delete;

  /// Takes away what needs memory that is mapped.
  static void restrict_features(features& can) noexcept;
  [[nodiscard]] static error unsupported(call where) noexcept;

  /// The alignment to keep. Errors: invalid_argument, out_of_addresses (more than the device has).
  [[nodiscard]] result<std::uint64_t> check_reserve(const reserve_request& request) const noexcept;
  /// Takes memory that the driver gave at `origin` into account. Errors: out_of_host_memory.
  [[nodiscard]] status add(address_range range, address origin) noexcept;
  /// Where the driver gave it. Nothing is mapped there until end_removal() says how it went.
  /// Errors: invalid_argument (no such reservation), in_use (something is mapped).
  [[nodiscard]] result<address> begin_removal(address_range range) noexcept;
  void end_removal(address_range range, bool is_gone) noexcept;

  [[nodiscard]] result<physical_handle> create(const physical_request& request) noexcept;
  [[nodiscard]] status release(physical_handle handle) noexcept;
  [[nodiscard]] status map(const map_request& request) noexcept;
  [[nodiscard]] status unmap(address_range range) noexcept;
  [[nodiscard]] status set_access(address_range range,
                                  std::span<const access_grant> grants) noexcept;
  [[nodiscard]] result<access> get_access(address at, location who) const noexcept;
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle) const noexcept;

 private:
  struct reservation {
    std::uint64_t size_bytes = 0;
    address origin{};
    bool is_going = false;
  };
  struct memory {
    std::uint64_t size_bytes = 0;
    bool is_mapped = false;
  };
  struct mapping {
    std::uint64_t size_bytes = 0;
    std::uint64_t of = 0;  // the handle
    access rights = access::none;
  };
  using mapping_table = std::map<std::uint64_t, mapping>;

  [[nodiscard]] bool is_whole(std::uint64_t size_bytes) const noexcept {
    return size_bytes != 0 && size_bytes % limits_.granule_bytes == 0;
  }
  [[nodiscard]] bool is_reserved(address_range range) const noexcept;
  [[nodiscard]] bool is_mapped(address_range range) const noexcept;
  [[nodiscard]] bool is_tiled(address_range range) const noexcept;

  limits limits_;
  process_mark made_in_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, reservation> reservations_;  // by address
  std::map<std::uint64_t, memory> memories_;           // by handle
  mapping_table mappings_;                             // by address
  std::uint64_t last_handle_ = 0;
  std::uint64_t created_bytes_ = 0;
};

}  // namespace vmm
