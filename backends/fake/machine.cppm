// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:machine (internal) - the part of the fake machine that its processes share: its memory,
// and the free amount. :state has the objects of one process.
//
// I1  A memory exists while memory::references() > 0, counted over all drivers of its machine.
//
// All of it runs under machine_state::mutex. What may throw std::bad_alloc comes before the first
// change of a call.
module vmm.fake:machine;

import vmm.backend;
import vmm.base;
import vmm.std;
import :contents;
import :profile;
import :report;

namespace vmm::fake {

// ---- why a call is refused; each set of codes has its own for it ----

enum class refusal : std::uint8_t {
  bad_value,       // a size, an address or a list that the call does not take
  bad_location,    // no such device or node
  bad_handle,      // not a live token for memory
  bad_object,      // not a live stream, event or multicast object
  not_reserved,    // addresses outside every reservation
  not_mapped,      // addresses with nothing behind them
  already_mapped,  // addresses that are mapped
  cut,             // a part of a mapping where whole ones are needed
  in_use,          // still mapped or bound
  no_memory,
  no_addresses,
  no_mappings,
  unsupported,
  forbidden,
  bad_state,  // the object is not ready for this
  no_access,  // the location may not use the memory
  count
};

[[nodiscard]] const native_error& native(error_code_set codes, refusal why) noexcept;

/// The text of a refusal: the cause, and a remedy.
struct objection {
  refusal why;
  const char* detail;
};

// ---- rights: two bits a location ----

using rights_word = std::uint64_t;

[[nodiscard]] constexpr unsigned slot_of(location device) noexcept {
  check(device.ordinal >= 0, "a location has a number below zero");
  switch (device.kind) {
    case location::place::device: return static_cast<unsigned>(device.ordinal);
    case location::place::host: return max_device_count;
    case location::place::host_node:
      return max_device_count + 1 + static_cast<unsigned>(device.ordinal);
  }
  return 0;
}
[[nodiscard]] constexpr access rights_of(rights_word rights, unsigned slot) noexcept {
  check(slot < 32, "the slot of a location's access exceeds 31");
  return static_cast<access>((rights >> (2 * slot)) & 3U);
}
[[nodiscard]] constexpr rights_word with_rights(rights_word rights, unsigned slot,
                                                access value) noexcept {
  check(slot < 32, "the slot of a location's access exceeds 31");
  const rights_word mask = rights_word{3} << (2 * slot);
  return (rights & ~mask) | (static_cast<rights_word>(value) << (2 * slot));
}
[[nodiscard]] constexpr rights_word everybody(access value) noexcept {
  return static_cast<rights_word>(value) * 0x5555'5555'5555'5555U;
}

// ---- objects by token: a slot number and the count of the slot's uses, so that stale tokens are
// known ----

template <class T>
class slot_map {
 public:
  [[nodiscard]] std::uint64_t add(T value) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    if (free_.empty()) add_chunk();
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slot& taken = at(index);
    check(!taken.value, "a slot in use is handed out");
    taken.value.emplace(std::move(value));
    ++live_;
    check(free_.size() + live_ == slot_count(), "a slot is neither free nor in use");
    return (std::uint64_t{taken.generation} << 32) | (index + 1U);
  }
  /// With `again` the token may name the next value.
  void remove(std::uint64_t token, bool again = false) noexcept {
    const auto index = static_cast<std::uint32_t>(token) - 1U;
    check(find(token) != nullptr && live_ != 0, "a released token names no object");
    slot& given_back = at(index);
    given_back.value.reset();
    if (!again) ++given_back.generation;
    free_.push_back(index);
    --live_;
    check(free_.size() + live_ == slot_count(), "a slot is neither free nor in use");
  }
  [[nodiscard]] T* find(std::uint64_t token) noexcept {
    const std::uint64_t index = (token & 0xFFFF'FFFFU) - 1U;
    if (index >= slot_count()) return nullptr;
    slot& asked = at(index);
    debug_check([&] { return asked.generation != 0; }, "a slot was used too often");
    if (!asked.value || asked.generation != token >> 32) return nullptr;
    return &*asked.value;
  }
  [[nodiscard]] std::uint64_t live() const noexcept { return live_; }
  [[nodiscard]] std::vector<std::uint64_t> tokens() const {
    std::vector<std::uint64_t> all;
    all.reserve(live_);
    each([&](std::uint64_t token, const T&) { all.push_back(token); });
    check(all.size() == live_, "the count of live objects is wrong");
    return all;
  }
  template <class Visit>
  void each(Visit&& visit) const {
    for (std::size_t i = 0; i < slot_count(); ++i) {
      const slot& each = at(i);
      if (each.value) visit((std::uint64_t{each.generation} << 32) | (i + 1), *each.value);
    }
  }

 private:
  struct slot {
    std::optional<T> value{};
    std::uint32_t generation = 1;
  };
  static constexpr std::size_t chunk_slots = 8;

  [[nodiscard]] std::size_t slot_count() const noexcept { return chunks_.size() * chunk_slots; }
  [[nodiscard]] slot& at(std::size_t index) const noexcept {
    return chunks_[index / chunk_slots][index % chunk_slots];
  }
  // May throw, without an effect.
  void add_chunk() {
    // Space for every slot, so that remove never allocates.
    const std::size_t wanted = slot_count() + chunk_slots;
    if (free_.capacity() < wanted) free_.reserve(2 * wanted);
    chunks_.push_back(std::make_unique<slot[]>(chunk_slots));
    for (std::size_t i = wanted; i > wanted - chunk_slots; --i)
      free_.push_back(static_cast<std::uint32_t>(i - 1));
  }

  std::vector<std::unique_ptr<slot[]>> chunks_;  // addresses of values never move
  std::vector<std::uint32_t> free_;
  std::uint64_t live_ = 0;
};

// ---- physical memory ----

struct fake_state;

/// Unfinished work of one driver, and the part of a memory that it uses through one address.
struct use_record {
  const fake_state* owner = nullptr;
  std::uint32_t queue = 0;
  std::uint64_t seq = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t at = 0;
  bool writes = false;
  bool is_copy = false;  // the driver's, which rights may not bind
  location device{};
};

/// A part of a memory that receives a part of the writes to a multicast object.
struct binding {
  std::int32_t device = 0;
  std::uint64_t team_offset = 0;
  std::uint64_t memory = 0;  // token
  std::uint64_t memory_offset = 0;
  std::uint64_t size_bytes = 0;
};

struct team {
  std::uint32_t device_count = 0;
  std::vector<std::int32_t> devices{};
  std::vector<binding> bindings{};

