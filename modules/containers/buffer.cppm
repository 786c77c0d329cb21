// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.containers:buffer - owners of blocks of a pool, a manager or a program's own allocator.
//
// stream_allocator  the requirements of an allocator
// allocator_ref     an allocator of any type, without owning it; two pointers
// device_buffer     one block of bytes, freed by its destructor
// device_array      the same in elements
//
// I1  A buffer owns one block or none. A block that a buffer owns is freed once, on the buffer's
//     stream.
//
// A failed call leaves the buffer and its block as they were. Destroying an allocator that counts
// its users (pool and manager do) before its buffers ends the process.
//
// Thread safety: that of the allocator; one buffer is for one thread at a time. Cost: that of the
// allocator, an indirect call, and two relaxed additions for each buffer.
export module vmm.containers:buffer;

export import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

// Checked first: a buffer has a function allocate, too, and checking that one would repeat this
// check.
template <class A>
concept has_driver = requires(A& a) {
  { a.driver() } -> std::same_as<driver_interface&>;
};

/// An allocator that a buffer can use: allocate returns a block for work submitted to the stream
/// from then on; deallocate frees it, with the same size and alignment, after the work submitted to
/// its stream so far. stream_pool and manager satisfy it.
export template <class A>
concept stream_allocator =
    has_driver<A> && requires(A& a, address at, std::uint64_t bytes, stream_handle stream) {
      { a.allocate(bytes, bytes, stream) } -> std::same_as<result<address>>;
      { a.deallocate(at, bytes, bytes, stream) } noexcept;
    };

/// The calls of an allocator of type A.
struct allocator_calls {
  result<address> (*allocate)(void* object, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                              stream_handle stream);
  void (*deallocate)(void* object, address_range block, std::uint64_t alignment_bytes,
                     stream_handle stream) noexcept;
  result<address> (*resize)(void* object, address at, std::uint64_t size_bytes);  // null: cannot
  status (*synchronize)(void* object, address at, stream_handle stream);
  driver_interface& (*driver)(void* object) noexcept;
  user_count* (*users)(void* object) noexcept;
};

// Names no type of the manager: this module does not import the allocators.
template <class A>
concept resizing_allocator = requires(A& a, address at, std::uint64_t bytes) {
  { a.resize({.at = at, .size_bytes = bytes}) } -> std::same_as<result<address>>;
};
template <class A>
concept synchronizing_allocator = requires(A& a, address at) {
  { a.synchronize(at) } -> std::same_as<status>;
};

template <class A>
[[nodiscard]] constexpr allocator_calls make_allocator_calls() noexcept {
  allocator_calls calls{};
  calls.allocate = [](void* object, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                      stream_handle stream) {
    return static_cast<A*>(object)->allocate(size_bytes, alignment_bytes, stream);
  };
  calls.deallocate = [](void* object, address_range block, std::uint64_t alignment_bytes,
                        stream_handle stream) noexcept {
    static_cast<A*>(object)->deallocate(block.base, block.size_bytes, alignment_bytes, stream);
  };
  if constexpr (resizing_allocator<A>) {
    calls.resize = [](void* object, address at, std::uint64_t size_bytes) {
      return static_cast<A*>(object)->resize({.at = at, .size_bytes = size_bytes});
    };
  }
  calls.synchronize = [](void* object, address at, stream_handle stream) -> status {
    A& allocator = *static_cast<A*>(object);
    if constexpr (synchronizing_allocator<A>) {
      return allocator.synchronize(at);
    } else {
      driver_interface& driver = allocator.driver();
      return driver.feature_set().streams ? driver.synchronize_stream(stream) : status{};
    }
  };
  calls.driver = [](void* object) noexcept -> driver_interface& {
    return static_cast<A*>(object)->driver();
  };
  calls.users = [](void* object) noexcept { return use_of::count_of(*static_cast<A*>(object)); };
  return calls;
}

