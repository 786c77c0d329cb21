// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:state (internal) - the state of the fake driver, shared by the units that implement it.
//
// I1  machine_state is what every process sees (memory, and how much is left), driver_state what
// one     process holds.
// I2  A memory exists while memory::references() > 0, counted over all drivers of its machine.
// I3  Mappings never overlap; each lies inside one reservation.
// I4  Everything here runs under machine_state::mutex.
// I5  What may throw std::bad_alloc comes before the first change of a call.
module vmm.fake:state;

import vmm.backend;
import vmm.std;
import vmm.support;
import :contents;
import :node_pool;
import :profile;
import :report;
import vmm.std;

namespace vmm::fake {

/// The text of a check on an object that was moved from.
inline constexpr const char* moved_from = "a fake_driver is used that was moved from";

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

/// What a call refuses, and what the caller is to do.
struct objection {
  refusal why;
  const char* detail;
};

// ---- rights: two bits a location ----

using rights_word = std::uint64_t;

[[nodiscard]] constexpr unsigned slot_of(location who) noexcept {
  check(who.ordinal >= 0, "a location has a number below zero");
  switch (who.kind) {
    case location::place::device: return static_cast<unsigned>(who.ordinal);
    case location::place::host: return max_device_count;
    case location::place::host_node:
      return max_device_count + 1 + static_cast<unsigned>(who.ordinal);
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
    check(!taken.value, "a slot is given out that is in use");
    taken.value.emplace(std::move(value));
    ++live_;
    check(free_.size() + live_ == slot_count(), "a slot is neither free nor in use");
    return (std::uint64_t{taken.generation} << 32) | (index + 1U);
  }
  /// With `again` the token may name the next value.
  void remove(std::uint64_t token, bool again = false) noexcept {
    const auto index = static_cast<std::uint32_t>(token) - 1U;
    check(find(token) != nullptr && live_ != 0, "a token is taken back that names nothing");
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
    check(all.size() == live_, "the count of what is alive is wrong");
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
  // May throw, and then has done nothing.
  void add_chunk() {
    // Room for every slot, so that remove never allocates.
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

struct driver_state;

/// Unfinished work of one driver, and the part of a memory that it uses through one address.
struct use_record {
  const driver_state* owner = nullptr;
  std::uint32_t queue = 0;
  std::uint64_t seq = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t at = 0;
  bool writes = false;
  bool is_copy = false;  // the driver's, which rights may not bind
  location who{};
};

/// A part of a memory that takes a part of what is written to a multicast object.
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

  /// What keeps it alive.
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
  const driver_state* owner = nullptr;
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
          "a machine has fewer devices than none, or makes memory dirty");
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

  /// Drops the memory when nothing refers to it, and with a multicast object what it alone kept.
  void drop_if_unused(std::uint64_t token) noexcept;

  /// Where a write to a part of a memory goes: to that part, and to what is bound to it. `write`
  /// takes the contents, an offset in them, how much of the part comes before, and how much it is.
  template <class Write>
  void each_target(memory& to, std::uint64_t offset, std::uint64_t size_bytes, Write&& write) {
    check(size_bytes <= to.made_as.size_bytes && offset <= to.made_as.size_bytes - size_bytes,
          "a write goes past the end of a memory");
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

// ---- one process ----

struct handle_record {
  std::uint64_t memory = 0;  // token in machine_state::memories
  std::uint64_t serial = 0;
  bool is_imported = false;
};

struct reservation {
  std::uint64_t size_bytes = 0;
  std::uint64_t serial = 0;
  std::uint64_t mappings = 0;
  rights_word rights = 0;  // used when rights are kept for each reservation
};

struct mapping {
  std::uint64_t size_bytes = 0;
  std::uint64_t memory = 0;  // token
  std::uint64_t offset_bytes = 0;
  rights_word rights = 0;
  bool rights_set = false;
  std::uint64_t serial = 0;
};

/// Which addresses are not reserved. Best fit, neighbours merged; O(log n).
class address_space {
 public:
  address_space(std::uint64_t begin, std::uint64_t end, std::pmr::memory_resource* nodes);
  /// 0 without space.
  [[nodiscard]] std::uint64_t take(std::uint64_t size_bytes, std::uint64_t alignment_bytes);
  [[nodiscard]] bool take_at(std::uint64_t base, std::uint64_t size_bytes);
  /// May throw std::bad_alloc, and then has done nothing.
  void give_back(std::uint64_t base, std::uint64_t size_bytes);

 private:
  using gap_map = std::pmr::map<std::uint64_t, std::uint64_t>;
  using size_set = std::pmr::set<std::pair<std::uint64_t, std::uint64_t>>;
  void carve(gap_map::iterator gap, std::uint64_t base, std::uint64_t size_bytes);

  gap_map gaps_;      // base to size
  size_set by_size_;  // size and base
};

using mapping_map = std::pmr::map<std::uint64_t, mapping>;
using reservation_map = std::pmr::map<std::uint64_t, reservation>;

// ---- device work ----

/// Work number `seq` of a queue, and by order everything before it there. seq 0: nothing.
struct work_point {
  std::uint32_t queue = 0;
  std::uint64_t seq = 0;
};

/// What one kernel, copy or fill does, or a wait for another queue's work.
struct work {
  enum class kind : std::uint8_t { kernel, copy, fill, wait };

  kind what = kind::kernel;
  bool has_tag = false;
  bool has_expected = false;
  bool faulted = false;
  const char* name = "";
  std::uint64_t serial = 0;
  std::uint64_t duration_ns = 0;
  std::uint64_t start_ns = 0;   // timed schedule only
  std::uint64_t finish_ns = 0;  // timed schedule only
  std::uint64_t tag = 0;
  std::uint64_t expected = 0;
  location who{};  // the device whose rights count
  work_point waits_for{};
  std::vector<work_point> also_waits_for{};  // of a wait for the work of several queues
  std::vector<address_range> reads{};
  std::vector<address_range> writes{};
  std::vector<std::uint64_t> memories{};  // whose `uses` name this work
};

/// A queue of work in order: what a stream is made of. It outlives its stream until it has run dry.
struct work_queue {
  std::deque<work> works{};  // the first is work number finished_seq + 1
  std::uint64_t tail_seq = 0;
  std::uint64_t finished_seq = 0;
  std::uint64_t tail_finish_ns = 0;
  std::vector<std::uint64_t>
      after{};  // for each queue, the last work that new work here comes after
  bool open = true;
};

struct stream_record {
  std::uint32_t queue = 0;
  std::uint64_t serial = 0;
  std::uint64_t capture = 0;  // 0: what it is given runs
  bool unjoined = false;      // the capture's origin does not come after all that was captured here
};

struct event_record {
  work_point at{};
  std::vector<std::uint64_t> after{};
  std::uint64_t serial = 0;
  std::uint64_t capture = 0;        // in which it was recorded last; 0: none
  std::uint64_t captured_from = 0;  // the stream
  bool is_of_all = false;           // it stands for `after` of every queue, not for `at` alone
};

/// What is being captured.
struct capture_sequence {
  capture_mode mode = capture_mode::any_thread;
  std::uint64_t owner = 0;   // thread
  std::uint64_t origin = 0;  // the stream on which it was begun
  bool spoiled = false;
  std::vector<work> works{};
};

struct graph_record {
  std::vector<work> works{};
  std::uint64_t serial = 0;
};

/// A moment of the timed schedule: a queue's first work starts or finishes.
struct moment {
  std::uint64_t ns = 0;
  std::uint64_t serial = 0;
  std::uint32_t queue = 0;
  bool finishes = false;
};

struct planned_fault {
  fault plan{};
  std::uint64_t seen = 0;
};

struct driver_state {
  driver_state(const profile& emulated, std::shared_ptr<machine_state> shared);
  ~driver_state();

  // -- failing and reporting (report.cpp) --
  [[nodiscard]] error refuse_as(call where, refusal why, const char* detail) const noexcept;
  [[nodiscard]] std::optional<error> struck(call where) noexcept;
  void misused(misuse_kind kind, call where, address_range range, std::uint64_t object,
               const char* detail) noexcept;
  void charge_us(double us) noexcept;
  void raise_marks() noexcept;

  /// Runs a body under the lock and keeps bad_alloc inside.
  template <class T, class Body>
  [[nodiscard]] result<T> look(Body&& body) {
    if (!machine->made_in.is_here()) [[unlikely]]
      return refuse_forked();
    const std::lock_guard<std::mutex> locked(machine->mutex);
    try {
      if (!moments.empty()) settle();
      debug_check([this] { return moments.empty() || moments.front().ns > now_ns; },
                  "work that is due has not run");
      return body();
    } catch (const std::bad_alloc&) {
      return refuse(errc::out_of_host_memory, "the fake driver ran out of host memory");
    }
  }

  /// A driver call: counts it, fails it if that is planned, runs it, and charges a refusal.
  template <class T, class Body>
  [[nodiscard]] result<T> run(call where, Body&& body) {
    if (!machine->made_in.is_here()) [[unlikely]]
      return refuse_forked(where);
    return look<T>([&]() -> result<T> {
      check(where != call::none, "a call of no kind is made");
      ++call_counts[static_cast<std::size_t>(where)];
      if (!faults.empty()) [[unlikely]] {
        if (const auto failure = struck(where)) return *failure;
      }
      if (!captures.empty()) [[unlikely]] {
        if (const auto refused = capture_refuses(where)) return *refused;
      }
      result<T> answer = body();
      if (!answer) charge_us(emulated.costs.query_us);
      return answer;
    });
  }

  // -- addresses (mapping.cpp) --
  [[nodiscard]] reservation_map::iterator reservation_of(address_range range) noexcept;
  [[nodiscard]] mapping_map::iterator mapping_at(std::uint64_t at) noexcept;
  [[nodiscard]] mapping_map::iterator first_in(address_range range) noexcept;
  [[nodiscard]] bool aligned(address_range range) const noexcept;
  [[nodiscard]] rights_word effective(std::uint64_t base, const mapping& joined) noexcept;
  void split_at(std::uint64_t at);
  void drop_mapping(call where, mapping_map::iterator which, reservation& from) noexcept;

  [[nodiscard]] bool known(location where) const noexcept;
  /// Whether a device may be given rights to memory at a place.
  [[nodiscard]] bool reaches(std::int32_t device, location memory_at) const noexcept;
  [[nodiscard]] granularity granularity_of(const physical_request& request) const noexcept;
  [[nodiscard]] memory* memory_of(physical_handle handle) noexcept;
  [[nodiscard]] memory* team_of(multicast_handle handle) noexcept;
  [[nodiscard]] result<physical_handle> add_handle(std::uint64_t memory_token);
  void add_reference(std::uint64_t memory_token);
  void drop_reference(std::uint64_t memory_token) noexcept;

  // -- using memory through addresses (access.cpp) --
  struct mapped_part {
    memory* from = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
  };
  /// A use of memory: the user, the purpose, and the caller.
  struct user {
    location who{};
    access need = access::none;
    bool is_copy = false;  // the driver's: see trap_set::copies_ignore_rights
    bool is_told = false;  // the trap was reported before
  };
  /// The longest piece from `at` on that is one mapping and that may be used so. Reports misuse
  /// where it may not.
  [[nodiscard]] result<mapped_part> use(call where, address_range range, const user& by);
  /// All of a range, part by part; `visit` takes a piece and its address.
  template <class Visit>
  [[nodiscard]] status each_part(call where, address_range range, access need, Visit&& visit) {
    return each_part(where, range, user{emulated.home, need}, visit);
  }
  template <class Visit>
  [[nodiscard]] status each_part(call where, address_range range, const user& by, Visit&& visit) {
    while (!range.empty()) {
      const auto part = use(where, range, by);
      if (!part) return part.error();
      check(part->size_bytes != 0 && part->size_bytes <= range.size_bytes,
            "a part of a range is none of it");
      visit(*part, range.base);
      range = {range.base + part->size_bytes, range.size_bytes - part->size_bytes};
    }
    return {};
  }

  // -- device work (work.cpp) --
  /// Queues work; it starts when its queue and the clock allow. May throw, and then has done
  /// nothing.
  void enqueue(std::uint32_t where, work&& what);
  /// Lets the timed schedule run up to now. May throw; calling again goes on.
  void settle();
  void start(work& what);
  void finish_front(std::uint32_t which);
  void finish_by_hand(std::uint32_t which);
  void carry_out(const work& done);
  void carry_out_copy(const work& done);
  void check_expected(const work& done);
  /// Lets time pass, or finishes what is needed, until the point is reached.
  void wait_for(work_point until);
  [[nodiscard]] bool reached(work_point point) const noexcept {
    check(point.queue < queues.size(), "a point lies in a queue that is not there");
    return queues[point.queue].finished_seq >= point.seq;
  }
  /// Whether what the event stands for has finished.
  [[nodiscard]] bool reached(const event_record& event) const noexcept;
  /// What work of `queue` has still to wait for before the event's work is behind it.
  [[nodiscard]] work wait_behind(const event_record& event, std::uint32_t queue) const;
  /// Whether nothing that the work waits for is left.
  [[nodiscard]] bool is_free(const work& what) const noexcept;
  [[nodiscard]] bool front_ready(const work_queue& which) const noexcept;
  void pass_waits();
  [[nodiscard]] std::uint64_t finish_time(work_point point) const noexcept;
  [[nodiscard]] std::optional<std::uint32_t> queue_of(stream_handle stream) noexcept;
  [[nodiscard]] std::uint32_t open_queue();
  void close_queue_if_dry(std::uint32_t which) noexcept;

  // -- capture (capture.cpp) --
  void note_pending() noexcept;
  void spoil(std::uint64_t id) noexcept;
  /// The stream's record when it is being captured, else null.
  [[nodiscard]] stream_record* captured(stream_handle stream) noexcept;
  [[nodiscard]] std::optional<error> capture_refuses(call where) noexcept;
  [[nodiscard]] status capture_work(call where, stream_record& into, work&& what);
  [[nodiscard]] status capture_event(const stream_record& from, std::uint64_t stream,
                                     event_record& event);
  [[nodiscard]] status capture_wait(stream_handle stream, const event_record& event);
  /// Refuses what no capture goes together with, and spoils them all. None is under way: nothing.
  [[nodiscard]] std::optional<error> refuse_all_captures(call where) noexcept;
  [[nodiscard]] error refuse_captured_event(call where, const event_record& event) noexcept;
  [[nodiscard]] status refuse_captured_stream(call where, const stream_record& stream) noexcept;

  // -- hazards (hazards.cpp) --
  void note_uses(work& what, std::uint32_t where);
  void forget_uses(const work& what, work_point at) noexcept;
  void check_unmap(call where, std::uint64_t at, const mapping& joined) noexcept;
  void check_revoke(std::uint64_t at, const mapping& joined, rights_word rights) noexcept;
  void check_host_use(call where, const mapped_part& part, address at, bool writes) noexcept;

  profile emulated;
  std::shared_ptr<machine_state> machine;
  node_pool nodes;
  address_space space;
  reservation_map reservations{&nodes};
  mapping_map mappings{&nodes};
  slot_map<handle_record> handles;
  std::pmr::unordered_map<std::uint64_t, std::uint32_t> reference_counts{
      &nodes};  // memory: references from here

  std::deque<work_queue> queues;  // 0 is the default stream's
  std::vector<std::uint32_t> spare_queues;
  slot_map<stream_record> streams;
  slot_map<event_record> events;
  std::vector<moment> moments;  // a heap, the earliest first
  bool manual = false;

  std::map<std::uint64_t, capture_sequence> captures;  // by number
  std::uint64_t last_capture = 0;
  slot_map<graph_record> graphs;
  std::atomic<bool> fault_or_capture_pending = false;  // a capture is under way, or a fault planned
  std::atomic<bool> gone_streams_undefined = false;    // see fake_driver

  std::array<std::uint64_t, call_count> call_counts{};
  std::vector<planned_fault> faults;
  std::uint64_t faults_struck = 0;
  std::vector<misuse> misuses;
  std::uint64_t misuse_total = 0;
  std::array<std::uint64_t, 32> misuse_counts{};
  bool misuse_fatal = false;
  std::uint64_t now_ns = 0;
  std::uint64_t busy_ns = 0;
  resource_counts counts{};
};

}  // namespace vmm::fake
