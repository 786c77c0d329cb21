// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:types - the types that all layers and backends share.
//
// Driver values cross this interface as strong 64-bit types, so that no consumer needs a vendor's
// header. Sizes are in bytes unless the name has granules. A public call takes no two integers of
// one type side by side: they are fields of a request (round_up is arithmetic).
//
// Thread safety: values only. Cost: no allocation.
export module vmm.backend:types;

import vmm.base;
import vmm.std;

namespace vmm {

/// An address in a device's (or the host's) virtual address space. Zero is "none".
export struct address {
  std::uint64_t value = 0;

  /// The address that a pointer names, of the host or of a device.
  [[nodiscard]] static address from_native(const volatile void* pointer) noexcept {
    return {reinterpret_cast<std::uintptr_t>(pointer)};
  }
  /// The address as a pointer: `at.as<float>()` for a kernel's argument, `at.as<void>()` for a C
  /// interface. Whether the host may dereference it is the backend's features::host_accessible.
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(value));
  }

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return value != 0; }
  friend constexpr bool operator==(const address& a, const address& b) noexcept = default;
  friend constexpr bool operator<(address a, address b) noexcept { return a.value < b.value; }
  friend constexpr bool operator<=(address a, address b) noexcept { return a.value <= b.value; }
  friend constexpr bool operator>(address a, address b) noexcept { return a.value > b.value; }
  friend constexpr bool operator>=(address a, address b) noexcept { return a.value >= b.value; }
  friend constexpr address operator+(address a, std::uint64_t size_bytes) noexcept {
    return {a.value + size_bytes};
  }
  friend constexpr std::uint64_t operator-(address a, address b) noexcept {
    return a.value - b.value;
  }
};

/// [base, base + size_bytes)
export struct address_range {
  address base{};
  std::uint64_t size_bytes = 0;

  /// One past the last address; 0 if the range ends with the address space.
  [[nodiscard]] constexpr address end() const noexcept { return base + size_bytes; }
  /// Whether the range has no bytes.
  [[nodiscard]] constexpr bool empty() const noexcept { return size_bytes == 0; }
  /// Whether the address, or all of the other range, lies inside. A range that runs past the last
  /// address lies in no other.
  [[nodiscard]] constexpr bool contains(address at) const noexcept {
    return at >= base && at - base < size_bytes;
  }
  [[nodiscard]] constexpr bool contains(address_range other) const noexcept {
    return other.base >= base && other.size_bytes <= size_bytes &&
           other.base - base <= size_bytes - other.size_bytes;
  }
  /// Whether the two have an address in common. Requires: neither ends with the address space.
  [[nodiscard]] constexpr bool overlaps(address_range other) const noexcept {
    return base < other.end() && other.base < end();
  }
  friend constexpr bool operator==(const address_range& a,
                                   const address_range& b) noexcept = default;
};

/// A driver's handle of physical memory. Zero is "none".
export enum class physical_handle : std::uint64_t { none = 0 };
/// A driver's handle of a multicast object. Zero is "none".
export enum class multicast_handle : std::uint64_t { none = 0 };
/// A queue of device work that finishes in order. Zero is the backend's default stream. A handle is
/// below 2^63, as a pointer is: allocators refuse others with invalid_argument.
export enum class stream_handle : std::uint64_t { default_stream = 0 };
/// The stream_handle of a native stream: a cudaStream_t, a CUstream, a hipStream_t or another
/// pointer. The null pointer and CU_STREAM_LEGACY, 1, are the backend's default stream.
/// CU_STREAM_PER_THREAD, 2, is a different stream in each thread, so memory freed on it has no
/// order with the next thread's requests: allocators refuse it with invalid_argument. Pass a
/// stream of your own.
export template <class Native>
  requires std::is_pointer_v<Native>
[[nodiscard]] stream_handle stream_from_native(Native native) noexcept {
  return static_cast<stream_handle>(reinterpret_cast<std::uintptr_t>(native));
}
/// The native stream again: `native_stream<cudaStream_t>(stream)`.
export template <class Native>
  requires std::is_pointer_v<Native>
[[nodiscard]] Native native_stream(stream_handle stream) noexcept {
  return reinterpret_cast<Native>(static_cast<std::uintptr_t>(stream));
}

/// A point in a stream's work that can be queried and waited for. Zero is "none".
export enum class event_handle : std::uint64_t { none = 0 };

