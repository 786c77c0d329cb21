// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - a deterministic GPU driver in plain memory.
//
// It follows the rules and the costs of a real driver, stores the contents of memory, injects
// planned faults, and reports every misuse. No system calls, no threads, no wall clock: equal calls
// give equal results.
//
// I1  Memory lives while a handle or a mapping refers to it, in any driver of the same machine.
// I2  now_ns never decreases; busy_ns is the part of it that calls took, without waiting.
//
// A failed call changes nothing, except under a trap of the profile. In a forked child every driver
// call is refused, and destroying the child's copy changes nothing. A test's other queries are for
// the process that created the machine.
//
// Thread safety: any call from any thread; one lock for all drivers of a machine.
// Cost: O(log n) in the live mappings or reservations, plus O(1) for each mapping touched. No
// allocation in steady state.
export module vmm.fake;

export import vmm.backend;
export import :profile;
export import :report;
import vmm.base;
import vmm.std;

namespace vmm {

/// A deterministic driver with the rules, costs, streams and faults of a real one.
export class fake_driver;

namespace fake {

/// A captured graph; 0 is none.
export enum class graph_handle : std::uint64_t { none = 0 };

struct machine_state;
struct fake_state;

/// The machine: devices with their memory, shared by the drivers ("processes") made with it.
export class machine {
 public:
  /// The machine that `description` describes; drivers on it must emulate the same devices and
  /// sizes.
  explicit machine(const profile& description);
  ~machine();
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;

 private:
  friend class vmm::fake_driver;
  std::shared_ptr<machine_state> state_;
};

}  // namespace fake

/// One process's driver. Satisfies backend; see docs/contract.md for the calls and
/// docs/decisions/0004 for how close it is to the real one.
export class fake_driver {
 public:
  /// A driver on a machine of its own. May throw std::bad_alloc, as the next constructor.
  explicit fake_driver(const fake::profile& emulated = fake::profile::cuda());
  /// A driver on a machine that it shares with others.
  fake_driver(const fake::profile& emulated, fake::machine& shared);
  /// Releases all remaining objects; check_empty() reports them.
  ~fake_driver();
  fake_driver(fake_driver&&) noexcept;
  fake_driver& operator=(fake_driver&&) noexcept;
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  // backend
  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] const features& feature_set() const noexcept;
  [[nodiscard]] location home() const noexcept;
  [[nodiscard]] result<granularity> query_granularity(const physical_request& request);
  [[nodiscard]] result<memory_info> query_memory(location where);
  [[nodiscard]] result<address_range> reserve(const reserve_request& request);
  [[nodiscard]] status free_reservation(address_range range);
  [[nodiscard]] result<physical_handle> create(const physical_request& request);
  [[nodiscard]] status release(physical_handle handle);
  [[nodiscard]] status map(const map_request& request);
  [[nodiscard]] status unmap(address_range range);
  [[nodiscard]] status set_access(address_range range, std::span<const access_grant> grants);
  [[nodiscard]] result<access> get_access(address at, location place);

