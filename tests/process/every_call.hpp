// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every call of a driver, each expected to be refused as a forked child's: of each place, kind and
// feature, whether the driver has it or not. It imports what it uses, so it is the last
// include except others with imports.
#pragma once

#include "child.hpp"

namespace process_test {

inline constexpr std::uint64_t object_bytes = std::uint64_t{4} << 20;

/// What the parent has made so far.
struct objects {
  vmm::address_range range{vmm::address{0x10000000}, object_bytes};
  vmm::physical_handle memory{1};
  vmm::stream_handle stream{};
  vmm::event_handle event{};
};

template <class Driver>
void use_places(Driver& driver) {
  for (const vmm::location where : {driver.home(), vmm::device(0), vmm::device(7), vmm::host(),
                                    vmm::host_node(0), vmm::host_node(99)}) {
    vmm::physical_request like{.size_bytes = object_bytes, .where = where};
    expect_refused(driver.query_granularity(like), "query_granularity");
    expect_refused(driver.query_memory(where), "query_memory");
    expect_refused(driver.create(like), "create");
    like.rdma_capable = true;
    expect_refused(driver.create(like), "create for RDMA");
    if constexpr (vmm::peer_backend<Driver>) {
      expect_refused(driver.query_peer({driver.home(), where}), "query_peer");
      expect_refused(driver.query_peer({where, driver.home()}), "query_peer");
    }
  }
}

template <class Driver>
void use_addresses(Driver& driver, const objects& of) {
  expect_refused(driver.reserve({.size_bytes = object_bytes}), "reserve");
  expect_refused(driver.map({of.range.base, object_bytes, of.memory, 0}), "map");
  for (const vmm::location grantee : {driver.home(), vmm::device(7), vmm::host()}) {
    const vmm::access_grant grants[] = {{grantee, vmm::access::read_write},
                                        {grantee, vmm::access::read}};
    expect_refused(driver.set_access(of.range, {grants, 1}), "set_access");
    expect_refused(driver.set_access(of.range, grants), "set_access of differing rights");
    expect_refused(driver.get_access(of.range.base, grantee), "get_access");
  }
  expect_refused(driver.set_access(of.range, {}), "set_access of nothing");
  expect_refused(driver.unmap(of.range), "unmap");
  expect_refused(driver.release(of.memory), "release");
  expect_refused(driver.free_reservation(of.range), "free_reservation");
  expect_refused(driver.get_properties(of.memory), "get_properties");
  if constexpr (vmm::retain_backend<Driver>) expect_refused(driver.retain(of.range.base), "retain");
  if constexpr (vmm::range_export_backend<Driver>)
    expect_refused(driver.export_range(of.range), "export_range");
}

template <class Driver>
void use_sharing(Driver& driver, const objects& of) {
  using vmm::share_kind;
  for (const share_kind kind :
       {share_kind::none, share_kind::posix_fd, share_kind::fabric, share_kind::win32}) {
    const vmm::physical_request like{
        .size_bytes = object_bytes, .where = driver.home(), .shareable = kind};
    expect_refused(driver.create(like), "create of a kind");
    if constexpr (vmm::sharing_backend<Driver>) {
      vmm::shared_handle shared;
      shared.kind = kind;
      shared.descriptor = 0;
      expect_refused(driver.export_handle(of.memory, kind), "export_handle");
      expect_refused(driver.import_handle(shared), "import_handle");
    }
  }
}

template <class Driver>
void use_bytes(Driver& driver, const objects& of) {
  std::array<std::byte, 8> bytes{};
  for (const auto stream : {vmm::stream_handle::default_stream, of.stream}) {
    expect_refused(driver.copy({of.range.base, of.range.base + object_bytes / 2, 8, stream}),
                   "copy");
    expect_refused(driver.fill({of.range, 0, stream}), "fill");
  }
  expect_refused(driver.write(of.range.base, bytes), "write");
  expect_refused(driver.read(bytes, of.range.base), "read");
}

template <class Driver>
void use_work(Driver& driver, const objects& of) {
  expect_refused(driver.create_stream(), "create_stream");
  expect_refused(driver.synchronize_stream(of.stream), "synchronize_stream");
  expect_refused(driver.create_event(), "create_event");
  expect_refused(driver.record_event(of.event, of.stream), "record_event");
  expect_refused(driver.query_event(of.event), "query_event");
  expect_refused(driver.wait_event(of.stream, of.event), "wait_event");
  expect_refused(driver.synchronize_event(of.event), "synchronize_event");
  expect_refused(driver.destroy_event(of.event), "destroy_event");
  expect_refused(driver.destroy_stream(of.stream), "destroy_stream");
  if constexpr (vmm::all_work_backend<Driver>)
    expect_refused(driver.record_all(of.event), "record_all");
  if constexpr (vmm::all_wait_backend<Driver>)
    expect_refused(driver.synchronize_all(), "synchronize_all");
  if constexpr (vmm::capture_backend<Driver>) {
    expect_refused(driver.query_capture(of.stream), "query_capture");
    expect_refused(driver.query_capture(vmm::stream_handle::default_stream), "query_capture");
    (void)driver.exchange_capture_mode(vmm::capture_mode::relaxed);
  }
  if constexpr (vmm::context_backend<Driver>) {
    expect(!driver.push_context(), "a context was pushed");
    driver.pop_context();
  }
}

template <class Driver>
void use_multicast(Driver& driver, const objects& of) {
  if constexpr (vmm::multicast_backend<Driver>) {
    const auto team = static_cast<vmm::multicast_handle>(1);
    const vmm::multicast_request request{object_bytes, 2, vmm::share_kind::none};
    const vmm::multicast_binding binding{team, driver.home(), of.memory, 0, 0, object_bytes};
    expect_refused(driver.query_multicast_granularity(request), "query_multicast_granularity");
    expect_refused(driver.create_multicast(request), "create_multicast");
    expect_refused(driver.add_multicast_device(team, driver.home()), "add_multicast_device");
    expect_refused(driver.bind_multicast(binding), "bind_multicast");
    expect_refused(driver.bind_multicast_address({team, of.range, 0}), "bind_multicast_address");
    expect_refused(driver.unbind_multicast(binding), "unbind_multicast");
  }
}

template <class Driver>
void use_every_call(Driver& driver, const objects& of) {
  use_places(driver);
  use_addresses(driver, of);
  use_sharing(driver, of);
  use_bytes(driver, of);
  use_work(driver, of);
  use_multicast(driver, of);
}

}  // namespace process_test
