// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The resources of vmm.hpp over a handle of a driver: vmm.hpp and modules do not go together.
#pragma once

#include <cstddef>
#include <memory>

#include "vmm.h"

namespace c_test {

struct resources;
struct end_resources {
  void operator()(resources* gone) const noexcept;
};
using owned_resources = std::unique_ptr<resources, end_resources>;

/// A pool and its resources. The driver stays the caller's.
[[nodiscard]] vmm_status make_resources(vmm_driver* on, owned_resources& made);

/// allocate_sync() of device_resource, and the stream-ordered allocate() of stream_resource. The
/// block lives as long as the pool.
[[nodiscard]] vmm_status allocate_sync(const resources& from, std::size_t size_bytes);
[[nodiscard]] vmm_status allocate(const resources& from, std::size_t size_bytes);

}  // namespace c_test
