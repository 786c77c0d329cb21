// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe:nvtx built without NVTX's headers: open() returns an error, and no object exists.
module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

struct nvtx_declarer::state {};

nvtx_declarer::nvtx_declarer(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {
  check(state_ == nullptr, "blocks are declared where vmm has no NVTX");
}
nvtx_declarer::~nvtx_declarer() = default;

result<std::unique_ptr<nvtx_declarer>> nvtx_declarer::open() {
  return refuse(errc::unavailable,
                "this build of vmm has no NVTX: it was built without nvtx3/nvToolsExtMem.h, which "
                "the CUDA toolkit and the Python package nvidia-nvtx have");
}

void nvtx_declarer::reserved(address_range) noexcept {}
void nvtx_declarer::unreserved(address_range) noexcept {}
void nvtx_declarer::mapped(address_range) noexcept {}
void nvtx_declarer::unmapped(address_range) noexcept {}
void nvtx_declarer::allocated(address_range) noexcept {}
void nvtx_declarer::freed(address) noexcept {}
std::uint64_t nvtx_declarer::heap_count() const { return 0; }
std::uint64_t nvtx_declarer::region_count() const { return 0; }

struct nvtx_ranges::state {};

nvtx_ranges::nvtx_ranges(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {
  check(state_ == nullptr, "events are shown where vmm has no NVTX");
}
nvtx_ranges::~nvtx_ranges() = default;
bool nvtx_ranges::has_counters() noexcept { return false; }

result<std::unique_ptr<nvtx_ranges>> nvtx_ranges::open() {
  return refuse(errc::unavailable,
                "this build of vmm has no NVTX: it was built without nvtx3/nvToolsExtMem.h, which "
                "the CUDA toolkit and the Python package nvidia-nvtx have");
}

void nvtx_ranges::heard(const history_note&) noexcept {}
void nvtx_ranges::count_block(const history_note&) noexcept {}

}  // namespace vmm