/// An allocator of any type, without owning it. Copies refer to the same allocator.
///
/// Every call: that of the allocator, with its Requires, Cost and thread safety.
export class allocator_ref {
 public:
  /// Requires: the allocator outlives the reference and its copies, and is not moved.
  template <class A>
    requires(!std::same_as<std::remove_const_t<A>, allocator_ref>) && stream_allocator<A>
  allocator_ref(A& allocator) noexcept : object_(&allocator), calls_(&calls_of<A>) {
    check(calls_->deallocate != nullptr && calls_->driver != nullptr, incomplete);
  }

  /// Requires: an alignment that the allocator has; a stream pool aligns to 2 MiB at most.
  /// Effects: returns a block for work submitted to `stream` from now on. Errors: those of the
  /// allocator.
  [[nodiscard]] result<address> allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                                         stream_handle stream) const {
    check(calls_->allocate != nullptr, incomplete);
    return calls_->allocate(object_, size_bytes, alignment_bytes, stream);
  }
  /// Requires: a live block of this allocator, with the size and alignment of its allocation.
  /// Effects: frees it after the work submitted to `stream` so far. Errors: none.
  void deallocate(address at, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                  stream_handle stream) const noexcept {
    check(static_cast<bool>(at), "a block at address 0 is freed");
    calls_->deallocate(object_, {at, size_bytes}, alignment_bytes, stream);
  }
  /// Whether the allocator can resize: true of a manager, false of a pool.
  [[nodiscard]] bool can_resize() const noexcept { return calls_->resize != nullptr; }
  /// Requires: a live block of this allocator, and the stream order that manager::resize requires.
  /// Effects: changes its size and keeps its bytes; returns its new address.
  /// Errors: not_supported (can_resize() is false), those of the allocator; the block is as before.
  [[nodiscard]] result<address> resize(address at, std::uint64_t size_bytes) const;
  /// Requires: a live block of this allocator that was allocated for `stream`.
  /// Effects: blocks until the work of the memory's earlier users has finished, so that the host
  /// may access it. A pool waits for all of the stream's work. Errors: those of
  /// `manager::synchronize` or of synchronize_stream.
  [[nodiscard]] status synchronize(address at, stream_handle stream) const {
    check(calls_->synchronize != nullptr, incomplete);
    return calls_->synchronize(object_, at, stream);
  }
  /// The driver of the allocator.
  [[nodiscard]] driver_interface& driver() const noexcept { return calls_->driver(object_); }
  /// The count of the allocator's users; null if it does not count them.
  [[nodiscard]] user_count* users() const noexcept { return calls_->users(object_); }
  friend bool operator==(const allocator_ref& a, const allocator_ref& b) noexcept {
    return a.object_ == b.object_;
  }

 private:
  template <class A>
  static constexpr allocator_calls calls_of = make_allocator_calls<A>();
  static constexpr const char* incomplete = "an allocator lacks a required call";

  void* object_;
  const allocator_calls* calls_;
};
static_assert(sizeof(allocator_ref) == 2 * sizeof(void*));

/// A block of device memory, freed on the buffer's stream by the destructor.
///
/// Requires, of a call that frees (reset, resize to 0, assignment, the destructor): work on other
/// streams that uses the block is ordered before the buffer's stream.
///
/// Every call: Thread safety: one buffer is for one thread at a time. Cost: no call of the
/// allocator, unless stated.
export class device_buffer {
 public:
  /// The alignment of every block unless another is requested.
  static constexpr std::uint64_t alignment_bytes_default = 256;

  /// A buffer without a block; resize() allocates one with this alignment. Requires: an allocator
  /// that outlives the buffer. Errors: none; resize() returns those of the alignment.
  explicit device_buffer(allocator_ref memory, stream_handle stream = stream_handle::default_stream,
                         std::uint64_t alignment_bytes = alignment_bytes_default) noexcept
      : memory_(memory), use_(memory.users()), stream_(stream), alignment_bytes_(alignment_bytes) {}

