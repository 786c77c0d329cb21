// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.containers:vector - a vector whose growth maps memory instead of copying elements.
//
// The elements are in one block of a manager. Growing maps more memory behind the block at the same
// address; if the addresses behind it are taken, the block's memory is mapped at a larger range,
// also without a copy. Only elements that are not trivially copyable are moved one by one, and only
// when their address changes.
//
// I1  size() <= capacity(); the first size() elements are alive, the rest of the block is raw.
// I2  Elements of a trivially copyable type are never copied from one address to another.
// I3  The host accesses an element's bytes only when the work of the memory's earlier users and the
//     vector's own fills of these bytes have finished. Live elements were written by the host after
//     that, or by a fill, which follows that work in stream order.
//
// A failed operation, or one in which an element's constructor throws, leaves the vector as it was.
// In a forked child every operation that can fail returns not_permitted, no element is reached or
// destroyed, and destroying the child's copy changes nothing.
//
// Errors are values: every operation that needs memory returns one. Thread safety: as std::vector.
// Cost: amortised by doubling, as std::vector; a growth costs driver calls by handles, not by
// bytes. With a backend whose memory the host cannot reach, elements are trivially copyable, and
// each write or read is one call of the backend: append whole spans. If the host can reach it, an
// operation returns when the host may access every element.
export module vmm.containers:vector;

export import vmm.backend;
export import vmm.manager;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.timeline;

namespace vmm {

// Before a driver's call on a manager's memory.
[[nodiscard]] inline status check_not_suspended(manager& of) {
  return of.suspension().phase() == suspension_phase::running ? status{} : memory_suspended;
}

/// Elements of type T in memory of a manager, which outlives the vector.
///
/// A vector has one stream, in whose order its memory is allocated, zeroed and freed. The host
/// waits only for unfinished work of the memory's earlier users, and once for the vector's own
/// zeros, which follow the work submitted to the stream before. The caller orders its own work.
/// Requires:
/// - Kernels on other streams are ordered behind the vector's stream before they use elements that
///   resize made.
/// - Kernels on other streams are ordered before the vector's stream when a call may move or free
///   memory: a growth, shrink_to_fit, the destructor.
/// - Kernels that write an element have finished before the host reads it. Kernels that use it have
///   finished before the host writes it again (pop_back, then append), and before a growth if
///   elements are not trivially copyable.
/// - The stream lives as long as the vector, and is not being captured during a call.
///
/// Every call: Thread safety: as std::vector. In a forked child a call that returns an error
/// returns not_permitted. The requirements above are not repeated.
export template <class T>
class vector {
  static_assert(std::is_nothrow_destructible_v<T>, "an element's destructor must not throw");

 public:
  using value_type = T;