/// A place of memory, which can have access to memory.
export struct location {
  enum class place : std::uint8_t { device, host, host_node };
  place kind = place::device;
  std::int32_t ordinal = 0;  ///< device number or NUMA node; 0 for host

  friend constexpr bool operator==(const location& a, const location& b) noexcept = default;
};
/// A device by its number, the host, and one NUMA node of the host.
export [[nodiscard]] constexpr location device(std::int32_t ordinal) noexcept {
  return {location::place::device, ordinal};
}
export [[nodiscard]] constexpr location host() noexcept { return {location::place::host, 0}; }
export [[nodiscard]] constexpr location host_node(std::int32_t node) noexcept {
  return {location::place::host_node, node};
}

/// The access of a location to a mapping.
export enum class access : std::uint8_t { none, read, read_write };

/// The rights of one location on mapped memory.
export struct access_grant {
  location grantee{};
  access rights = access::read_write;
  friend constexpr bool operator==(const access_grant&, const access_grant&) noexcept = default;
};

/// The rights of up to grants_max locations, each named once, in the order of their first set().
/// Allocates nothing.
export class grant_list {
 public:
  static constexpr std::size_t grants_max = 18;

  constexpr grant_list() = default;
  /// The rights of one location.
  constexpr grant_list(const access_grant& only) noexcept : count_(1) { grants_[0] = only; }
  /// The rights of two locations; those of the second if both are the same.
  constexpr grant_list(const access_grant& first, const access_grant& second) noexcept
      : grant_list(first) {
    (void)set(second);
  }

  /// Sets the rights of the location. False, without a change, if it is a new one and the list is
  /// full.
  constexpr bool set(const access_grant& grant) noexcept {
    check(count_ <= grants_max, "a list of rights exceeds its capacity");
    for (std::size_t i = 0; i < count_; ++i) {
      if (grants_[i].grantee != grant.grantee) continue;
      grants_[i].rights = grant.rights;
      return true;
    }
    if (count_ == grants_max) return false;
    grants_[count_++] = grant;
    debug_check([&] { return of(grant.grantee) == grant.rights; }, "set() lost an access right");
    return true;
  }
  /// The rights of a location; none if the list does not name it.
  [[nodiscard]] constexpr access of(location place) const noexcept {
    for (const access_grant& each : all()) {
      if (each.grantee == place) return each.rights;
    }
    return access::none;
  }
  /// The list without the grants of access::none, for a new mapping.
  [[nodiscard]] constexpr grant_list granted() const noexcept {
    grant_list some;
    for (const access_grant& each : all()) {
      if (each.rights != access::none) (void)some.set(each);
    }
    check(some.count_ <= count_, "more locations have rights than the list contains");
    return some;
  }
  [[nodiscard]] constexpr std::span<const access_grant> all() const noexcept {
    return std::span(grants_).first(count_);
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return count_ == 0; }
  friend constexpr bool operator==(const grant_list& a, const grant_list& b) noexcept {
    return std::equal(a.all().begin(), a.all().end(), b.all().begin(), b.all().end());
  }

 private:
  std::array<access_grant, grants_max> grants_{};
  std::size_t count_ = 0;
};

/// Whether work at `from` can get access to memory at `to`.
export struct peer_query {
  location from{};
  location to{};
};

/// The link between two locations, as far as the driver reports it.
export enum class link_kind : std::uint8_t {
  none,    // neither reaches the other's memory
  itself,  // the same location
  peer,    // two devices that reach each other directly
  host,    // a device and memory of the host
};

/// A driver's report of two locations.
export struct peer_info {
  link_kind link = link_kind::none;
  bool native_atomics = false;  ///< atomic operations work across the link
  /// The driver's own measure of the link, if it has one: smaller is nearer. 0: not reported.
  std::uint32_t rank = 0;

  /// Whether rights can be granted across the link.
  [[nodiscard]] constexpr bool is_reachable() const noexcept { return link != link_kind::none; }
};

/// A descriptor of a DMA-BUF over an address range; the receiver closes it.
export struct dma_buf {
  std::int64_t descriptor = -1;
  std::uint64_t size_bytes = 0;
};

/// Sizes, offsets and addresses must be multiples of `minimum_bytes`; `recommended_bytes` is a
/// multiple of it.
export struct granularity {
  std::uint64_t minimum_bytes = 0;
  std::uint64_t recommended_bytes = 0;
};