  /// Requires: an allocator that outlives the buffer, and an alignment that it has.
  /// Effects: returns a buffer with a block for work submitted to `stream` from now on; without a
  /// block for 0 bytes. The contents are unspecified.
  /// Errors: those of the allocator; invalid_argument (an alignment that is not a power of two,
  /// also for 0 bytes), not_supported (a larger alignment than a pool has). Cost: one allocate.
  [[nodiscard]] static result<device_buffer> allocate(
      allocator_ref memory, std::uint64_t size_bytes, stream_handle stream,
      std::uint64_t alignment_bytes = alignment_bytes_default);

  device_buffer(const device_buffer&) = delete;
  device_buffer& operator=(const device_buffer&) = delete;
  /// Leaves the other buffer without a block, with the same allocator and stream.
  device_buffer(device_buffer&& other) noexcept
      : memory_(other.memory_),
        use_(other.use_),
        stream_(other.stream_),
        alignment_bytes_(other.alignment_bytes_),
        block_(std::exchange(other.block_, address_range{})) {
    check(is_whole(), half_block);
  }
  /// Frees the previous block.
  device_buffer& operator=(device_buffer&& other) noexcept {
    device_buffer taken(std::move(other));
    swap(taken);
    check(is_whole(), half_block);
    return *this;
  }
  ~device_buffer() { reset(); }

  /// The block's address; null without a block.
  [[nodiscard]] address data_address() const noexcept {
    check(is_whole(), half_block);
    return block_.base;
  }
  /// The same as a pointer, for a kernel or a C interface; null without a block.
  [[nodiscard]] void* data() const noexcept { return block_.base.as<void>(); }
  /// The size and alignment of the allocation; 0 bytes without a block.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return block_.size_bytes; }
  [[nodiscard]] std::uint64_t alignment_bytes() const noexcept { return alignment_bytes_; }
  [[nodiscard]] bool empty() const noexcept { return block_.size_bytes == 0; }
  [[nodiscard]] allocator_ref memory() const noexcept { return memory_; }

  /// The stream on which the block is freed.
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }
  /// Requires: the stream lives as long as the buffer has a block; work on the previous stream that
  /// uses the block is ordered before this one.
  /// Effects: the block is freed on this stream, and resize() of an empty buffer allocates on it.
  /// resize() of a present block still orders its work behind the stream of its allocation. Errors:
  /// none.
  void set_stream(stream_handle stream) noexcept { stream_ = stream; }

  /// Effects: frees the block. Errors: none; a block that deallocate leaves live stays with it.
  /// Cost: one deallocate.
  void reset() noexcept;
  /// Effects: releases ownership of the block. The caller deallocates it at memory(), with the
  /// previous size_bytes() and alignment_bytes().
  [[nodiscard]] address release() noexcept {
    check(is_whole(), half_block);
    return std::exchange(block_, address_range{}).base;
  }
  /// Requires: as manager::resize of the stream that the block was allocated for.
  /// Effects: changes the size and keeps the bytes below both sizes; the address may change. A
  /// buffer without a block allocates; 0 bytes free the block. Errors: not_supported (the allocator
  /// cannot resize: a pool), those of the allocator; the buffer is as before. Cost: one call of the
  /// allocator.
  [[nodiscard]] status resize(std::uint64_t size_bytes);

  /// Effects: the two exchange block, allocator and stream.
  void swap(device_buffer& other) noexcept;
  friend void swap(device_buffer& a, device_buffer& b) noexcept { a.swap(b); }

 private:
  static constexpr const char* half_block =
      "a buffer has bytes without an address, or an address without bytes";

  [[nodiscard]] bool owns_block() const noexcept { return block_.base.value != 0; }
  [[nodiscard]] bool is_whole() const noexcept { return owns_block() == !block_.empty(); }

  allocator_ref memory_;
  use_of use_;
  stream_handle stream_;
  std::uint64_t alignment_bytes_ = alignment_bytes_default;
  address_range block_{};
};

