// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.cuda - a CUDA device as a backend, over the driver API.
//
// open() loads the driver: building, linking and starting a program need neither a GPU nor a
// driver, and building vmm or importing this module needs no vendor header.
//
// - One object is one device: its primary context is retained from open() to the destructor.
// - Every call makes that context current for its own duration and restores the caller's, so any
// thread may call, also one that never used CUDA.
// - No error is sticky: each call reports the driver's result of that call, with the driver's name
// for it.
// - No lock is held over a driver call; the object is constant after open().
// - Multicast calls are looked up only with options.allow_multicast.
// - In a forked child every call is refused before it reaches the driver, and destroying the
// child's copy changes nothing.
//
// Thread safety: all members may be called from any thread at once. Destroy the object when no call
// is running. Cost: the driver's own, and about 20 ns to query the current context (more if it has
// to be switched). Elsewhere: caching, pooling and waiting before unmap (vmm.physical,
// vmm.manager).
export module vmm.cuda;

export import :description;
import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace cuda {
struct cuda_state;
}

/// The CUDA driver API on one device, loaded when it is opened.
export class cuda_driver {
 public:
  /// Loads the driver, finds its entry points by version, retains the device's primary context.
  /// Errors: unavailable (no library, too old a driver, no such device), not_supported (the device
  /// has no virtual memory management), bad_option (also a library of VMM_CUDA_LIBRARY that cannot
  /// be loaded), out_of_host_memory, or driver errors. Cost: up to a second for the first object of
  /// a process.
  [[nodiscard]] static result<cuda_driver> open(const cuda_options& options = {});
  ~cuda_driver();
  /// A moved-from object may only be destroyed or assigned to.
  cuda_driver(cuda_driver&&) noexcept;
  cuda_driver& operator=(cuda_driver&&) noexcept;
  /// The pools and managers over this object; it must neither be moved nor destroyed while they
  /// exist.
  [[nodiscard]] user_count& users() noexcept { return users_; }

  // The concept `backend`. Each member is one driver call of the same name; docs/contract.md has
  // the contracts.
  [[nodiscard]] std::string_view name() const noexcept { return "cuda"; }
  [[nodiscard]] const features& feature_set() const noexcept;
  [[nodiscard]] location home() const noexcept;
  [[nodiscard]] result<granularity> query_granularity(const physical_request& request);
  /// A device other than home() costs a query of that device's primary context. Host nodes:
  /// not_supported.
  [[nodiscard]] result<memory_info> query_memory(location place);
  [[nodiscard]] result<address_range> reserve(const reserve_request& request);
  [[nodiscard]] status free_reservation(address_range range);
  [[nodiscard]] result<physical_handle> create(const physical_request& request);
  [[nodiscard]] status release(physical_handle handle);
  [[nodiscard]] status map(const map_request& request);
  [[nodiscard]] status unmap(address_range range);
  [[nodiscard]] status set_access(address_range range, std::span<const access_grant> grants);
  [[nodiscard]] result<access> get_access(address at, location place);

  // `retain_backend`, `property_backend`.
  [[nodiscard]] result<physical_handle> retain(address at);
  [[nodiscard]] result<physical_properties> get_properties(physical_handle handle);

  // `stream_backend`. Streams do not synchronise with the default stream; events carry no timing.
  [[nodiscard]] result<stream_handle> create_stream();
  [[nodiscard]] status destroy_stream(stream_handle stream);
  [[nodiscard]] status synchronize_stream(stream_handle stream);
  [[nodiscard]] result<event_handle> create_event();
  [[nodiscard]] status destroy_event(event_handle event);
  [[nodiscard]] status record_event(event_handle event, stream_handle stream);
  [[nodiscard]] result<bool> query_event(event_handle event);
  [[nodiscard]] status wait_event(stream_handle stream, event_handle event);
  [[nodiscard]] status synchronize_event(event_handle event);

