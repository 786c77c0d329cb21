// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake:state (internal) - the objects of one process of the fake driver: addresses, mappings,
// handles, and device work. Shared by the units that implement the driver.
//
// I1  Mappings never overlap; each lies inside one reservation.
//
// All of it runs under machine_state::mutex. What may throw std::bad_alloc comes before the first
// change of a call.
module vmm.fake:state;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :node_pool;
import :profile;
import :report;

namespace vmm::fake {

/// The text of a check on an object that was moved from.
inline constexpr const char* moved_from = "a fake_driver is used that was moved from";

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

/// The addresses that are not reserved. Best fit, neighbours coalesced; O(log n).
class address_space {
 public:
  address_space(std::uint64_t begin, std::uint64_t end, std::pmr::memory_resource* nodes);
  /// 0 without space.
  [[nodiscard]] std::uint64_t take(std::uint64_t size_bytes, std::uint64_t alignment_bytes);
  [[nodiscard]] bool take_at(std::uint64_t base, std::uint64_t size_bytes);
  /// May throw std::bad_alloc, without an effect.
  void give_back(std::uint64_t base, std::uint64_t size_bytes);

 private:
  using gap_map = std::pmr::map<std::uint64_t, std::uint64_t>;
  using size_set = std::pmr::set<std::pair<std::uint64_t, std::uint64_t>>;
  void split(gap_map::iterator gap, std::uint64_t base, std::uint64_t size_bytes);

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

/// One kernel, copy or fill, or a wait for another queue's work.
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
  location device{};  // the device whose rights count
  work_point waits_for{};
  std::vector<work_point> also_waits_for{};  // of a wait for the work of several queues
  std::vector<address_range> reads{};
  std::vector<address_range> writes{};
  std::vector<std::uint64_t> memories{};  // whose `uses` name this work
};

/// A queue of work in order, behind a stream. It outlives its stream until it is empty.
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
  std::uint64_t capture = 0;  // 0: its work runs
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

/// A capture in progress.
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

struct fake_state final : driver_clock {
  fake_state(const profile& emulated, std::shared_ptr<machine_state> shared);
  virtual ~fake_state();

  /// What calls took of the virtual time.
  [[nodiscard]] std::uint64_t read_ns() const noexcept override;

  // -- failing and reporting (report.cpp) --
  [[nodiscard]] error refuse_as(call where, refusal why, const char* detail) const noexcept;
  [[nodiscard]] std::optional<error> struck(call where) noexcept;
  void misused(misuse_kind kind, call where, address_range range, std::uint64_t object,
               const char* detail) noexcept;
  void charge_us(double us) noexcept;
  void raise_marks() noexcept;

  /// Runs a body under the lock and catches std::bad_alloc.
  template <class T, class Body>
  [[nodiscard]] result<T> look(Body&& body) {
    if (!machine->made_in.is_here()) [[unlikely]]
      return refuse_forked();
    const std::lock_guard<std::mutex> locked(machine->mutex);
    try {
      if (!moments.empty()) run_due();
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
      check(where != call::none, "a call without a kind is made");
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
    location device{};
    access need = access::none;
    bool is_copy = false;      // the driver's: see trap_set::copies_ignore_rights
    bool is_reported = false;  // the trap was reported before
  };
  /// The longest piece from `at` on that is one mapping and may be used so. Reports misuse if it
  /// may not.
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
            "a part of a range is empty");
      visit(*part, range.base);
      range = {range.base + part->size_bytes, range.size_bytes - part->size_bytes};
    }
    return {};
  }

  // -- device work (work.cpp) --
  /// Queues work, which starts when its queue and the clock allow. May throw, without an effect.
  void enqueue(std::uint32_t where, work&& what);
  /// Lets the timed schedule run up to now. May throw; a repeated call continues.
  void run_due();
  void start(work& what);
  void finish_head(std::uint32_t which);
  void finish_by_hand(std::uint32_t which);
  void carry_out(const work& done);
  void carry_out_copy(const work& done);
  void check_expected(const work& done);
  /// Advances time, or finishes the needed work, until the point is reached.
  void wait_for(work_point until);
  [[nodiscard]] bool reached(work_point point) const noexcept {
    check(point.queue < queues.size(), "a point names a missing queue");
    return queues[point.queue].finished_seq >= point.seq;
  }
  /// Whether the event's work has finished.
  [[nodiscard]] bool reached(const event_record& event) const noexcept;
  /// The work that `queue` has still to wait for before the event's work is behind it.
  [[nodiscard]] work wait_behind(const event_record& event, std::uint32_t queue) const;
  /// Whether all work that it waits for has finished.
  [[nodiscard]] bool is_free(const work& what) const noexcept;
  [[nodiscard]] bool head_ready(const work_queue& which) const noexcept;
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
  /// Refuses a call that no capture allows, and invalidates all captures. Without a capture: no
  /// effect.
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
  std::atomic<bool> fault_or_capture_pending = false;  // a capture or a planned fault
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