/// A device_buffer of elements, which are neither constructed nor destroyed: kernels write them.
export template <class T>
class device_array {
  static_assert(std::is_trivially_copyable_v<T>, "elements are written by kernels and copies");

 public:
  using value_type = T;

  /// As device_buffer.
  explicit device_array(allocator_ref memory,
                        stream_handle stream = stream_handle::default_stream) noexcept
      : bytes_(memory, stream, element_alignment_bytes) {}
  /// `count` elements of unspecified contents. Requires and Errors: as device_buffer::allocate;
  /// invalid_argument (more elements than an address space has).
  [[nodiscard]] static result<device_array> allocate(allocator_ref memory, std::uint64_t count,
                                                     stream_handle stream) {
    if (count > count_max) return refuse(errc::invalid_argument, too_many);
    result<device_buffer> bytes =
        device_buffer::allocate(memory, count * sizeof(T), stream, element_alignment_bytes);
    if (!bytes) return bytes.error();
    check(bytes->data_address().value % alignof(T) == 0, misplaced);
    check(bytes->size_bytes() == count * sizeof(T), "an array does not have the requested length");
    return device_array(std::move(*bytes));
  }

  /// As of device_buffer; size() in elements, the others in bytes.
  [[nodiscard]] T* data() const noexcept {
    check(data_address().value % alignof(T) == 0, misplaced);
    return bytes_.data_address().template as<T>();
  }
  [[nodiscard]] address data_address() const noexcept { return bytes_.data_address(); }
  [[nodiscard]] std::uint64_t size() const noexcept {
    check(bytes_.size_bytes() % sizeof(T) == 0, half_element);
    return bytes_.size_bytes() / sizeof(T);
  }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return bytes_.size_bytes(); }
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  [[nodiscard]] allocator_ref memory() const noexcept { return bytes_.memory(); }
  [[nodiscard]] stream_handle stream() const noexcept { return bytes_.stream(); }
  void set_stream(stream_handle stream) noexcept { bytes_.set_stream(stream); }
  void reset() noexcept { bytes_.reset(); }
  /// Returns the buffer, as bytes, and leaves the array without elements.
  [[nodiscard]] device_buffer release() noexcept {
    check(bytes_.size_bytes() % sizeof(T) == 0, half_element);
    return std::move(bytes_);
  }
  /// As device_buffer::resize, in elements.
  [[nodiscard]] status resize(std::uint64_t count) {
    if (count > count_max) return refuse(errc::invalid_argument, too_many);
    const status done = bytes_.resize(count * sizeof(T));
    check(!done || bytes_.size_bytes() == count * sizeof(T),
          "an array does not have the requested length");
    check(data_address().value % alignof(T) == 0, misplaced);
    return done;
  }
  void swap(device_array& other) noexcept { bytes_.swap(other.bytes_); }
  friend void swap(device_array& a, device_array& b) noexcept { a.swap(b); }

 private:
  static constexpr std::uint64_t count_max = std::numeric_limits<std::uint64_t>::max() / sizeof(T);
  static constexpr std::uint64_t element_alignment_bytes =
      alignof(T) > device_buffer::alignment_bytes_default ? alignof(T)
                                                          : device_buffer::alignment_bytes_default;
  static constexpr const char* too_many = "that many elements fit no address space";
  static constexpr const char* half_element = "an array ends inside an element";
  static constexpr const char* misplaced = "elements are at an address that their type cannot have";

  explicit device_array(device_buffer&& bytes) noexcept : bytes_(std::move(bytes)) {
    check(bytes_.size_bytes() % sizeof(T) == 0, half_element);
  }

  device_buffer bytes_;
};

}  // namespace vmm
