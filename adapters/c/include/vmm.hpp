// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.hpp - libvmm.so for C++17, also under nvcc: owners, buffers, and memory resources for
// cuda::mr (CCCL, Thrust, RMM) and std::pmr. Header only; link vmm::c.
//
// A failed call throws vmm::out_of_memory (a std::bad_alloc) if memory of any kind is short, and
// vmm::error (a std::runtime_error) otherwise; both have the code and a description. Functions
// named try_ throw nothing and return a vmm_status; vmm_last_error() has the rest. Compiled with
// -fno-exceptions, a failure that would be thrown is printed and ends the process: use try_ there.
//
// Owners can be moved and not copied. They do not track references to them: a driver outlives its
// pools and managers, and these outlive their buffers and resources.
//
// Where <cuda/memory_resource> and <cuda_runtime_api.h> are found, the resources have the
// properties of cuda::mr, and this header asserts that they satisfy its concepts, unless
// VMM_NO_CUDA_MR is defined. CCCL before 3.2 needs LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
// defined for that.
//
// Do not include this header beside `import vmm;`: both have names in vmm.
#ifndef VMM_HPP
#define VMM_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

#if !defined(VMM_NO_CUDA_MR) && __has_include(<cuda/memory_resource>) && \
    __has_include(<cuda_runtime_api.h>)
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#if CCCL_VERSION >= 3002000
#define VMM_HAS_CUDA_MR 1  // synchronous_resource and resource
#elif defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#define VMM_HAS_CUDA_MR 1  // resource and async_resource
#endif
#endif
#ifndef VMM_HAS_CUDA_MR
#define VMM_HAS_CUDA_MR 0
#endif

#include "vmm.h"