  /// Requires: manager and stream outlive the vector.
  /// Effects: an empty vector. `growth_count` elements of address space are kept free behind it, so
  /// that it grows to that size without moving. Cost: no allocation.
  explicit vector(manager& memory, std::uint64_t growth_count = 0,
                  stream_handle stream = stream_handle::default_stream) noexcept
      : memory_(&memory),
        memory_use_(memory),
        driver_(&memory.driver()),
        is_host_accessible_(driver_->feature_set().host_accessible),
        growth_count_(growth_count),
        stream_(stream) {}
  vector(const vector&) = delete;
  vector& operator=(const vector&) = delete;
  vector(vector&& other) noexcept
      : memory_(other.memory_),
        memory_use_(other.memory_use_),
        driver_(other.driver_),
        is_host_accessible_(other.is_host_accessible_),
        growth_count_(other.growth_count_),
        stream_(other.stream_),
        made_in_(other.made_in_),
        base_(std::exchange(other.base_, address{})),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)),
        finished_count_(std::exchange(other.finished_count_, 0)),
        fills_(std::exchange(other.fills_, {})) {
    check(size_ <= capacity_ && finished_count_ <= capacity_, too_many_elements);
  }
  vector& operator=(vector&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(memory_use_, other.memory_use_);
    std::swap(driver_, other.driver_);
    std::swap(is_host_accessible_, other.is_host_accessible_);
    std::swap(growth_count_, other.growth_count_);
    std::swap(stream_, other.stream_);
    std::swap(made_in_, other.made_in_);
    std::swap(base_, other.base_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    std::swap(finished_count_, other.finished_count_);
    std::swap(fills_, other.fills_);
    check(size_ <= capacity_ && other.size_ <= other.capacity_, too_many_elements);
    return *this;
  }
  /// Effects: destroys every element and frees the memory. Memory that cannot be freed stays with
  /// the manager until its end. Cost: O(size) if elements have destructors, and one free.
  ~vector() {
    if (!made_in_.is_here()) return;
    clear();
    check(base_ || capacity_ == 0, no_memory);
    check(size_ == 0, "a vector ends with live elements");
    if (base_) (void)memory_->free(base_);
  }

  /// The number of elements, and the capacity of the memory. Cost: O(1).
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// The stream on which the memory is allocated, zeroed and freed.
  [[nodiscard]] stream_handle stream() const noexcept { return stream_; }
  /// The address of the elements, for kernels; null without memory.
  [[nodiscard]] address data_address() const noexcept {
    check(base_ || capacity_ == 0, no_memory);
    return base_;
  }

  /// Requires: features::host_accessible, else the process ends; of operator[], an index below
  /// size(), else the process ends. Effects: the elements, for the host. Cost: O(1).
  [[nodiscard]] T* data() noexcept {
    require_host_access();
    return pointer(0);
  }
  [[nodiscard]] const T* data() const noexcept {
    require_host_access();
    return pointer(0);
  }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size_; }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size_; }
  [[nodiscard]] T& operator[](std::uint64_t index) noexcept {
    check(index < size_, "a vector has no element of that index");
    return data()[index];
  }
  [[nodiscard]] const T& operator[](std::uint64_t index) const noexcept {
    check(index < size_, "a vector has no element of that index");
    return data()[index];
  }

  /// Requires: the caller's work that writes the elements has finished.
  /// Effects: copies elements to host memory, on any backend. Waits for unfinished zeros of
  /// resize().
  /// Errors: invalid_argument (past the end), those of read and of waiting.
  /// Cost: one read of the driver, which blocks for the transfer.
  [[nodiscard]] status read(std::uint64_t first, std::span<T> target) const
    requires std::is_trivially_copyable_v<T>
  {
    if (!made_in_.is_here()) return refuse_forked();
    if (first > size_ || target.size() > size_ - first) {
      return refuse(errc::invalid_argument, "the requested elements reach past the vector's end");
    }
    if (target.empty()) return {};
    check(static_cast<bool>(base_), "I1: a vector has elements and no memory");
    if (status made = finish_fills(first, first + target.size()); !made) return made;
    if (status usable = check_not_suspended(*memory_); !usable) return usable;
    return driver_->read(std::as_writable_bytes(target), place(first));
  }

  /// Effects: adds an element made of the arguments at the end. Throws what its constructor throws.
  /// May wait, as append. Errors: those of manager::resize and of waiting. Cost: amortised O(1); a
  /// growth costs driver calls by handles. On memory that the
  /// host cannot reach, one write of the driver: append whole spans there.
  template <class... Arguments>
  [[nodiscard]] status emplace_back(Arguments&&... arguments) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      const T element(std::forward<Arguments>(arguments)...);
      return append(std::span<const T>(&element, 1));
    } else {
      // Constructed first: an argument may be an element of this vector, and a growth may move it.
      T element(std::forward<Arguments>(arguments)...);
      if (status room = make_host_room(1); !room) return room;
      std::construct_at(pointer(size_), std::move_if_noexcept(element));
      ++size_;
      check(size_ <= capacity_, too_many_elements);
      return {};
    }
  }
  [[nodiscard]] status push_back(const T& element) { return emplace_back(element); }
  [[nodiscard]] status push_back(T&& element) { return emplace_back(std::move(element)); }

  /// Effects: adds copies of the elements at the end. They may be this vector's own. Waits for the
  /// work of the memory's earlier users, and for an earlier resize that zeroes these elements.
  /// Errors: as emplace_back; those of write. Cost: one write, amortised growth.
  [[nodiscard]] status append(std::span<const T> elements)
    requires std::is_copy_constructible_v<T>
  {
    if (elements.empty()) return {};
    const std::uint64_t own_index = index_of(elements.data());
    check(own_index == no_index || elements.size() <= size_ - own_index,
          "elements are copied that reach past the vector's end");
    if (status room = make_host_room(elements.size()); !room) return room;
    check(capacity_ - size_ >= elements.size(), "the reserved room is missing");
    if (own_index != no_index) elements = {pointer(own_index), elements.size()};
    if constexpr (std::is_trivially_copyable_v<T>) {
      if (status usable = check_not_suspended(*memory_); !usable) return usable;
      if (status written = driver_->write(place(size_), std::as_bytes(elements)); !written) {
        return written;
      }
    } else {
      std::uninitialized_copy(elements.begin(), elements.end(), pointer(size_));
    }
    size_ += elements.size();
    check(size_ <= capacity_, too_many_elements);
    return {};
  }

  /// Requires: an element, else the process ends. Effects: destroys the last one; the memory stays.
  /// Cost: O(1).
  void pop_back() noexcept {
    check(size_ > 0, "an element is removed from an empty vector");
    destroy(size_ - 1);
    check(size_ < capacity_, "a removed element leaves no room");
  }
  /// Effects: destroys every element; the memory stays. Cost: O(size) if elements have destructors.
  void clear() noexcept { destroy(0); }

  /// Effects: makes the vector `count` elements long; new ones are value-initialised (zero for
  /// numbers). On memory that the host cannot reach zeros are queued in the vector's stream, and
  /// the call does not wait for them. Errors: as emplace_back; those of fill and write.
  /// Cost: one growth, and one fill, or a write for each element whose default is not zero.
  [[nodiscard]] status resize(std::uint64_t count) {
    if (!made_in_.is_here()) return refuse_forked();
    if (count <= size_) {
      destroy(count);
      check(size_ == count, "a vector does not have the requested length");
      return {};
    }
    if constexpr (std::is_trivially_copyable_v<T>) {
      if (status room = make_room(count - size_); !room) return room;
      if (status filled = fill_default(count); !filled) return filled;
    } else {
      if (status room = make_host_room(count - size_); !room) return room;
      std::uninitialized_value_construct(pointer(size_), pointer(count));
    }
    size_ = count;
    check(size_ <= capacity_, too_many_elements);
    return {};
  }

  /// Effects: the capacity is at least `count` elements, rounded up to granules.
  /// Errors: as emplace_back. Cost: one growth.
  [[nodiscard]] status reserve(std::uint64_t count) {
    if (!made_in_.is_here()) return refuse_forked();
    const status done = count <= capacity_ ? status{} : set_capacity(count);
    check(!done || count <= capacity_, "the reserved room is missing");
    return done;
  }

  /// Effects: frees whole handles behind the last element; of an empty vector all memory.
  /// Errors: those of manager::resize and free. Cost: one of these calls.
  [[nodiscard]] status shrink_to_fit() {
    if (!made_in_.is_here()) return refuse_forked();
    if (!base_) return {};
    if (size_ == 0) {
      if (status freed = memory_->free(base_); !freed) return freed;
      base_ = address{};
      capacity_ = finished_count_ = 0;
      fills_ = {};
      check(fills_.begin == fills_.end, "a wait for zeros in freed memory");
      return {};
    }
    check(size_ <= capacity_, too_many_elements);
    const status done = set_capacity(size_);
    check(size_ <= capacity_, too_many_elements);
    return done;
  }

 private:
  static constexpr std::uint64_t no_index = ~std::uint64_t{0};
  static constexpr const char* no_memory = "a vector has room and no memory";
  static constexpr const char* too_many_elements = "a vector has more elements than room";
  static constexpr const char* misplaced = "elements are at an address that their type cannot have";
  static constexpr std::uint64_t count_max = (std::uint64_t{1} << 56) / sizeof(T);

  void require_host_access() const noexcept {
    check(is_host_accessible_,
          "this backend's memory is not for the host: use read() and append()");
  }
  [[nodiscard]] address place(std::uint64_t index) const noexcept {
    check(index <= capacity_, "I1: an element lies behind the vector's memory");
    return base_ + index * sizeof(T);
  }
  [[nodiscard]] T* pointer(std::uint64_t index) const noexcept {
    debug_check([this] { return base_.value % alignof(T) == 0; }, misplaced);
    return place(index).template as<T>();
  }
  [[nodiscard]] std::uint64_t index_of(const T* element) const noexcept {
    const address at = address::from_native(element);
    check(size_ <= capacity_, too_many_elements);
    const address_range own{base_, size_ * sizeof(T)};
    return own.contains(at) ? (at - base_) / sizeof(T) : no_index;
  }

  void destroy(std::uint64_t from) noexcept {
    check(from <= size_, "more elements end than a vector has");
    if constexpr (!std::is_trivially_destructible_v<T>) {
      if (made_in_.is_here()) std::destroy(pointer(from), pointer(size_));
    }
    size_ = from;
    check(size_ <= capacity_, too_many_elements);
  }

  // Room for `count` more elements, at least doubling, so that pushing back is amortised O(1).
  [[nodiscard]] status make_room(std::uint64_t count) {
    if (!made_in_.is_here()) return refuse_forked();
    check(count > 0, "room is made for no element");
    if (count > count_max - size_) {
      return refuse(errc::invalid_argument, "a vector of that length fits no address space");
    }
    if (size_ + count <= capacity_) return {};
    const std::uint64_t doubled = std::max(size_ + count, std::min(2 * capacity_, count_max));
    const status done = set_capacity(doubled);
    const bool is_short = !done && is_shortage(done.error().code);
    check(!done || size_ + count <= capacity_, "the reserved room is missing");
    return is_short && doubled > size_ + count ? set_capacity(size_ + count) : done;
  }

  // Room that the host may write to.
  [[nodiscard]] status make_host_room(std::uint64_t count) {
    if constexpr (!std::is_trivially_copyable_v<T>) require_host_access();
    if (status room = make_room(count); !room) return room;
    check(base_ && capacity_ - size_ >= count, "the reserved room is missing");
    return synchronize(size_, size_ + count);
  }

  // Called before the host writes elements [first, end) of the block.
  [[nodiscard]] status synchronize(std::uint64_t first, std::uint64_t end) {
    check(first <= end && end <= capacity_, "the host would write past the vector's memory");
    if (end > finished_count_) {
      if (status finished = memory_->synchronize(base_); !finished) return finished;
      finished_count_ = capacity_;
    }
    check(finished_count_ <= capacity_, "more of a vector is finished than it has");
    return finish_fills(first, end);
  }

  // Called before the host reads elements [first, end). Changes nothing, so threads may read
  // concurrently: the point records that it has passed.
  [[nodiscard]] status finish_fills(std::uint64_t first, std::uint64_t end) const {
    check(fills_.begin <= fills_.end, "a vector's zeros end before they begin");
    check(first <= end && end <= capacity_, "I3: the host reads past the vector's memory");
    if (first >= fills_.end || end <= fills_.begin) return {};
    if (fills_.is_recorded) return memory_->wait(fills_.point);
    return driver_->feature_set().streams ? driver_->synchronize_stream(stream_) : status{};
  }

  // Queues zeros for elements [first, end). If no point can be recorded behind them, waits for the
  // whole stream.
  void note_fill(std::uint64_t first, std::uint64_t end) noexcept {
    check(first < end && end <= capacity_, "zeros are queued behind the vector's memory");
    const bool is_over = fills_.is_recorded && fills_.point.known_passed();
    fills_.begin = is_over ? first : std::min(fills_.begin, first);
    fills_.end = is_over ? end : std::max(fills_.end, end);
    result<ticket_ref> point = memory_->record(stream_);
    fills_.is_recorded = point.has_value();
    fills_.point = point ? std::move(*point) : ticket_ref{};
    check(fills_.begin < fills_.end, "zeros are recorded over no element");
  }

  [[nodiscard]] status set_capacity(std::uint64_t count) {
    if (count > count_max) {
      return refuse(errc::invalid_argument, "a vector of that length fits no address space");
    }
    const std::uint64_t size_bytes = std::max(count, size_) * sizeof(T);
    const std::uint64_t wished_bytes = std::min(growth_count_, count_max) * sizeof(T);
    const std::uint64_t growth_bytes = wished_bytes > size_bytes ? wished_bytes - size_bytes : 0;
    const result<address> at =
        base_ ? regrow(size_bytes, growth_bytes)
              : memory_->allocate(allocate_request{size_bytes, growth_bytes, alignof(T), stream_});
    if (!at) return at.error();
    check(at->value % alignof(T) == 0, misplaced);
    base_ = *at;
    // The bytes up to a whole granule are usable, too.
    const std::uint64_t unit = memory_->granularity_bytes();
    check(unit > 0, "a manager has allocated and has no granularity");
    capacity_ = round_up(size_bytes, unit) / sizeof(T);
    check(capacity_ >= std::max(count, size_), "a vector has less room than was made");
    finished_count_ = std::min(finished_count_, capacity_);
    check(size_ <= capacity_ && finished_count_ <= capacity_, too_many_elements);
    return {};
  }

  [[nodiscard]] result<address> regrow(std::uint64_t size_bytes, std::uint64_t growth_bytes) {
    const std::uint64_t unit = memory_->granularity_bytes();
    check(unit > 0 && base_, "a vector grows that has no memory");
    const std::uint64_t whole_bytes = round_up(size_bytes, unit);
    if constexpr (std::is_trivially_copyable_v<T>) {
      return memory_->resize(resize_request{base_, whole_bytes, growth_bytes});
    } else {
      const result<address> in_place =
          memory_->resize(resize_request{base_, whole_bytes, growth_bytes, false});
      if (in_place || in_place.error().code != errc::out_of_addresses) return in_place;
      return move_elements(whole_bytes, growth_bytes);
    }
  }

  // The address has to change: each element is moved to a new block, or copied if moving may throw.
  [[nodiscard]] result<address> move_elements(std::uint64_t size_bytes, std::uint64_t growth_bytes)
    requires(!std::is_trivially_copyable_v<T>)
  {
    static_assert(!std::is_trivially_copyable_v<T>, "I2: trivially copyable elements are copied");
    const result<address> at =
        memory_->allocate(allocate_request{size_bytes, growth_bytes, alignof(T), stream_});
    if (!at) return at;
    check(*at != base_, "elements move to their own address");
    if (status finished = memory_->synchronize(*at); !finished) {
      (void)memory_->free(*at);
      return finished.error();
    }
    check(size_bytes >= size_ * sizeof(T), "elements move to a block that is too small");
    T* const target = at->as<T>();
    try {
      if constexpr (std::is_nothrow_move_constructible_v<T> || !std::is_copy_constructible_v<T>) {
        std::uninitialized_move(pointer(0), pointer(size_), target);
      } else {
        std::uninitialized_copy(pointer(0), pointer(size_), target);
      }
    } catch (...) {
      (void)memory_->free(*at);
      throw;
    }
    check(base_ || size_ == 0, no_memory);
    std::destroy(pointer(0), pointer(size_));
    (void)memory_->free(base_);  // the manager frees a block that it refuses here at its end
    return at;
  }

  [[nodiscard]] status fill_default(std::uint64_t count) {
    check(count > size_ && count <= capacity_, "elements exceed the vector's memory");
    const address_range tail{place(size_), (count - size_) * sizeof(T)};
    check(!tail.empty() && tail.end() <= place(capacity_), "zeros are queued behind the memory");
    if (status usable = check_not_suspended(*memory_); !usable) return usable;
    const T element{};
    const auto bytes = std::as_bytes(std::span<const T>(&element, 1));
    const bool is_zero =
        std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0}; });
    if (is_zero) {
      if (status filled = driver_->fill({tail, 0, stream_}); !filled) return filled;
      note_fill(size_, count);
      return is_host_accessible_ ? finish_fills(size_, count) : status{};
    }
    if (status finished = synchronize(size_, count); !finished) return finished;
    for (std::uint64_t i = size_; i < count; ++i) {
      if (status written = driver_->write(place(i), bytes); !written) return written;
    }
    return {};
  }

  // Elements that queued fills may still zero.
  struct pending_fills {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    ticket_ref point;         // behind the newest, which is behind the others
    bool is_recorded = true;  // the point is: false where marking it failed
  };

  manager* memory_;
  use_of memory_use_;
  driver_interface* driver_;
  bool is_host_accessible_;
  std::uint64_t growth_count_;
  stream_handle stream_;
  process_mark made_in_;
  address base_{};
  std::uint64_t size_ = 0;
  std::uint64_t capacity_ = 0;
  std::uint64_t finished_count_ = 0;  // of these elements earlier users of the memory have finished
  pending_fills fills_;
};

}  // namespace vmm
