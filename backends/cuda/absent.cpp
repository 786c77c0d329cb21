// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda where vmm is built without cuda.h: the module can be imported, and open() says why there
// is no device. No object of the class can exist here, so no other member is ever called; each
// answers the same refusal.
module vmm.cuda;

import vmm.backend;
import vmm.std;
import vmm.support;

namespace vmm {
namespace {

error absent() noexcept {
  return refuse(errc::unavailable,
                "vmm was built without cuda.h: install the CUDA toolkit's headers and configure "
                "again, or choose "
                "another backend");
}

constexpr features no_features{};
constexpr cuda_description no_description{};

}  // namespace

namespace cuda {
struct driver_state {};
}  // namespace cuda

cuda_driver::cuda_driver(std::unique_ptr<cuda::driver_state> opened) noexcept
    : state_(std::move(opened)) {
  check(state_ == nullptr, "a device was opened where vmm has no driver for it");
}
cuda_driver::~cuda_driver() = default;
cuda_driver::cuda_driver(cuda_driver&&) noexcept = default;
cuda_driver& cuda_driver::operator=(cuda_driver&&) noexcept = default;

result<cuda_driver> cuda_driver::open(const cuda_options&) { return absent(); }
const features& cuda_driver::feature_set() const noexcept { return no_features; }
location cuda_driver::home() const noexcept { return device(0); }
const cuda_description& cuda_driver::description() const noexcept { return no_description; }
std::uint64_t cuda_driver::native_context() const noexcept { return 0; }
void* cuda_driver::entry_point(const char*, std::int32_t) const noexcept { return nullptr; }

result<granularity> cuda_driver::query_granularity(const physical_request&) { return absent(); }
result<memory_info> cuda_driver::query_memory(location) { return absent(); }
result<address_range> cuda_driver::reserve(const reserve_request&) { return absent(); }
status cuda_driver::free_reservation(address_range) { return absent(); }
result<physical_handle> cuda_driver::create(const physical_request&) { return absent(); }
status cuda_driver::release(physical_handle) { return absent(); }
status cuda_driver::map(const map_request&) { return absent(); }
status cuda_driver::unmap(address_range) { return absent(); }
status cuda_driver::set_access(address_range, std::span<const access_grant>) { return absent(); }
result<access> cuda_driver::get_access(address, location) { return absent(); }
result<physical_handle> cuda_driver::retain(address) { return absent(); }
result<physical_properties> cuda_driver::get_properties(physical_handle) { return absent(); }
result<stream_handle> cuda_driver::create_stream() { return absent(); }
status cuda_driver::destroy_stream(stream_handle) { return absent(); }
status cuda_driver::synchronize_stream(stream_handle) { return absent(); }
result<event_handle> cuda_driver::create_event() { return absent(); }
status cuda_driver::destroy_event(event_handle) { return absent(); }
status cuda_driver::record_event(event_handle, stream_handle) { return absent(); }
status cuda_driver::record_all(event_handle) { return absent(); }
result<bool> cuda_driver::query_event(event_handle) { return absent(); }
status cuda_driver::wait_event(stream_handle, event_handle) { return absent(); }
result<capture_info> cuda_driver::query_capture(stream_handle) { return absent(); }
bool cuda_driver::is_uncaptured(stream_handle) noexcept { return false; }
capture_mode cuda_driver::exchange_capture_mode(capture_mode mode) { return mode; }
bool cuda_driver::push_context() noexcept { return false; }
void cuda_driver::pop_context() noexcept {}
status cuda_driver::synchronize_event(event_handle) { return absent(); }
status cuda_driver::copy(const copy_request&) { return absent(); }
status cuda_driver::fill(const fill_request&) { return absent(); }
status cuda_driver::write(address, std::span<const std::byte>) { return absent(); }
status cuda_driver::read(std::span<std::byte>, address) { return absent(); }
result<shared_handle> cuda_driver::export_handle(physical_handle, share_kind) { return absent(); }
result<physical_handle> cuda_driver::import_handle(const shared_handle&) { return absent(); }
status cuda_driver::probe_fabric() { return absent(); }
result<peer_info> cuda_driver::query_peer(const peer_query&) { return absent(); }
result<dma_buf> cuda_driver::export_range(address_range) { return absent(); }
result<granularity> cuda_driver::query_multicast_granularity(const multicast_request&) {
  return absent();
}
result<multicast_handle> cuda_driver::create_multicast(const multicast_request&) {
  return absent();
}
status cuda_driver::add_multicast_device(multicast_handle, location) { return absent(); }
status cuda_driver::bind_multicast(const multicast_binding&) { return absent(); }
status cuda_driver::bind_multicast_address(const multicast_address_binding&) { return absent(); }
status cuda_driver::unbind_multicast(const multicast_binding&) { return absent(); }

}  // namespace vmm
