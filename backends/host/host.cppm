// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.host - real memory on Linux, without a GPU: memory files mapped in reserved addresses.
//
// Linux replaces mappings silently, maps past a file's end and changes rights half-way; the driver
// has its own tables of reservations, memory and mappings, and refuses these (docs/contract.md).
//
// I1  Every address of a live reservation is inaccessible, or backed by memory that map put there.
// I2  Memory lives while a handle or a mapping refers to it, and is released to the system with the
//     last of them.
// I3  Unless commit is lazy, memory is committed when create returns; a request for more than the
//     system has is refused.
//
// Unmapping and freeing work also at the process's limit of kernel mappings. A forked child reaches
// none of the memory: it has holes in place of the parent's mappings, every call returns
// not_permitted, and destroying its copy changes nothing.
//
// Memory that is not shareable is an extent of one file: it costs no descriptor, and neighbouring
// extents become one kernel mapping. Each shareable memory has a file of its own, sealed so that a
// peer cannot shrink it. A forked child has copies of the descriptors, which keep shareable memory
// alive until it ends or calls exec.
//
// Thread safety: any call from any thread; copies run concurrently, other calls one after another.
// Cost: O(log n) in live reservations and mappings plus the system call; 0.1 ms a MiB committed.
export module vmm.host;

export import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

struct host_state;  // :tables

/// Whether memory is committed when create returns.
export enum class commit_mode : std::uint8_t {
  eager,  // committed; too much is refused with out_of_memory
  lazy,   // committed at the first access; too much ends the process at that access
};

/// The commitment of memory, and the units in which it is mapped.
export struct host_options {
  commit_mode commit = commit_mode::eager;
  /// The smallest mappable unit: 0 for the system's page, else a power of two and a multiple of it.
  std::uint64_t minimum_bytes = 0;
  /// The recommended granularity, a multiple of the minimum. With 2 MiB, the granule of GPUs, the
  /// usual limit of 65,530 mappings covers 128 GiB.
  std::uint64_t recommended_bytes = 2ull << 20;
  /// The maximum of physical memory; 0: no limit but the system's.
  std::uint64_t capacity_bytes = 0;
  /// 2 MiB pages from the system's pool (vm.nr_hugepages); granularity is then at least that.
  bool huge_pages = false;
};

/// The live objects of one driver.
export struct host_resource_counts {
  std::uint64_t reservations = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t handles = 0;   ///< created, retained or imported, and not released
  std::uint64_t memories = 0;  ///< pieces of physical memory that handles or mappings keep alive
  std::uint64_t memory_bytes = 0;  ///< their bytes, each counted once
  std::uint64_t mappings = 0;
  std::uint64_t mapped_bytes = 0;  ///< aliases count each time
  std::uint64_t descriptors = 0;   ///< of shareable memory; exported ones are their receivers'

  /// Whether no object is alive.
  [[nodiscard]] constexpr bool empty() const noexcept {
    return (reservations | handles | memories | mappings | descriptors) == 0;
  }
};

/// Satisfies backend, stream_backend, copy_backend, retain_backend, property_backend and
/// sharing_backend; docs/contract.md has the contract of each call. Work is finished when a call
/// returns, so the calls of stream_backend return not_supported.
export class host_driver {
 public:
  /// Errors: bad_option (a size that host_options excludes), unavailable (no memory files on this
  /// system, or no huge pages set aside), out_of_host_memory.
  [[nodiscard]] static result<host_driver> open(const host_options& options = {}) noexcept;

  /// Releases all remaining objects: mappings, reservations, memory, descriptors.
  ~host_driver();
  host_driver(host_driver&&) noexcept;
  host_driver& operator=(host_driver&&) noexcept;
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  // backend
  [[nodiscard]] std::string_view name() const noexcept { return "host"; }
  [[nodiscard]] const features& feature_set() const noexcept;
  [[nodiscard]] location home() const noexcept { return host(); }
  [[nodiscard]] result<granularity> query_granularity(const physical_request& request) noexcept;
  [[nodiscard]] result<memory_info> query_memory(location where) noexcept;
  [[nodiscard]] result<address_range> reserve(const reserve_request& request) noexcept;
  [[nodiscard]] status free_reservation(address_range range) noexcept;
  [[nodiscard]] result<physical_handle> create(const physical_request& request) noexcept;
  [[nodiscard]] status release(physical_handle handle) noexcept;
  [[nodiscard]] status map(const map_request& request) noexcept;
  [[nodiscard]] status unmap(address_range range) noexcept;
  [[nodiscard]] status set_access(address_range range,
                                  std::span<const access_grant> grants) noexcept;
  [[nodiscard]] result<access> get_access(address at, location place) noexcept;

  // stream_backend: features::streams is false, and each returns not_supported
  [[nodiscard]] result<stream_handle> create_stream() noexcept;
  [[nodiscard]] status destroy_stream(stream_handle stream) noexcept;
  [[nodiscard]] status synchronize_stream(stream_handle stream) noexcept;
  [[nodiscard]] result<event_handle> create_event() noexcept;
  [[nodiscard]] status destroy_event(event_handle event) noexcept;
  [[nodiscard]] status record_event(event_handle event, stream_handle stream) noexcept;
  [[nodiscard]] result<bool> query_event(event_handle event) noexcept;
  [[nodiscard]] status wait_event(stream_handle stream, event_handle event) noexcept;
  [[nodiscard]] status synchronize_event(event_handle event) noexcept;

  // copy_backend; the only stream is the default one, and the work is done when the call returns
  [[nodiscard]] status copy(const copy_request& request) noexcept;
  [[nodiscard]] status fill(const fill_request& request) noexcept;
  [[nodiscard]] status write(address at, std::span<const std::byte> source) noexcept;
  [[nodiscard]] status read(std::span<std::byte> target, address at) noexcept;

  // retain_backend, property_backend
  [[nodiscard]] result<physical_handle> retain(address at) noexcept;
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle) noexcept;

  // sharing_backend; the caller closes the descriptor that export returns; import leaves its
  // descriptor open
  [[nodiscard]] result<shared_handle> export_handle(physical_handle handle,
                                                    share_kind kind) noexcept;
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& shared) noexcept;

  /// The live objects of this driver. Cost: O(objects).
  [[nodiscard]] host_resource_counts resource_counts() const noexcept;

 private:
  explicit host_driver(std::unique_ptr<host_state> made) noexcept;
  void leave_if_forked() noexcept;
  std::unique_ptr<host_state> state_;
  user_count users_;
};

static_assert(check_backend<host_driver>());
static_assert(stream_backend<host_driver>);
static_assert(copy_backend<host_driver>);
static_assert(retain_backend<host_driver>);
static_assert(property_backend<host_driver>);
static_assert(sharing_backend<host_driver>);

}  // namespace vmm