namespace vmm {
inline namespace v1 {

// ---- errors ------------------------------------------------------------------------------------

/// The error of a failed call.
class failure {
 public:
  /// Requires: a code that is not VMM_SUCCESS.
  explicit failure(vmm_status code) noexcept : code_(code) {}
  /// The code as a number of vmm.h.
  [[nodiscard]] vmm_status code() const noexcept { return code_; }
  /// "VMM_ERROR_OUT_OF_MEMORY"
  [[nodiscard]] const char* name() const noexcept { return vmm_status_name(code_); }

 protected:
  ~failure() = default;
  failure(const failure&) = default;
  failure& operator=(const failure&) = default;

 private:
  vmm_status code_;
};

/// Memory, addresses, mappings or the budget are used up. Makes no copy that could fail.
class out_of_memory : public std::bad_alloc, public failure {
 public:
  /// Truncates the text to 255 bytes.
  out_of_memory(vmm_status code, const char* text) noexcept : failure(code) {
    std::strncpy(text_, text, sizeof(text_) - 1);
  }
  /// vmm_last_error_text() of the call that failed.
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  char text_[256] = {};
};

/// Any other failure.
class error : public std::runtime_error, public failure {
 public:
  /// Copies the text.
  error(vmm_status code, const char* text) : std::runtime_error(text), failure(code) {}
};

/// Whether a code means that memory, addresses, mappings or the budget are used up.
[[nodiscard]] inline bool is_shortage(vmm_status code) noexcept {
  return code == VMM_ERROR_OUT_OF_MEMORY || code == VMM_ERROR_OUT_OF_HOST_MEMORY ||
         code == VMM_ERROR_OUT_OF_ADDRESSES || code == VMM_ERROR_OUT_OF_MAPPINGS ||
         code == VMM_ERROR_OVER_BUDGET;
}

namespace detail {

[[noreturn]] inline void raise(vmm_status code, const char* text) {
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
  if (is_shortage(code)) throw out_of_memory(code, text);
  throw error(code, text);
#else
  (void)code;
  std::fprintf(stderr, "vmm: %s\n", text);
  std::abort();
#endif
}

/// Whether an array of so many elements has a size that an address space could have.
template <class T>
[[nodiscard]] constexpr bool has_bytes(std::size_t count) noexcept {
  return count <= (std::size_t{1} << 56) / sizeof(T);
}
[[noreturn]] inline void raise_too_large() {
  raise(VMM_ERROR_OUT_OF_ADDRESSES, "the array is larger than any address space");
}

inline void require(vmm_status answered) {
  if (answered != VMM_SUCCESS) raise(answered, vmm_last_error_text());
}

[[nodiscard]] inline vmm_driver_info info_of(vmm_driver* driver) {
  vmm_driver_info out{};
  out.struct_size = sizeof(out);
  require(vmm_driver_query(driver, &out));
  return out;
}

/// A handle with its owner.
template <class Handle, vmm_status (*Destroy)(Handle*) noexcept>
class owned {
 public:
  owned() = default;
  explicit owned(Handle* handle) noexcept : handle_(handle) {}
  owned(owned&& other) noexcept : handle_(other.release()) {}
  owned& operator=(owned&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~owned() { reset(); }

  [[nodiscard]] Handle* get() const noexcept { return handle_; }
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Releases ownership of the handle without destroying it.
  [[nodiscard]] Handle* release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(Handle* handle = nullptr) noexcept { (void)Destroy(std::exchange(handle_, handle)); }

 private:
  Handle* handle_ = nullptr;
};

/// A type that names a stream: a pointer, or an object with get() (cuda::stream_ref) or value()
/// (rmm::cuda_stream_view).
template <class T, class = void>
struct has_get : std::false_type {};
template <class T>
struct has_get<T, std::void_t<decltype(static_cast<vmm_stream>(std::declval<const T&>().get()))>>
    : std::true_type {};
template <class T, class = void>
struct has_value : std::false_type {};
template <class T>
struct has_value<T,
                 std::void_t<decltype(static_cast<vmm_stream>(std::declval<const T&>().value()))>>
    : std::true_type {};
template <class T>
inline constexpr bool is_stream_object = has_get<T>::value || has_value<T>::value;

template <class T>
[[nodiscard]] vmm_stream native_stream(const T& stream) noexcept {
  if constexpr (has_get<T>::value) {
    return static_cast<vmm_stream>(stream.get());
  } else if constexpr (has_value<T>::value) {
    return static_cast<vmm_stream>(stream.value());
  } else {
    return static_cast<vmm_stream>(stream);
  }
}

}  // namespace detail

// ---- drivers -----------------------------------------------------------------------------------

/// A driver on one device.
class driver : public detail::owned<vmm_driver, vmm_driver_close> {
 public:
  driver() = default;
  /// Names and devices: vmm_driver_open().
  explicit driver(const char* name, std::int32_t device = VMM_ANY_DEVICE) {
    detail::require(try_open(name, device, *this));
  }
  [[nodiscard]] static vmm_status try_open(const char* name, std::int32_t device,
                                           driver& out) noexcept {
    vmm_driver* opened = nullptr;
    const vmm_status answered = vmm_driver_open(name, device, &opened);
    if (answered == VMM_SUCCESS) out.reset(opened);
    return answered;
  }

  /// Names, granularity and features: vmm_driver_query().
  [[nodiscard]] vmm_driver_info info() const { return detail::info_of(get()); }
  /// Whether the driver has all of these VMM_FEATURE_* bits.
  [[nodiscard]] bool can(std::uint64_t features) const {
    return (info().features & features) == features;
  }
  /// Copy bytes to the device's memory, and back, without waiting for work.
  void write(void* target, const void* source, std::uint64_t size_bytes) const {
    detail::require(vmm_driver_write(get(), target, source, size_bytes));
  }
  void read(void* target, const void* source, std::uint64_t size_bytes) const {
    detail::require(vmm_driver_read(get(), target, source, size_bytes));
  }
  void synchronize(vmm_stream stream) const {
    detail::require(vmm_driver_synchronize_stream(get(), stream));
  }
  /// Orders later work of `then` behind the work submitted to `first`; the host does not wait.
  void order(vmm_stream first, vmm_stream then) const {
    detail::require(vmm_driver_order_streams(get(), first, then));
  }
};

/// A stream of a driver, for programs without another way to make one; the default stream if the
/// driver has no others. Requires: pools and managers that used it are destroyed, or forget it,
/// first.
class stream {
 public:
  stream() = default;
  /// vmm_driver_create_stream().
  explicit stream(const driver& on) { detail::require(try_create(on, *this)); }
  [[nodiscard]] static vmm_status try_create(const driver& on, stream& out) noexcept {
    vmm_driver_info info{};
    info.struct_size = sizeof(info);
    vmm_status answered = vmm_driver_query(on.get(), &info);
    stream made;
    made.driver_ = on.get();
    if (answered == VMM_SUCCESS && (info.features & VMM_FEATURE_STREAMS) != 0)
      answered = vmm_driver_create_stream(on.get(), &made.stream_);
    if (answered == VMM_SUCCESS) out = std::move(made);
    return answered;
  }
  stream(stream&& other) noexcept
      : driver_(other.driver_), stream_(std::exchange(other.stream_, nullptr)) {}
  stream& operator=(stream&& other) noexcept {
    stream taken(std::move(other));
    std::swap(driver_, taken.driver_);
    std::swap(stream_, taken.stream_);
    return *this;
  }
  ~stream() {
    if (stream_ != nullptr) (void)vmm_driver_destroy_stream(driver_, stream_);
  }
  [[nodiscard]] vmm_stream get() const noexcept { return stream_; }
  [[nodiscard]] vmm_driver* on() const noexcept { return driver_; }

 private:
  vmm_driver* driver_ = nullptr;
  vmm_stream stream_ = nullptr;
};

// ---- pools -------------------------------------------------------------------------------------

/// The defaults, to be changed: vmm_pool_options_init().
[[nodiscard]] inline vmm_pool_options pool_options() noexcept {
  vmm_pool_options options;
  (void)vmm_pool_options_init(&options, sizeof(options));
  return options;
}

/// A stream-ordered pool: vmm_pool of vmm.h, with an idle stream of its own for resources without
/// streams.
class pool {
 public:
  pool() = default;
  /// vmm_pool_create().
  explicit pool(const driver& on, const vmm_pool_options& options = pool_options()) {
    detail::require(try_create(on, options, *this));
  }
  [[nodiscard]] static vmm_status try_create(const driver& on, const vmm_pool_options& options,
                                             pool& out) noexcept {
    pool fresh;
    vmm_pool* made = nullptr;
    vmm_status answered = vmm_pool_create(on.get(), &options, &made);
    fresh.handle_.reset(made);
    if (answered == VMM_SUCCESS) answered = stream::try_create(on, fresh.idle_);
    if (answered == VMM_SUCCESS) out = std::move(fresh);
    return answered;
  }
  pool(pool&&) noexcept = default;
  pool& operator=(pool&& other) noexcept {
    pool taken(std::move(other));
    std::swap(idle_, taken.idle_);
    std::swap(handle_, taken.handle_);
    return *this;
  }
  /// The handle, for calls of vmm.h.
  [[nodiscard]] vmm_pool* get() const noexcept { return handle_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return get() != nullptr; }
  /// The idle stream, to which no work is submitted.
  [[nodiscard]] const stream& idle() const noexcept { return idle_; }
  /// Destroys the pool. Requires: as vmm_pool_destroy().
  void reset() noexcept { handle_.reset(); }

  /// vmm_pool_allocate().
  [[nodiscard]] void* allocate(std::uint64_t size_bytes, vmm_stream stream) {
    void* at = nullptr;
    detail::require(vmm_pool_allocate(get(), size_bytes, stream, &at));
    return at;
  }
  [[nodiscard]] vmm_status try_allocate(std::uint64_t size_bytes, vmm_stream stream,
                                        void*& at) noexcept {
    return vmm_pool_allocate(get(), size_bytes, stream, &at);
  }
  /// On failure the block is unchanged.
  [[nodiscard]] vmm_status try_free(void* at, vmm_stream stream) noexcept {
    return vmm_pool_free(get(), at, stream);
  }
  void free(void* at, vmm_stream stream) { detail::require(vmm_pool_free(get(), at, stream)); }
  /// After all work submitted to the device, on every stream: see vmm_pool_free_unordered.
  void free(void* at) { detail::require(vmm_pool_free_unordered(get(), at)); }
  [[nodiscard]] vmm_status try_free(void* at) noexcept {
    return vmm_pool_free_unordered(get(), at);
  }
  /// A block that can have rights of its own: vmm_pool_allocate_dedicated().
  [[nodiscard]] void* allocate_dedicated(std::uint64_t size_bytes, vmm_stream stream) {
    void* at = nullptr;
    detail::require(try_allocate_dedicated(size_bytes, stream, at));
    return at;
  }
  [[nodiscard]] vmm_status try_allocate_dedicated(std::uint64_t size_bytes, vmm_stream stream,
                                                  void*& at) noexcept {
    return vmm_pool_allocate_dedicated(get(), size_bytes, stream, &at);
  }
  /// Rights of other devices to such a block, and to all of the pool's memory:
  /// vmm_pool_set_access() and vmm_pool_set_peers().
  void set_access(void* at, std::initializer_list<vmm_grant> grants) {
    detail::require(vmm_pool_set_access(get(), at, grants.begin(), grants.size()));
  }
  void set_peers(std::initializer_list<vmm_grant> grants) {
    detail::require(vmm_pool_set_peers(get(), grants.begin(), grants.size()));
  }
  /// Around a capture on a stream without a record in the pool: see vmm_pool_capture_begin.
  void capture_begin() { detail::require(vmm_pool_capture_begin(get())); }
  void capture_end() { detail::require(vmm_pool_capture_end(get())); }

  /// vmm_pool_forget_stream(), and vmm_pool_synchronize().
  void forget(vmm_stream stream) { detail::require(vmm_pool_forget_stream(get(), stream)); }
  void synchronize() { detail::require(vmm_pool_synchronize(get())); }
  /// Returns the bytes released.
  std::uint64_t trim(std::uint64_t limit_bytes = 0) {
    vmm_trim_report report{};
    report.struct_size = sizeof(report);
    detail::require(vmm_pool_trim(get(), limit_bytes, &report));
    return report.released_bytes;
  }
  /// vmm_pool_preallocate().
  vmm_preallocate_report preallocate(std::uint64_t size_bytes, vmm_stream stream) {
    vmm_preallocate_report report{};
    report.struct_size = sizeof(report);
    detail::require(vmm_pool_preallocate(get(), size_bytes, stream, &report));
    return report;
  }
  [[nodiscard]] vmm_pool_statistics statistics() const {
    vmm_pool_statistics out{};
    out.struct_size = sizeof(out);
    detail::require(vmm_pool_get_statistics(get(), &out));
    return out;
  }

 private:
  stream idle_;  // goes after the pool
  detail::owned<vmm_pool, vmm_pool_destroy> handle_;
};

/// A block of a pool, freed in the order of its stream. Bytes only: device_array has a type.
class device_buffer {
 public:
  device_buffer() = default;
  /// The alignment of every block, and the largest that may be requested.
  static constexpr std::uint64_t default_alignment = 512;
  static constexpr std::uint64_t max_alignment = std::uint64_t{2} << 20;

  /// Requires: the pool outlives the buffer, and so does the stream until the pool forgets it.
  device_buffer(pool& from, std::uint64_t size_bytes, vmm_stream stream,
                std::uint64_t alignment = default_alignment)
      : device_buffer(from.get(), size_bytes, stream) {
    if (size_bytes != 0)
      detail::require(vmm_pool_allocate_aligned(pool_, size_bytes, alignment, stream, &at_));
  }
  device_buffer(device_buffer&& other) noexcept { swap(other); }
  device_buffer& operator=(device_buffer&& other) noexcept {
    device_buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~device_buffer() { reset(); }

  /// On failure the buffer is empty, and `out` is unchanged.
  [[nodiscard]] static vmm_status try_allocate(pool& from, std::uint64_t size_bytes,
                                               vmm_stream stream, device_buffer& out) noexcept {
    device_buffer made(from.get(), size_bytes, stream);
    const vmm_status answered = size_bytes == 0
                                    ? VMM_SUCCESS
                                    : vmm_pool_allocate(made.pool_, size_bytes, stream, &made.at_);
    if (answered == VMM_SUCCESS) out = std::move(made);
    return answered;
  }

  /// The first byte; their number; the stream that frees them.
  [[nodiscard]] void* data() const noexcept { return at_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return at_ == nullptr ? 0 : size_; }
  [[nodiscard]] vmm_stream stream() const noexcept { return stream_; }
  /// Sets the stream on which it is freed. Requires: it is ordered behind the previous one.
  void set_stream(vmm_stream stream) noexcept { stream_ = stream; }
  void reset() noexcept {
    if (at_ != nullptr) (void)vmm_pool_free(pool_, std::exchange(at_, nullptr), stream_);
  }
  void swap(device_buffer& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(at_, other.at_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

 private:
  device_buffer(vmm_pool* from, std::uint64_t size_bytes, vmm_stream stream) noexcept
      : pool_(from), size_(size_bytes), stream_(stream) {}

  vmm_pool* pool_ = nullptr;
  void* at_ = nullptr;
  std::uint64_t size_ = 0;
  vmm_stream stream_ = nullptr;
};

/// An array in device memory, whose pointer kernels take. Its elements are not initialised.
template <class T>
class device_array {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(alignof(T) <= device_buffer::max_alignment,
                "a pool aligns blocks to 2 MiB at most");

 public:
  using value_type = T;
  device_array() = default;
  /// Requires: as device_buffer. The elements are not initialised.
  device_array(pool& from, std::size_t count, vmm_stream stream)
      : buffer_(from, bytes_of(count), stream,
                alignof(T) < device_buffer::default_alignment ? device_buffer::default_alignment
                                                              : alignof(T)),
        count_(count) {}
  device_array(device_array&& other) noexcept
      : buffer_(std::move(other.buffer_)), count_(std::exchange(other.count_, 0)) {}
  device_array& operator=(device_array&& other) noexcept {
    buffer_ = std::move(other.buffer_);
    count_ = std::exchange(other.count_, 0);
    return *this;
  }

  /// The first element; their number; their bytes; the stream that frees them.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(buffer_.data()); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return count_ * sizeof(T); }
  [[nodiscard]] vmm_stream stream() const noexcept { return buffer_.stream(); }
  void set_stream(vmm_stream stream) noexcept { buffer_.set_stream(stream); }

 private:
  [[nodiscard]] static std::uint64_t bytes_of(std::size_t count) {
    if (!detail::has_bytes<T>(count)) detail::raise_too_large();
    return count * sizeof(T);
  }

  device_buffer buffer_;
  std::size_t count_ = 0;
};

// ---- managers ----------------------------------------------------------------------------------

/// The defaults, to be changed: vmm_manager_options_init().
[[nodiscard]] inline vmm_manager_options manager_options() noexcept {
  vmm_manager_options options;
  (void)vmm_manager_options_init(&options, sizeof(options));
  return options;
}

/// Whole ranges that grow and are copied by remapping: vmm_manager of vmm.h.
class manager : public detail::owned<vmm_manager, vmm_manager_destroy> {
 public:
  manager() = default;
  /// vmm_manager_create().
  explicit manager(const driver& on, const vmm_manager_options& options = manager_options()) {
    detail::require(try_create(on, options, *this));
  }
  [[nodiscard]] static vmm_status try_create(const driver& on, const vmm_manager_options& options,
                                             manager& out) noexcept {
    vmm_manager* made = nullptr;
    const vmm_status answered = vmm_manager_create(on.get(), &options, &made);
    if (answered == VMM_SUCCESS) out.reset(made);
    return answered;
  }

  /// vmm_manager_allocate().
  [[nodiscard]] vmm_status try_allocate(const vmm_block_request& request, void*& at) noexcept {
    return vmm_manager_allocate(get(), &request, &at);
  }
  [[nodiscard]] void* allocate(std::uint64_t size_bytes, vmm_stream stream,
                               std::uint64_t growth_bytes = 0) {
    vmm_block_request request{};
    request.struct_size = sizeof(request);
    request.size_bytes = size_bytes;
    request.growth_bytes = growth_bytes;
    request.stream = stream;
    void* at = nullptr;
    detail::require(try_allocate(request, at));
    return at;
  }
  /// vmm_manager_free().
  void free(void* at) { detail::require(vmm_manager_free(get(), at)); }
  [[nodiscard]] vmm_status try_free(void* at) noexcept { return vmm_manager_free(get(), at); }
  /// The block's address now.
  [[nodiscard]] void* resize(void* at, std::uint64_t size_bytes) {
    detail::require(try_resize(size_bytes, at));
    return at;
  }
  /// Changes `at` if the block moves.
  [[nodiscard]] vmm_status try_resize(std::uint64_t size_bytes, void*& at) noexcept {
    vmm_resize_request request{};
    request.struct_size = sizeof(request);
    request.at = at;
    request.size_bytes = size_bytes;
    return vmm_manager_resize(get(), &request, &at);
  }
  /// Rights of other devices to a block, and to all blocks: vmm_manager_set_access() and
  /// vmm_manager_set_peers().
  void set_access(void* at, std::initializer_list<vmm_grant> grants) {
    detail::require(vmm_manager_set_access(get(), at, grants.begin(), grants.size()));
  }
  /// Of a part of a block: vmm_manager_set_part_access().
  void set_access(void* at, std::uint64_t size_bytes, std::initializer_list<vmm_grant> grants) {
    detail::require(
        vmm_manager_set_part_access(get(), at, size_bytes, grants.begin(), grants.size()));
  }
  void set_peers(std::initializer_list<vmm_grant> grants) {
    detail::require(vmm_manager_set_peers(get(), grants.begin(), grants.size()));
  }
  void copy(void* target, const void* source, std::uint64_t size_bytes, vmm_stream stream,
            std::uint32_t mode = VMM_COPY_BYTES) {
    vmm_copy_request request{};
    request.struct_size = sizeof(request);
    request.target = target;
    request.source = source;
    request.size_bytes = size_bytes;
    request.stream = stream;
    request.mode = mode;
    detail::require(vmm_manager_copy(get(), &request));
  }
  void synchronize(void* at) { detail::require(vmm_manager_synchronize(get(), at)); }
  void forget(vmm_stream stream) { detail::require(vmm_manager_forget_stream(get(), stream)); }
  [[nodiscard]] vmm_manager_statistics statistics() const {
    vmm_manager_statistics out{};
    out.struct_size = sizeof(out);
    detail::require(vmm_manager_get_statistics(get(), &out));
    return out;
  }
};

/// An array that grows without copying a byte: in place if the addresses behind it are free, else
/// at another address with the same memory. Elements are not initialised.
template <class T>
class growing_array {
  static_assert(std::is_trivially_copyable_v<T>, "elements are moved as bytes");
  static_assert(alignof(T) <= 4096, "every driver's granularity is a multiple of 4096 bytes");

 public:
  using value_type = T;
  /// Requires: the manager outlives the array. The elements are not initialised.
  growing_array(manager& from, std::size_t count, vmm_stream stream)
      : manager_(from.get()), stream_(stream) {
    resize(count);
  }
  growing_array(growing_array&& other) noexcept
      : manager_(other.manager_),
        at_(std::exchange(other.at_, nullptr)),
        count_(std::exchange(other.count_, 0)),
        stream_(other.stream_) {}
  growing_array& operator=(growing_array&& other) noexcept {
    growing_array taken(std::move(other));
    std::swap(manager_, taken.manager_);
    std::swap(at_, taken.at_);
    std::swap(count_, taken.count_);
    std::swap(stream_, taken.stream_);
    return *this;
  }
  ~growing_array() { (void)vmm_manager_free(manager_, at_); }

  /// The first element, and their number. The address changes if the array moves.
  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(at_); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// data() may change. On failure the array is unchanged.
  void resize(std::size_t count) {
    if (!detail::has_bytes<T>(count)) detail::raise_too_large();
    detail::require(try_resize(count));
  }
  [[nodiscard]] vmm_status try_resize(std::size_t count) noexcept {
    if (!detail::has_bytes<T>(count)) return VMM_ERROR_OUT_OF_ADDRESSES;
    const vmm_status answered = count == 0 ? clear() : set_bytes(count * sizeof(T));
    if (answered == VMM_SUCCESS) count_ = count;
    return answered;
  }

 private:
  [[nodiscard]] vmm_status clear() noexcept {
    const vmm_status freed = vmm_manager_free(manager_, at_);
    if (freed == VMM_SUCCESS) at_ = nullptr;
    return freed;
  }
  [[nodiscard]] vmm_status set_bytes(std::uint64_t size_bytes) noexcept {
    if (at_ != nullptr) {
      vmm_resize_request request{};
      request.struct_size = sizeof(request);
      request.at = at_;
      request.size_bytes = size_bytes;
      return vmm_manager_resize(manager_, &request, &at_);
    }
    vmm_block_request request{};
    request.struct_size = sizeof(request);
    request.size_bytes = size_bytes;
    request.stream = stream_;
    return vmm_manager_allocate(manager_, &request, &at_);
  }

  vmm_manager* manager_;
  void* at_ = nullptr;
  std::size_t count_ = 0;
  vmm_stream stream_;
};

// ---- resources ---------------------------------------------------------------------------------

namespace detail {

/// The blocks of a pool for code without streams: a returned block is usable at once, everywhere.
/// They are allocated on the pool's idle stream, for which the host waits: until the work of the
/// block's earlier users has finished.
class resource_core {
 public:
  static constexpr std::size_t default_alignment = 256;

  explicit resource_core(const pool& from) noexcept
      : driver_(from.idle().on()), pool_(from.get()), idle_(from.idle().get()) {}

  [[nodiscard]] vmm_driver_info info() const { return info_of(driver_); }

  [[nodiscard]] void* take(std::size_t size_bytes, std::size_t alignment, vmm_stream stream) const {
    void* at = nullptr;
    require(
        vmm_pool_allocate_aligned(pool_, size_bytes == 0 ? 1 : size_bytes, alignment, stream, &at));
    return at;
  }
  void give(void* at, vmm_stream stream) const noexcept { (void)vmm_pool_free(pool_, at, stream); }

  [[nodiscard]] void* take_idle(std::size_t size_bytes, std::size_t alignment) const {
    void* const at = take(size_bytes, alignment, idle_);
    const vmm_status waited = vmm_driver_synchronize_stream(driver_, idle_);
    if (waited != VMM_SUCCESS) {
      give(at, idle_);
      (void)vmm_pool_trim(pool_, 0, nullptr);  // with what was created for the block
      raise(waited, "the device failed while memory was waited for");
    }
    return at;
  }
  void give_idle(void* at) const noexcept { give(at, idle_); }

  [[nodiscard]] vmm_pool* handle() const noexcept { return pool_; }

 private:
  vmm_driver* driver_;
  vmm_pool* pool_;
  vmm_stream idle_;
};

/// The synchronous calls of cuda::mr over a pool, of the resource `Resource`.
template <class Resource, std::size_t Alignment>
class synchronous_calls {
 public:
  static constexpr std::size_t default_alignment = Alignment;

  [[nodiscard]] void* allocate_sync(std::size_t size_bytes,
                                    std::size_t alignment = default_alignment) const {
    return core_.take_idle(size_bytes, alignment);
  }
  void deallocate_sync(void* at, std::size_t, std::size_t = default_alignment) const noexcept {
    core_.give_idle(at);
  }
  [[nodiscard]] void* allocate(std::size_t size_bytes,
                               std::size_t alignment = default_alignment) const {
    return core_.take_idle(size_bytes, alignment);
  }
  void deallocate(void* at, std::size_t, std::size_t = default_alignment) const noexcept {
    core_.give_idle(at);
  }
  friend bool operator==(const Resource& a, const Resource& b) noexcept {
    return a.core_.handle() == b.core_.handle();
  }
  friend bool operator!=(const Resource& a, const Resource& b) noexcept { return !(a == b); }

 protected:
  explicit synchronous_calls(const pool& from) noexcept : core_(from) {}

  resource_core core_;
};

inline void require_feature(bool has, const char* text) {
  if (!has) raise(VMM_ERROR_NOT_SUPPORTED, text);
}

}  // namespace detail

/// The synchronous resource of cuda::mr over a pool on a device, under the names that it has had:
/// allocate_sync and deallocate_sync, and allocate and deallocate without a stream. A value that
/// refers to the pool. Requires of deallocate: no unfinished work uses the block.
class device_resource
    : public detail::synchronous_calls<device_resource, detail::resource_core::default_alignment> {
 public:
  /// Requires: the pool outlives the resource. Throws if its memory is not a device's.
  explicit device_resource(const pool& from) : synchronous_calls(from) {
    detail::require_feature(core_.info().place == VMM_PLACE_DEVICE,
                            "this driver's memory is not a device's: use host_resource");
  }
#if VMM_HAS_CUDA_MR
  friend constexpr void get_property(const device_resource&,
                                     ::cuda::mr::device_accessible) noexcept {}
#endif
};

/// The stream-ordered resource of cuda::mr over a pool on a device, under the names that it has
/// had: allocate(stream, bytes, alignment), and allocate_async(bytes, alignment, stream). A stream
/// is an object with get(), as cuda::stream_ref, or value(), as rmm::cuda_stream_view. Requires: if
/// a block allocated with a stream is deallocated without one, that stream's work has finished.
class stream_resource : public device_resource {
  template <class Stream>
  using for_stream = std::enable_if_t<detail::is_stream_object<Stream>>;

 public:
  using device_resource::allocate;
  using device_resource::deallocate;
  using device_resource::device_resource;

  /// Allocate and free in the stream's order, under the names of CCCL 3.2 and, below, of earlier
  /// versions.
  template <class Stream, class = for_stream<Stream>>
  [[nodiscard]] void* allocate(Stream on, std::size_t size_bytes,
                               std::size_t alignment = default_alignment) const {
    return core_.take(size_bytes, alignment, detail::native_stream(on));
  }
  template <class Stream, class = for_stream<Stream>>
  void deallocate(Stream on, void* at, std::size_t,
                  std::size_t = default_alignment) const noexcept {
    core_.give(at, detail::native_stream(on));
  }
  /// As allocate() and deallocate().
  template <class Stream, class = for_stream<Stream>>
  [[nodiscard]] void* allocate_async(std::size_t size_bytes, std::size_t alignment,
                                     Stream on) const {
    return core_.take(size_bytes, alignment, detail::native_stream(on));
  }
  template <class Stream, class = for_stream<Stream>>
  [[nodiscard]] void* allocate_async(std::size_t size_bytes, Stream on) const {
    return core_.take(size_bytes, default_alignment, detail::native_stream(on));
  }
  template <class Stream, class = for_stream<Stream>>
  void deallocate_async(void* at, std::size_t, std::size_t, Stream on) const noexcept {
    core_.give(at, detail::native_stream(on));
  }
  template <class Stream, class = for_stream<Stream>>
  void deallocate_async(void* at, std::size_t, Stream on) const noexcept {
    core_.give(at, detail::native_stream(on));
  }
#if VMM_HAS_CUDA_MR
  friend constexpr void get_property(const stream_resource&,
                                     ::cuda::mr::device_accessible) noexcept {}
#endif
};

/// The synchronous resource of cuda::mr over a pool whose memory the host may use.
class host_resource : public detail::synchronous_calls<host_resource, alignof(std::max_align_t)> {
 public:
  explicit host_resource(const pool& from) : synchronous_calls(from) {
    detail::require_feature((core_.info().features & VMM_FEATURE_HOST_ACCESSIBLE) != 0,
                            "the host may not use this driver's memory");
  }
#if VMM_HAS_CUDA_MR
  friend constexpr void get_property(const host_resource&, ::cuda::mr::host_accessible) noexcept {}
#endif
};

#if defined(__cpp_lib_memory_resource) && defined(__cpp_rtti)
/// std::pmr over a pool whose memory the host may use, for containers of the standard library.
class pmr_resource final : public std::pmr::memory_resource {
 public:
  /// Requires: the pool outlives the resource. Throws if the host cannot use its memory.
  explicit pmr_resource(const pool& from) : resource_(from) {}

 private:
  void* do_allocate(std::size_t size_bytes, std::size_t alignment) override {
    return resource_.allocate_sync(size_bytes, alignment);
  }
  void do_deallocate(void* at, std::size_t size_bytes, std::size_t alignment) override {
    resource_.deallocate_sync(at, size_bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    const auto* const same = dynamic_cast<const pmr_resource*>(&other);
    return same != nullptr && same->resource_ == resource_;
  }

  host_resource resource_;
};
#endif

#if VMM_HAS_CUDA_MR
#if CCCL_VERSION >= 3002000
static_assert(::cuda::mr::resource_with<stream_resource, ::cuda::mr::device_accessible>);
static_assert(
    ::cuda::mr::synchronous_resource_with<device_resource, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::synchronous_resource_with<host_resource, ::cuda::mr::host_accessible>);
#elif CCCL_VERSION < 3001000
static_assert(::cuda::mr::async_resource_with<stream_resource, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::resource_with<device_resource, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::resource_with<host_resource, ::cuda::mr::host_accessible>);
#endif
#endif

}  // namespace v1
}  // namespace vmm

#endif  // VMM_HPP
