// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda:native (internal) - vmm's values as the driver's, and back.
//
// I1  from_native(native(x)) is x for every location, kind of sharing and right.
//
// Thread safety: values only. Cost: no allocation, no driver call.
module;
#include "loader.h"

module vmm.cuda:native;

import vmm.backend;

namespace vmm::cuda {

[[nodiscard]] CUmemLocation native(location where) noexcept;
[[nodiscard]] location from_native(const CUmemLocation& where) noexcept;

[[nodiscard]] CUmemAllocationHandleType native(share_kind kinds) noexcept;
[[nodiscard]] share_kind from_native(CUmemAllocationHandleType kinds) noexcept;

[[nodiscard]] CUmemAccess_flags native(access rights) noexcept;
[[nodiscard]] access from_native(unsigned long long flags) noexcept;

[[nodiscard]] CUstreamCaptureMode native(capture_mode mode) noexcept;
[[nodiscard]] capture_mode from_native(CUstreamCaptureMode mode) noexcept;

/// An optional property that the device lacks is left out.
[[nodiscard]] CUmemAllocationProp native(const physical_request& request,
                                         const features& can) noexcept;
[[nodiscard]] CUmulticastObjectProp native(const multicast_request& request) noexcept;

[[nodiscard]] CUmemGenericAllocationHandle native(physical_handle handle) noexcept;
[[nodiscard]] CUmemGenericAllocationHandle native(multicast_handle handle) noexcept;
[[nodiscard]] CUstream native(stream_handle stream) noexcept;
[[nodiscard]] CUevent native(event_handle event) noexcept;
/// Requires: a stream or an event of the driver, not null.
[[nodiscard]] stream_handle from_native(CUstream stream) noexcept;
[[nodiscard]] event_handle from_native(CUevent event) noexcept;

}  // namespace vmm::cuda
