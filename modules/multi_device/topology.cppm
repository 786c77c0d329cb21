// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.multi_device:topology - the devices that reach a memory, and the links between them.
//
// I1  A topology has an entry for each pair of devices and each direction; the two directions may
//     differ.
//
// Thread safety: values only. Cost: query() makes a driver call for each pair.
export module vmm.multi_device:topology;

import vmm.backend;
import vmm.std;

namespace vmm {

/// The links between every two devices of the driver.
export class peer_topology {
 public:
  /// The maximum number of devices that are queried.
  static constexpr std::int32_t devices_max = 64;

  /// Errors: not_supported (features::peers), out_of_host_memory, those of query_peer.
  [[nodiscard]] static result<peer_topology> query(driver_interface& driver);

  /// Devices 0 to device_count() - 1.
  [[nodiscard]] std::int32_t device_count() const noexcept { return device_count_; }
  /// Requires: two existing devices, else the process ends.
  [[nodiscard]] const peer_info& link(location from, location to) const noexcept;
  /// Other devices that can have rights to memory at `memory_at`, a device.
  /// Errors: out_of_host_memory.
  [[nodiscard]] result<std::vector<location>> peers_of(location memory_at) const;
  /// A readable table of the links, a line per device. Allocates.
  [[nodiscard]] std::string to_text() const;

 private:
  std::int32_t device_count_ = 0;
  std::vector<peer_info> links_;  // by the device that reaches, then by the one reached
};

/// The name of a link: "none", "itself", "peer", "host".
export [[nodiscard]] const char* name_of(link_kind link) noexcept;

}  // namespace vmm