  // retain_backend, property_backend
  [[nodiscard]] result<physical_handle> retain(address at);
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle);

  // stream_backend. Work is queued in virtual time; see launch.
  [[nodiscard]] result<stream_handle> create_stream();
  [[nodiscard]] status destroy_stream(stream_handle stream);
  [[nodiscard]] status synchronize_stream(stream_handle stream);
  [[nodiscard]] result<event_handle> create_event();
  [[nodiscard]] status destroy_event(event_handle event);
  [[nodiscard]] status record_event(event_handle event, stream_handle stream);
  [[nodiscard]] result<bool> query_event(event_handle event);
  [[nodiscard]] status wait_event(stream_handle stream, event_handle event);
  [[nodiscard]] status synchronize_event(event_handle event);

  /// Not counted, charged or refused; 0 for a handle without a live stream.
  [[nodiscard]] std::uint64_t stream_identity(stream_handle stream) noexcept;

  // all_work_backend. Covers every queue of this driver, also those of destroyed streams with
  // unfinished work. While any stream is captured the call is refused, and invalidates each
  // capture.
  [[nodiscard]] status record_all(event_handle event);
  [[nodiscard]] status synchronize_all();

  // capture_backend. A query while nothing is captured and no fault is planned is neither counted
  // nor charged: callers may query before every call.
  [[nodiscard]] result<capture_info> query_capture(stream_handle stream);
  /// quick_capture_backend. While something is captured or a fault is planned: false.
  [[nodiscard]] bool is_uncaptured(stream_handle stream) noexcept;
  capture_mode exchange_capture_mode(capture_mode mode);

  // copy_backend
  [[nodiscard]] status copy(const copy_request& request);
  [[nodiscard]] status fill(const fill_request& request);
  [[nodiscard]] status write(address at, std::span<const std::byte> source);
  [[nodiscard]] status read(std::span<std::byte> target, address at);

  // sharing_backend, between the drivers of one machine. The receiver of a descriptor closes it
  // with close_descriptor; importing leaves it open.
  [[nodiscard]] result<shared_handle> export_handle(physical_handle handle, share_kind kind);
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& shared);
  [[nodiscard]] status close_descriptor(const shared_handle& shared);

  // peer_backend. Each device has rights of its own: those of the device that runs a kernel bind
  // it.
  [[nodiscard]] result<peer_info> query_peer(const peer_query& query);

  // range_export_backend. The descriptor keeps the memory alive; close_descriptor takes it as one
  // of kind posix_fd.
  [[nodiscard]] result<dma_buf> export_range(address_range range);

  // multicast_backend. A team's handle is mapped and released like a physical one.
  [[nodiscard]] result<granularity> query_multicast_granularity(const multicast_request& request);
  [[nodiscard]] result<multicast_handle> create_multicast(const multicast_request& request);
  [[nodiscard]] status add_multicast_device(multicast_handle team, location place);
  [[nodiscard]] status bind_multicast(const multicast_binding& binding);
  [[nodiscard]] status bind_multicast_address(const multicast_address_binding& binding);
  [[nodiscard]] status unbind_multicast(const multicast_binding& binding);

  // ---- for tests; these calls are not counted, charged or made to fail ----

  /// The profile that the object was made with.
  [[nodiscard]] const fake::profile& emulated() const noexcept;
  /// Plans a failure. Several may be planned at once; a call returns the first planned one that
  /// matches it. A fault that is not `forever` occurs once.
  void fail(const fake::fault& planned);
  void clear_faults();
  /// The number of calls that planned faults have made fail.
  [[nodiscard]] std::uint64_t faults_struck() const;
  /// The errors that this driver may return from a call, in the profile's codes, for fault sweeps.
  [[nodiscard]] std::span<const fake::native_error> possible_errors(call where) const noexcept;

  /// The number of calls, of one kind or of all, failed ones included.
  [[nodiscard]] std::uint64_t calls(call where) const;
  [[nodiscard]] std::uint64_t calls() const;
  void reset_calls();

  /// The virtual clock; 0 when the driver is created.
  [[nodiscard]] std::uint64_t now_ns() const;
  [[nodiscard]] std::uint64_t busy_ns() const;
  [[nodiscard]] double now_us() const;
  [[nodiscard]] double busy_us() const;
  /// Advances the clock, and finishes work that is due. Errors: out_of_host_memory.
  [[nodiscard]] status advance_us(double us);

  /// Queues a kernel. It checks that the memory it touches is mapped and accessible when it starts;
  /// its tag arrives when it finishes. Errors: invalid_argument (no such stream),
  /// out_of_host_memory.
  [[nodiscard]] status launch(stream_handle stream, const fake::kernel& what);

  /// Begins to capture the stream's work, as cuStreamBeginCapture. Errors: not_permitted (the
  /// default stream, or no graphs), in_use (it is being captured).
  [[nodiscard]] status begin_capture(stream_handle stream, capture_mode mode);
  /// Ends a capture on the stream where it was begun. Errors: not_permitted (invalidated, not
  /// joined, another stream or thread), in_use (the stream is not being captured).
  [[nodiscard]] result<fake::graph_handle> end_capture(stream_handle stream);
  /// Queues the captured work. Errors: invalid_argument, out_of_host_memory.
  [[nodiscard]] status launch_graph(fake::graph_handle graph, stream_handle stream);
  [[nodiscard]] status destroy_graph(fake::graph_handle graph);

  /// In the manual schedule work finishes in the order that the test chooses, within the orders
  /// that streams and waits allow; a synchronising call finishes the work that it needs. Requires:
  /// no work is pending when the schedule changes.
  void set_manual(bool manual);
  /// The number of streams whose next work can finish.
  [[nodiscard]] std::size_t ready_count() const;
  /// Finishes the next work of the index-th of them. Errors: invalid_argument (not so many),
  /// out_of_host_memory.
  [[nodiscard]] status finish_ready(std::size_t index);
  /// Finishes the next work of a stream; false if the stream is empty or must wait for another
  /// stream.
  [[nodiscard]] result<bool> finish_next(stream_handle stream);
  /// Finishes everything, under either schedule. Errors: out_of_host_memory.
  [[nodiscard]] status finish_all();

  /// The live objects of this driver. Cost: O(descriptors).
  [[nodiscard]] fake::resource_counts resource_counts() const;
  /// One line for each live object, in the order of creation; at most `lines_max`.
  [[nodiscard]] std::string report(std::size_t lines_max = 20) const;
  /// Records a leak for each live object. Returns true without one.
  [[nodiscard]] bool check_empty();

  /// The misuses so far, oldest first, at most max_misuses.
  [[nodiscard]] std::vector<fake::misuse> misuses() const;
  [[nodiscard]] std::uint64_t misuse_count() const;
  [[nodiscard]] std::uint64_t misuse_count(fake::misuse_kind kind) const;
  void clear_misuses();
  /// If on, a misuse ends the process with its description.
  void set_misuse_fatal(bool fatal);
  static constexpr std::size_t max_misuses = 1024;
  /// If on, querying the capture of a destroyed stream is a misuse, like every other use of it
  /// (undefined behaviour on a real driver). If off, the query succeeds while no stream is
  /// captured.
  void set_gone_streams_undefined(bool undefined);

  /// Fills a mapped range with `tag`, as 64-bit words counted from the start of the memory; fresh
  /// memory has tag 0. Needs write access for home(). Whole granules cost O(1) each. Errors:
  /// invalid_argument when a part is not mapped or the rights are missing (also reported as
  /// misuse).
  [[nodiscard]] status write_tag(address_range range, std::uint64_t tag);
  /// The tag at an address. Needs read access for home(). Errors: as write_tag.
  [[nodiscard]] result<std::uint64_t> read_tag(address at);

 private:
  void leave_if_forked() noexcept;
  std::unique_ptr<fake::fake_state> state_;
  user_count users_;
};

static_assert(check_backend<fake_driver>());
static_assert(retain_backend<fake_driver>);
static_assert(property_backend<fake_driver>);
static_assert(stream_backend<fake_driver>);
static_assert(all_work_backend<fake_driver>);
static_assert(capture_backend<fake_driver>);
static_assert(copy_backend<fake_driver>);
static_assert(sharing_backend<fake_driver>);
static_assert(multicast_backend<fake_driver>);
static_assert(peer_backend<fake_driver>);
static_assert(range_export_backend<fake_driver>);

}  // namespace vmm