  [[nodiscard]] inline bool full() const noexcept { return devices.size() == device_count; }
};

struct memory {
  inline memory(const physical_request& asked, std::uint64_t granule_bytes,
                std::uint64_t order) noexcept
      : made_as(asked),
        granule(granule_bytes),
        serial(order),
        data(asked.size_bytes, granule_bytes) {}

  /// The references that keep it alive.
  [[nodiscard]] inline std::uint32_t references() const noexcept {
    return handles + mappings + descriptors + bindings;
  }

  physical_request made_as;  // as granted
  std::uint64_t granule;
  std::uint64_t serial;
  std::uint32_t handles = 0;      // in all drivers
  std::uint32_t mappings = 0;     // in all drivers
  std::uint32_t descriptors = 0;  // exported and open
  std::uint32_t bindings = 0;     // to multicast objects
  contents data;
  std::unique_ptr<team> multicast{};  // set when this is a multicast object, not real memory
  std::vector<use_record> uses{};     // by device work that has not finished
};

/// An open descriptor of a memory, and the driver that exported it.
struct descriptor_record {
  std::uint64_t memory = 0;  // token
  const fake_state* owner = nullptr;
  std::vector<std::uint64_t> more{};  // of a DMA-BUF: the other memories of its range
  bool is_dma_buf = false;
};

/// Released memory of a device, part of its free memory, that is still to be cleared.
struct clearing {
  std::uint64_t left_bytes = 0;
  std::uint64_t since_ns = 0;
};

struct machine_state {
  inline explicit machine_state(const profile& emulated)
      : device_free(static_cast<std::size_t>(emulated.device_count), emulated.device_memory_bytes),
        device_clearing(static_cast<std::size_t>(emulated.device_count)),
        host_free(emulated.host_memory_bytes),
        clear_bytes_per_us(emulated.costs.clear_bytes_per_us) {
    check(emulated.device_count >= 0 && clear_bytes_per_us >= 0,
          "a machine has a negative number of devices, or creates uncleared memory");
  }
  [[nodiscard]] inline std::uint64_t& free_bytes(location where) noexcept {
    check(where.kind != location::place::device ||
              static_cast<std::size_t>(where.ordinal) < device_free.size(),
          "the device does not exist in the machine");
    return where.kind == location::place::device
               ? device_free[static_cast<std::size_t>(where.ordinal)]
               : host_free;
  }
  /// Microseconds until `size_bytes` of the free memory are cleared; they count as taken then.
  [[nodiscard]] double take_cleared(location where, std::uint64_t size_bytes) noexcept;
  void give_back(const physical_request& released) noexcept;
  void clear_until_now(clearing& which) const noexcept;

  /// Drops memory without references; with a multicast object also memory that it alone kept alive.
  void drop_if_unused(std::uint64_t token) noexcept;

  /// The targets of a write to a part of a memory: that part, and memory bound to it. The arguments
  /// of `write`: the contents, the offset in them, the bytes of the part before, and the size.
  template <class Write>
  void each_target(memory& to, std::uint64_t offset, std::uint64_t size_bytes, Write&& write) {
    check(size_bytes <= to.made_as.size_bytes && offset <= to.made_as.size_bytes - size_bytes,
          "a write exceeds its memory");
    write(to.data, offset, std::uint64_t{0}, size_bytes);
    if (!to.multicast) return;
    for (const binding& each : to.multicast->bindings) {
      const std::uint64_t low = offset > each.team_offset ? offset : each.team_offset;
      const std::uint64_t end = offset + size_bytes;
      const std::uint64_t bound_end = each.team_offset + each.size_bytes;
      const std::uint64_t high = end < bound_end ? end : bound_end;
      if (low >= high) continue;
      write(memories.find(each.memory)->data, each.memory_offset + (low - each.team_offset),
            low - offset, high - low);
    }
  }

  process_mark made_in;  // of every driver on it: a forked child has none of them
  std::mutex mutex;
  slot_map<memory> memories;
  slot_map<descriptor_record> descriptors;
  std::vector<std::uint64_t> device_free;
  std::vector<clearing> device_clearing;
  std::uint64_t host_free;
  double clear_bytes_per_us;
  std::uint64_t now_ns = 0;  // the latest that any driver of the machine has reached
  std::uint64_t serials = 0;
};

}  // namespace vmm::fake
