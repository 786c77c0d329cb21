// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero:description - the selection of a device, and its identity.
//
// Thread safety: values only. Cost: none.
export module vmm.level_zero:description;

import vmm.std;

namespace vmm {

/// The GPU and the driver to open, and the loader.
export struct level_zero_options {
  std::int32_t device = 0;  ///< among the GPUs of all drivers, in the loader's order
  /// all_drivers, or a driver's number in the loader's order: `device` counts only that driver's
  /// GPUs.
  std::int32_t driver = all_drivers;
  static constexpr std::int32_t all_drivers = -1;
  const char* loader_library =
      nullptr;  ///< the loader; null: $VMM_LEVEL_ZERO_LIBRARY, else libze_loader.so.1
};

/// The device's identity, for reports. Texts are null-terminated.
export struct level_zero_description {
  char device_name[256] = {};
  std::int32_t driver_number = 0;  ///< in the loader's order
  std::int32_t api_major = 0;      ///< of the driver's Level Zero
  std::int32_t api_minor = 0;
  std::uint32_t driver_version = 0;  ///< as the vendor counts
  std::uint32_t vendor_id = 0;       ///< of PCI
  std::uint32_t device_id = 0;       ///< of PCI
};

}  // namespace vmm
