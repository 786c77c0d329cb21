// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The pools behind handles of other units, for history.cpp. It imports what it uses, so it is the
// last include of a file.
#pragma once

#include <cstdint>
#include <optional>

#include "vmm.h"

import vmm.stream;

namespace vmm_c {

using pool_work = vmm_status (*)(vmm::stream_pool& pool, void* context);

// The result of `work`; nullopt if the handle is not a live one of this kind.
[[nodiscard]] std::optional<vmm_status> with_pool(const void* handle, pool_work work,
                                                  void* context);
// The same of the pool that an allocator has on a device, which is opened where it was not in use.
[[nodiscard]] std::optional<vmm_status> with_allocator(const void* handle, std::int32_t device,
                                                       pool_work work, void* context);

}  // namespace vmm_c
