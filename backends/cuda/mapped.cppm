// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda:mapped (internal) - memory by the driver's virtual memory management: each member is one
// driver call.
//
// No state: the driver records reservations, handles and mappings.
//
// Thread safety: all of it, no lock. Cost: the driver's own; no allocation but in set_access with
// more than sixteen grants.
module vmm.cuda:mapped;

import vmm.backend;
import vmm.std;
import :state;

namespace vmm::cuda {

class mapped_memory final : public address_memory {
 public:
  /// `state` outlives it.
  explicit mapped_memory(cuda_state& state) noexcept : state_(state) {}

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
  cuda_state& state_;
};

}  // namespace vmm::cuda
