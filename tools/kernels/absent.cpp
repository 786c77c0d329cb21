// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.kernels where vmm is built without cuda.h: load() says so. No object of the class can exist
// here, so no other member is ever called.
module vmm.kernels;

import vmm.backend;
import vmm.cuda;
import vmm.std;

namespace vmm::tools {
namespace {

error absent() noexcept {
  return refuse(errc::unavailable, "vmm was built without cuda.h, so there are no kernels");
}

}  // namespace

result<kernel_set> kernel_set::load(cuda_driver&) { return absent(); }
kernel_set::kernel_set(kernel_set&& from) noexcept : driver_(from.driver_) {}
kernel_set::~kernel_set() = default;
status kernel_set::launch(std::uint64_t, std::uint32_t, void**, stream_handle) { return absent(); }
status kernel_set::fill(const pattern_request&) { return absent(); }
status kernel_set::check(const pattern_request&, address) { return absent(); }
status kernel_set::copy(const array_request&) { return absent(); }
status kernel_set::triad(const array_request&) { return absent(); }
status kernel_set::gather(const array_request&) { return absent(); }
status kernel_set::poke(address, std::uint8_t, stream_handle) { return absent(); }
status kernel_set::spin(std::uint64_t, stream_handle) { return absent(); }

}  // namespace vmm::tools