/// Ways to hand physical memory to another process, as bits.
export enum class share_kind : std::uint8_t { none = 0, posix_fd = 1, win32 = 2, fabric = 4 };

/// A request for physical memory. The driver may decline optional properties (`compressible`);
/// query the granted ones.
export struct physical_request {
  std::uint64_t size_bytes = 0;
  location where{};
  share_kind shareable = share_kind::none;
  bool compressible = false;
  bool rdma_capable = false;
};

/// Physical memory as granted: the driver's properties of a handle.
export struct physical_properties {
  location where{};
  share_kind shareable = share_kind::none;
  bool compressible = false;
  bool rdma_capable = false;
};

/// A request for addresses. `hint` is optional; `alignment_bytes` (a power of two, or 0) is kept.
export struct reserve_request {
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment_bytes = 0;
  address hint{};
};

/// Joins `size_bytes` of `memory`, from `offset_bytes` on, to the addresses from `at` on.
export struct map_request {
  address at{};
  std::uint64_t size_bytes = 0;
  physical_handle memory = physical_handle::none;
  std::uint64_t offset_bytes = 0;
};

/// A copy between two mapped ranges, in stream order.
export struct copy_request {
  address target{};
  address source{};
  std::uint64_t size_bytes = 0;
  stream_handle stream = stream_handle::default_stream;
};

/// Sets every byte of a mapped range to `value`, in stream order.
export struct fill_request {
  address_range target{};
  std::uint8_t value = 0;
  stream_handle stream = stream_handle::default_stream;
};

/// Physical memory in a form that another process can receive.
export struct shared_handle {
  share_kind kind = share_kind::none;
  std::int64_t descriptor =
      -1;  ///< posix_fd: an open descriptor that the receiver of this value owns
  std::uint8_t fabric[64] = {};  ///< fabric: the opaque bytes
  std::uint64_t size_bytes = 0;
};

/// A request for a multicast object.
export struct multicast_request {
  std::uint64_t size_bytes = 0;
  std::uint32_t device_count = 0;
  share_kind shareable = share_kind::none;
};

/// Binds `size_bytes` of `memory` (a device's own) to `team` at `team_offset_bytes`.
export struct multicast_binding {
  multicast_handle team = multicast_handle::none;
  location device{};
  physical_handle memory = physical_handle::none;
  std::uint64_t team_offset_bytes = 0;
  std::uint64_t memory_offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

/// Binds the memory that is mapped at `memory` (a device's own) to `team` at `team_offset_bytes`.
export struct multicast_address_binding {
  multicast_handle team = multicast_handle::none;
  address_range memory{};
  std::uint64_t team_offset_bytes = 0;
};

/// Physical memory of a location.
export struct memory_info {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  /// Of a features::is_lender: that create() may still return at home, beyond a share too.
  std::uint64_t lendable_bytes = 0;

  /// Total less free memory.
  [[nodiscard]] constexpr std::uint64_t used_bytes() const noexcept {
    return free_bytes < total_bytes ? total_bytes - free_bytes : 0;
  }
};

/// Whether a stream's work is captured into a graph instead of run.
export enum class capture_state : std::uint8_t {
  none,
  active,
  invalidated,  // an error ended the capture; the stream is unusable until the capture is ended
};

/// The capture of a stream. One capture may contain several streams.
export struct capture_info {
  capture_state state = capture_state::none;
  std::uint64_t id = 0;  ///< of an active capture: no other of the process has it; else 0
};

/// The captures that forbid a thread calls that may invalidate them.
export enum class capture_mode : std::uint8_t {
  any_thread,   // its own, and those of other threads that were begun in this mode
  this_thread,  // its own
  relaxed,      // none
};

/// When writes through one mapping are visible through another of the same memory.
export enum class alias_level : std::uint8_t {
  none,        // a second mapping of one handle is refused
  after_work,  // a write through one address is seen through the other once the writing work has
               // finished
  coherent,    // seen at once
};

/// A device's support of read-only access.
export enum class read_only_level : std::uint8_t { refused, hint, enforced };

/// The time in which a driver's calls pass.
export class driver_clock {
 public:
  /// Nanoseconds since some moment; never fewer than before.
  [[nodiscard]] virtual std::uint64_t read_ns() const noexcept = 0;

