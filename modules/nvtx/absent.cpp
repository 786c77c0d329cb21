// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.nvtx where vmm is built without NVTX's headers: open() says so, and no object can exist.
module;
#include <cstdint>
#include <memory>
#include <utility>

module vmm.nvtx;

import vmm.backend;

namespace vmm {

struct nvtx_declarer::state {};

nvtx_declarer::nvtx_declarer(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}
nvtx_declarer::~nvtx_declarer() = default;

result<std::unique_ptr<nvtx_declarer>> nvtx_declarer::open() {
  return refuse(errc::unavailable,
                "vmm was built without nvtx3/nvToolsExtMem.h: install a CUDA toolkit's headers and "
                "configure again");
}

void nvtx_declarer::reserved(address_range) {}
void nvtx_declarer::unreserved(address_range) {}
void nvtx_declarer::mapped(address_range) {}
void nvtx_declarer::unmapped(address_range) {}
void nvtx_declarer::allocated(address_range) {}
void nvtx_declarer::freed(address) {}
std::uint64_t nvtx_declarer::heap_count() const { return 0; }
std::uint64_t nvtx_declarer::region_count() const { return 0; }

}  // namespace vmm