  // `all_work_backend`. cuCtxRecordEvent, of CUDA 12.5 and newer: the device's primary context.
  [[nodiscard]] std::uint64_t stream_identity(stream_handle stream) noexcept;
  [[nodiscard]] status record_all(event_handle event);
  // `all_wait_backend`. cuCtxSynchronize, of the device's primary context.
  [[nodiscard]] status synchronize_all();

  // `capture_backend`. A stream of its own needs no context; the default one, which cannot be
  // captured, returns not_permitted while a stream that synchronises with it is captured.
  [[nodiscard]] result<capture_info> query_capture(stream_handle stream);
  /// `quick_capture_backend`, for streams that need no context.
  [[nodiscard]] bool is_uncaptured(stream_handle stream) noexcept;
  capture_mode exchange_capture_mode(capture_mode mode);

  // `context_backend`. Pushes the device's primary context on the calling thread, for tools that
  // read the current one.
  [[nodiscard]] bool push_context() noexcept;
  void pop_context() noexcept;

  // `copy_backend`. read and write use a stream of their own and return when it is done; they wait
  // for no other work.
  [[nodiscard]] status copy(const copy_request& request);
  [[nodiscard]] status fill(const fill_request& request);
  [[nodiscard]] status write(address at, std::span<const std::byte> source);
  [[nodiscard]] status read(std::span<std::byte> target, address at);

  // `sharing_backend`. The driver reports no size of a handle: size_bytes of an exported value is
  // 0 until the sender fills it in. An import does not take over the descriptor: the caller closes
  // it, whether it worked or not.
  [[nodiscard]] result<shared_handle> export_handle(physical_handle handle, share_kind kind);
  [[nodiscard]] result<physical_handle> import_handle(const shared_handle& shared);
  /// Whether fabric handles work for this process: creates, exports, imports and releases one
  /// granule. The feature export_fabric is of the device alone. Errors: driver errors, usually
  /// not_permitted.
  [[nodiscard]] status probe_fabric();

  // `peer_backend`. cuDeviceCanAccessPeer and cuDeviceGetP2PAttribute; the rank is the driver's
  // own. A device reaches memory of the host if the features include host memory.
  [[nodiscard]] result<peer_info> query_peer(const peer_query& query);

  // `range_export_backend`. cuMemGetHandleForAddressRange, of CUDA 11.7 and newer: the range is
  // mapped from end to end, and begins and ends with a page of the host.
  [[nodiscard]] result<dma_buf> export_range(address_range range);

  // `multicast_backend`. not_permitted unless options.allow_multicast; a team is mapped as a handle
  // of the same value.
  [[nodiscard]] result<granularity> query_multicast_granularity(const multicast_request& request);
  [[nodiscard]] result<multicast_handle> create_multicast(const multicast_request& request);
  [[nodiscard]] status add_multicast_device(multicast_handle team, location place);
  [[nodiscard]] status bind_multicast(const multicast_binding& binding);
  [[nodiscard]] status bind_multicast_address(const multicast_address_binding& binding);
  [[nodiscard]] status unbind_multicast(const multicast_binding& binding);

  /// The driver's properties of the device, read when the object was opened.
  [[nodiscard]] const cuda_description& description() const noexcept;
  /// The CUcontext, for programs that launch kernels beside vmm. It lives as long as this object.
  [[nodiscard]] std::uint64_t native_context() const noexcept;
  /// A driver call by its name without a version suffix and the CUDA version to request (11020
  /// is 11.2); null if the driver does not have it. Never returns multicast calls.
  [[nodiscard]] void* entry_point(const char* symbol, std::int32_t version) const noexcept;

 private:
  explicit cuda_driver(std::unique_ptr<cuda::cuda_state> opened) noexcept;
  void leave_if_forked() noexcept;
  std::unique_ptr<cuda::cuda_state> state_;
  user_count users_;
};

}  // namespace vmm
