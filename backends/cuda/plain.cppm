// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda:plain (internal) - memory for cuda_memory::plain: reservations that are memory
// throughout, and handles and mappings that are records.
//
// It keeps docs/contract.md except that contents_stay is false: a handle that is mapped elsewhere
// shows the contents of the new addresses. Handles are mapped whole and once. reserve and
// free_reservation make one driver call each (cuMemAlloc, cuMemFree), the others none.
//
// I1  Mappings do not overlap; each lies in one reservation and is the whole of one handle.
// I2  A handle has at most one mapping. The handles together are not larger than the device.
// I3  A reservation is recorded exactly while its memory is allocated: the record is added after
//     cuMemAlloc and removed before cuMemFree, since the driver may return the addresses to another
//     thread's reserve at once.
//
// A failed call changes nothing; steps that may throw come before the first change. In a forked
// child a call is refused before it takes the lock.
//
// Thread safety: all of it, one lock, held over no driver call. Cost: logarithmic; for a program
// that is being debugged.
module vmm.cuda:plain;

import vmm.backend;
import vmm.base;
import vmm.std;
import :state;

namespace vmm::cuda {

class plain_memory final : public address_memory {
 public:
  struct limits {
    std::uint64_t granule_bytes = 0;
    std::uint64_t device_bytes = 0;
    location home{};
  };
  /// `state` outlives it.
  plain_memory(cuda_state& state, const limits& known) noexcept;

  /// Removes features that need mapped memory.
  static void restrict_features(features& can) noexcept;

  [[nodiscard]] result<address_range> reserve(const reserve_request& request) override;
  [[nodiscard]] status free_reservation(address_range range) override;
  [[nodiscard]] result<physical_handle> create(const physical_request& request) override;
  [[nodiscard]] status release(physical_handle handle) override;
  [[nodiscard]] status map(const map_request& request) override;
  [[nodiscard]] status unmap(address_range range) override;
  [[nodiscard]] status set_access(address_range range,
                                  std::span<const access_grant> grants) override;
  [[nodiscard]] result<access> get_access(address at, location place) override;
  [[nodiscard]] result<physical_handle> retain(address at) override;
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle) override;
  [[nodiscard]] result<shared_handle> export_handle(physical_handle handle,
                                                    share_kind kind) override;
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& shared) override;

 private:
  struct reservation {
    std::uint64_t size_bytes = 0;
    address origin{};  // the address that the driver returned
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
  using reservation_table = std::map<std::uint64_t, reservation>;
  using mapping_table = std::map<std::uint64_t, mapping>;

  // The result of a call that needs mapped memory.
  [[nodiscard]] error needs_mapping(call where) const noexcept;
  // The alignment to keep. Errors: invalid_argument, out_of_addresses (more than the device has).
  [[nodiscard]] result<std::uint64_t> check_reserve(const reserve_request& request) const noexcept;
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes);
  [[nodiscard]] status add(address_range range, address origin) noexcept;
  [[nodiscard]] result<reservation_table::node_type> take(address_range range) noexcept;
  void put_back(reservation_table::node_type&& record) noexcept;

  [[nodiscard]] bool is_whole(std::uint64_t size_bytes) const noexcept {
    return size_bytes != 0 && size_bytes % limits_.granule_bytes == 0;
  }
  [[nodiscard]] bool is_reserved(address_range range) const noexcept;
  [[nodiscard]] bool is_mapped(address_range range) const noexcept;
  [[nodiscard]] bool is_tiled(address_range range) const noexcept;
  [[nodiscard]] bool is_valid() const noexcept;

  cuda_state& state_;
  limits limits_;
  std::mutex mutex_;
  reservation_table reservations_;            // by address
  std::map<std::uint64_t, memory> memories_;  // by handle
  mapping_table mappings_;                    // by address
  std::uint64_t last_handle_ = 0;
  std::uint64_t created_bytes_ = 0;
};

}  // namespace vmm::cuda