 protected:
  ~driver_clock() = default;
};

/// Properties of this backend and its device. Constant for the object's life.
export struct features {
  bool offset_map = false;            ///< map may start inside a handle
  bool short_map = false;             ///< map may take less than the whole handle
  bool partial_unmap = false;         ///< unmap may cut a mapping
  bool spanning_unmap = false;        ///< one unmap may take several adjacent whole mappings
  bool partial_access = false;        ///< set_access may take part of a mapping
  bool access_per_location = false;   ///< grants may differ by location
  bool release_while_mapped = false;  ///< a handle may be released before its last unmap
  bool replace_in_place = false;      ///< map over a mapped range replaces it
  bool exact_hint = false;            ///< reserve at a free hint always returns the hint
  bool lazy_commit = false;           ///< create may succeed for memory that is not available
  bool unmap_may_stall = false;       ///< unmap or release can take milliseconds under running work
  bool fresh_memory_zero = false;  ///< observed, not promised: newly created memory reads as zero
  bool contents_stay =
      false;  ///< contents stay at their addresses when memory is mapped elsewhere: for code that
              ///< moves free memory only
  bool host_accessible = false;  ///< the host may dereference mapped addresses
  bool streams = false;          ///< work is asynchronous; events show when it has finished
  bool record_all = false;       ///< one event can cover the work of all streams: record_all()
  bool stream_identity = false;  ///< stream_identity() differs for a later stream
  bool capture = false;          ///< streams can be captured into graphs, and queried
  /// Streams with a smaller number can never be captured.
  std::uint64_t capturable_from = 0;
  std::uint64_t default_stream_alias = 0;  ///< another number of the default stream; 0: none
  std::uint64_t stream_per_thread = 0;     ///< the number of the per-thread default stream; 0: none
  bool copy = false;                       ///< copy, fill, read and write are available
  bool retain = false;                     ///< retain() returns a handle of a mapped address
  bool host_location = false;              ///< physical memory on the host
  bool host_node_location = false;         ///< physical memory on a chosen NUMA node
  bool export_posix_fd = false;
  bool export_fabric = false;      ///< of the device; only a trial shows whether it is permitted
  bool multicast = false;          ///< multicast objects may be made
  bool multicast_capable = false;  ///< the device has them, permitted or not
  bool compression = false;
  bool rdma = false;
  bool peers = false;           ///< devices can use each other's memory: query_peer()
  bool export_dma_buf = false;  ///< export_range() returns a DMA-BUF of an address range
  /// Equal for drivers of this process that create memory of the same devices: idle memory of one
  /// serves the others. Null: no other driver shares this object's memory.
  const void* memory_source = nullptr;
  /// Memory at home is lent by an owner, whose limit for this driver changes: query_granularity()
  /// refuses a size beyond it, and memory_info has lendable_bytes.
  bool is_lender = false;
  const driver_clock* clock = nullptr;  ///< calls are timed by it; null: by the host's clock
  alias_level alias = alias_level::none;
  read_only_level read_only = read_only_level::refused;
  std::uint64_t max_reservation_bytes =
      0;  ///< the largest single reservation known to work; 0 when not known
  std::uint64_t max_mapping_count = 0;  ///< the system's limit on live mappings; 0 if unknown

  /// Streams from this number on are created by programs; those below never end.
  [[nodiscard]] constexpr std::uint64_t first_created_stream() const noexcept {
    const std::uint64_t reserved =
        default_stream_alias > stream_per_thread ? default_stream_alias : stream_per_thread;
    return capturable_from > reserved ? capturable_from : reserved + 1;
  }
  /// Whether this is the per-thread default stream, which allocators refuse.
  [[nodiscard]] constexpr bool is_per_thread(stream_handle stream) const noexcept {
    return stream_per_thread != 0 && static_cast<std::uint64_t>(stream) == stream_per_thread;
  }
  /// The stream by the number under which allocators list it.
  [[nodiscard]] constexpr stream_handle canonical(stream_handle stream) const noexcept {
    return static_cast<std::uint64_t>(stream) == default_stream_alias
               ? stream_handle::default_stream
               : stream;
  }
};

/// Whether the stream can be captured, by its number alone, without a driver call.
export [[nodiscard]] constexpr bool can_capture(const features& can,
                                                stream_handle stream) noexcept {
  return can.capture && static_cast<std::uint64_t>(stream) >= can.capturable_from;
}

}  // namespace vmm
