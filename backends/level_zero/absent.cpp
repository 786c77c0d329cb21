// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.level_zero where vmm is built without Level Zero's headers: the module can be imported, and
// open() reports why no device exists. No object of the class can exist here, so the other members
// are never called; each returns the same error.
module vmm.level_zero;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

error absent() noexcept {
  return refuse(errc::unavailable,
                "vmm was built without Level Zero: install libze-dev and configure with "
                "-DVMM_LEVEL_ZERO=AUTO, or choose another backend");
}

constexpr features no_features{};
constexpr level_zero_description no_description{};

}  // namespace

struct level_zero::level_zero_state {};

level_zero_driver::level_zero_driver(std::unique_ptr<level_zero::level_zero_state> opened) noexcept
    : state_(std::move(opened)) {
  check(false, "an object of a backend that is not built");
}
level_zero_driver::~level_zero_driver() = default;
level_zero_driver::level_zero_driver(level_zero_driver&&) noexcept = default;
level_zero_driver& level_zero_driver::operator=(level_zero_driver&&) noexcept = default;

result<level_zero_driver> level_zero_driver::open(const level_zero_options&) { return absent(); }
const features& level_zero_driver::feature_set() const noexcept { return no_features; }
location level_zero_driver::home() const noexcept { return device(0); }
const level_zero_description& level_zero_driver::description() const noexcept {
  return no_description;
}
std::uint64_t level_zero_driver::native_context() const noexcept { return 0; }
std::uint64_t level_zero_driver::native_device() const noexcept { return 0; }
std::uint64_t level_zero_driver::native_stream(stream_handle) const noexcept { return 0; }

result<granularity> level_zero_driver::query_granularity(const physical_request&) {
  return absent();
}
result<memory_info> level_zero_driver::query_memory(location) { return absent(); }
result<address_range> level_zero_driver::reserve(const reserve_request&) { return absent(); }
status level_zero_driver::free_reservation(address_range) { return absent(); }
result<physical_handle> level_zero_driver::create(const physical_request&) { return absent(); }
status level_zero_driver::release(physical_handle) { return absent(); }
status level_zero_driver::map(const map_request&) { return absent(); }
status level_zero_driver::unmap(address_range) { return absent(); }
status level_zero_driver::set_access(address_range, std::span<const access_grant>) {
  return absent();
}
result<access> level_zero_driver::get_access(address, location) { return absent(); }
result<physical_properties> level_zero_driver::get_properties(physical_handle) { return absent(); }
result<stream_handle> level_zero_driver::create_stream() { return absent(); }
status level_zero_driver::destroy_stream(stream_handle) { return absent(); }
status level_zero_driver::synchronize_stream(stream_handle) { return absent(); }
result<event_handle> level_zero_driver::create_event() { return absent(); }
status level_zero_driver::destroy_event(event_handle) { return absent(); }
status level_zero_driver::record_event(event_handle, stream_handle) { return absent(); }
result<bool> level_zero_driver::query_event(event_handle) { return absent(); }
status level_zero_driver::wait_event(stream_handle, event_handle) { return absent(); }
status level_zero_driver::synchronize_event(event_handle) { return absent(); }
status level_zero_driver::synchronize_all() { return absent(); }
status level_zero_driver::copy(const copy_request&) { return absent(); }
status level_zero_driver::fill(const fill_request&) { return absent(); }
status level_zero_driver::write(address, std::span<const std::byte>) { return absent(); }
status level_zero_driver::read(std::span<std::byte>, address) { return absent(); }

}  // namespace vmm
