// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:concepts - what vmm requires of a driver.
//
// `backend` is the minimum of every driver; further concepts refine it. Code requires the smallest
// concept that it needs. docs/contract.md has the contract of each call, and
// tests/conformance checks every backend against it. A driver may lack the members of a refinement:
// generic code requires the concept, or takes an any_backend, which has them all.
//
// Rules for every implementation:
// - A failed call changes nothing; one that cannot undo its steps returns device_lost.
// - Calls may be made from any thread; a backend that needs a lock has one.
// - No call promises to wait for device work, and no caller may assume that it does not wait.
// - Mapping a whole handle at offset 0 is always legal; anything else needs its feature.
// - A fresh mapping has no access until set_access.
// - A backend refuses unknown requests with not_supported; it never downgrades silently.
export module vmm.backend:concepts;

import vmm.std;
import :result;
import :types;

namespace vmm {

// The members of a backend, one concept each: a compiler's message then names the one that is
// missing or returns another type.
template <class B>
concept has_name = requires(const B& b) {
  { b.name() } -> std::convertible_to<std::string_view>;
};
template <class B>
concept has_feature_set = requires(const B& b) {
  { b.feature_set() } -> std::convertible_to<const features&>;
};
template <class B>
concept has_home = requires(const B& b) {
  { b.home() } -> std::same_as<location>;
};
template <class B>
concept has_query_granularity = requires(B& b, const physical_request& request) {
  { b.query_granularity(request) } -> std::same_as<result<granularity>>;
};
template <class B>
concept has_query_memory = requires(B& b, location where) {
  { b.query_memory(where) } -> std::same_as<result<memory_info>>;
};
template <class B>
concept has_reserve = requires(B& b, const reserve_request& request) {
  { b.reserve(request) } -> std::same_as<result<address_range>>;
};
template <class B>
concept has_free_reservation = requires(B& b, address_range range) {
  { b.free_reservation(range) } -> std::same_as<status>;
};
template <class B>
concept has_create = requires(B& b, const physical_request& request) {
  { b.create(request) } -> std::same_as<result<physical_handle>>;
};
template <class B>
concept has_release = requires(B& b, physical_handle handle) {
  { b.release(handle) } -> std::same_as<status>;
};
template <class B>
concept has_map = requires(B& b, const map_request& request) {
  { b.map(request) } -> std::same_as<status>;
};
template <class B>
concept has_unmap = requires(B& b, address_range range) {
  { b.unmap(range) } -> std::same_as<status>;
};
template <class B>
concept has_set_access = requires(B& b, address_range range, std::span<const access_grant> grants) {
  { b.set_access(range, grants) } -> std::same_as<status>;
};
template <class B>
concept has_get_access = requires(B& b, address at, location place) {
  { b.get_access(at, place) } -> std::same_as<result<access>>;
};

/// Reserves addresses, creates physical memory, maps it, and sets access. home() is where this
/// object's memory is created unless a request names another place.
export template <class B>
concept backend =
    has_name<B> && has_feature_set<B> && has_home<B> && has_query_granularity<B> &&
    has_query_memory<B> && has_reserve<B> && has_free_reservation<B> && has_create<B> &&
    has_release<B> && has_map<B> && has_unmap<B> && has_set_access<B> && has_get_access<B>;

/// Compiles for a class that satisfies backend. For any other the message names the member that is
/// missing, or has other arguments or another result, and its declaration.
export template <class B>
consteval bool check_backend() {
  static_assert(has_name<B>, "a backend has `std::string_view name() const`");
  static_assert(has_feature_set<B>, "a backend has `const features& feature_set() const`");
  static_assert(has_home<B>, "a backend has `location home() const`");
  static_assert(has_query_granularity<B>,
                "a backend has `result<granularity> query_granularity(const physical_request&)`");
  static_assert(has_query_memory<B>, "a backend has `result<memory_info> query_memory(location)`");
  static_assert(has_reserve<B>,
                "a backend has `result<address_range> reserve(const reserve_request&)`");
  static_assert(has_free_reservation<B>, "a backend has `status free_reservation(address_range)`");
  static_assert(has_create<B>,
                "a backend has `result<physical_handle> create(const physical_request&)`");
  static_assert(has_release<B>, "a backend has `status release(physical_handle)`");
  static_assert(has_map<B>, "a backend has `status map(const map_request&)`");
  static_assert(has_unmap<B>, "a backend has `status unmap(address_range)`");
  static_assert(has_set_access<B>,
                "a backend has `status set_access(address_range, std::span<const access_grant>)`");
  static_assert(has_get_access<B>, "a backend has `result<access> get_access(address, location)`");
  return backend<B>;
}

/// Device work is asynchronous: streams order it, events mark points in it.
export template <class B>
concept stream_backend = backend<B> && requires(B& b, stream_handle stream, event_handle event) {
  { b.create_stream() } -> std::same_as<result<stream_handle>>;
  { b.destroy_stream(stream) } -> std::same_as<status>;
  { b.synchronize_stream(stream) } -> std::same_as<status>;  // blocks the calling thread
  { b.create_event() } -> std::same_as<result<event_handle>>;
  { b.destroy_event(event) } -> std::same_as<status>;
  { b.record_event(event, stream) } -> std::same_as<status>;
  {
    b.query_event(event)
  } -> std::same_as<result<bool>>;  // true: everything before it has finished
  {
    b.wait_event(stream, event)
  } -> std::same_as<status>;  // the stream waits on the device; the caller does not
  { b.synchronize_event(event) } -> std::same_as<status>;  // blocks the calling thread
};

/// One event can cover all work submitted to the device, on every stream.
export template <class B>
concept all_work_backend = stream_backend<B> && requires(B& b, event_handle event) {
  { b.record_all(event) } -> std::same_as<status>;
};

/// The host can wait for all work submitted to the device, on every stream.
export template <class B>
concept all_wait_backend = stream_backend<B> && requires(B& b) {
  { b.synchronize_all() } -> std::same_as<status>;  // blocks the calling thread
};

/// Streams can be captured into graphs. The mode is the calling thread's; exchanging it cannot
/// fail.
export template <class B>
concept capture_backend =
    stream_backend<B> && requires(B& b, stream_handle stream, capture_mode mode) {
      { b.query_capture(stream) } -> std::same_as<result<capture_info>>;
      { b.exchange_capture_mode(mode) } -> std::same_as<capture_mode>;  // the one before
    };

/// Reports in a register, without an observer, that a stream is not captured. False is unknown:
/// call query_capture().
export template <class B>
concept quick_capture_backend = capture_backend<B> && requires(B& b, stream_handle stream) {
  { b.is_uncaptured(stream) } noexcept -> std::same_as<bool>;
};

/// Streams have numbers that, unlike handles, are never reused. 0: the stream is being
/// captured, or its number is not known.
export template <class B>
concept stream_identity_backend = stream_backend<B> && requires(B& b, stream_handle stream) {
  { b.stream_identity(stream) } noexcept -> std::same_as<std::uint64_t>;
};

/// Tools that observe a thread need the device's context current on it. vmm's own calls do not.
export template <class B>
concept context_backend = backend<B> && requires(B& b) {
  { b.push_context() } -> std::same_as<bool>;  // false: a failure; do not pop
  { b.pop_context() } -> std::same_as<void>;
};

/// Bytes can be copied. copy and fill are in stream order; write and read are finished on return.
export template <class B>
concept copy_backend =
    backend<B> && requires(B& b, const copy_request& copy, const fill_request& fill, address at,
                           std::span<const std::byte> source, std::span<std::byte> target) {
      { b.copy(copy) } -> std::same_as<status>;
      { b.fill(fill) } -> std::same_as<status>;
      { b.write(at, source) } -> std::same_as<status>;
      { b.read(target, at) } -> std::same_as<status>;
    };

/// retain() returns one more handle to the memory behind an address, released like any other.
export template <class B>
concept retain_backend = backend<B> && requires(B& b, address at) {
  { b.retain(at) } -> std::same_as<result<physical_handle>>;
};

/// The granted properties of a handle can be read: optional ones may have been declined.
export template <class B>
concept property_backend = backend<B> && requires(B& b, physical_handle handle) {
  { b.get_properties(handle) } -> std::same_as<result<physical_properties>>;
};

/// Physical memory can be shared with another process.
export template <class B>
concept sharing_backend = backend<B> && requires(B& b, physical_handle handle, share_kind kind,
                                                 const shared_handle& shared) {
  { b.export_handle(handle, kind) } -> std::same_as<result<shared_handle>>;
  { b.import_handle(shared) } -> std::same_as<result<physical_handle>>;
};

/// Devices can get access to each other's memory; the driver reports which can.
export template <class B>
concept peer_backend = backend<B> && requires(B& b, const peer_query& query) {
  { b.query_peer(query) } -> std::same_as<result<peer_info>>;
};

/// A mapped range can be exported to other drivers of the system as a DMA-BUF.
export template <class B>
concept range_export_backend = backend<B> && requires(B& b, address_range range) {
  { b.export_range(range) } -> std::same_as<result<dma_buf>>;
};

/// One address for the memory of several devices.
export template <class B>
concept multicast_backend =
    backend<B> &&
    requires(B& b, const multicast_request& request, multicast_handle team, location place,
             const multicast_binding& binding, const multicast_address_binding& mapped) {
      { b.query_multicast_granularity(request) } -> std::same_as<result<granularity>>;
      { b.create_multicast(request) } -> std::same_as<result<multicast_handle>>;
      { b.add_multicast_device(team, place) } -> std::same_as<status>;
      { b.bind_multicast(binding) } -> std::same_as<status>;
      { b.bind_multicast_address(mapped) } -> std::same_as<status>;
      { b.unbind_multicast(binding) } -> std::same_as<status>;
    };

}  // namespace vmm
