// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:source - a source of physical memory, and the one that is an owner's tenant.
//
// A source hands out handles of a device's memory as descriptors. A driver over a source imports
// each once, presents a lot as one handle, and maps its parts side by side (docs/decisions/0033).
//
// `ask` runs on a thread of the source, without a lock of it. A call that returns an error holds as
// much as before. After give() the caller has no mapping of the handle; it may keep the import
// until `drop`.
//
// Thread safety: any thread, except the destructor. A forked child's calls return an error.
export module vmm.market:source;

import vmm.backend;
import vmm.std;
import :tenant;
import :wire;

namespace vmm {

/// Memory of a lot.
export struct lent_handle {
  std::uint64_t id = 0;          ///< equal for one handle whenever it is lent
  std::uint32_t generation = 0;  ///< larger each time
  std::uint64_t size_bytes = 0;
  /// A descriptor that the source owns until the handle was dropped; the same each time.
  std::int64_t descriptor = -1;
  bool must_clear = false;  ///< it has bytes of another job: clear it, and set this to false
};

/// Bytes within a time.
export struct timed_bytes {
  std::uint64_t bytes = 0;
  std::uint64_t within_ns = 0;
};

/// A request for handles.
export struct lot_request {
  std::uint64_t bytes = 0;
  std::uint64_t within_ns = 0;
  /// Requests of this size take whole handles of the lot; 0: one request takes all.
  std::uint64_t unit_bytes = 0;
};

/// A request of the owner for memory.
export struct recall_request {
  std::uint64_t bytes = 0;
  std::uint64_t within_ns = 0;
  bool only_idle = false;  ///< only memory that no allocator uses
};

/// The handles of one take().
export using lent_list = std::vector<lent_handle>;

/// What a source requests. Each runs on the source's thread and takes no lock that a caller of
/// take() may hold: try-locks, or a registry that take() runs outside of.
export struct source_callbacks {
  void* of = nullptr;
  /// Gives back up to `what.bytes` by give() in time; returns the bytes given. Null: nothing.
  std::uint64_t (*ask)(void* of, const recall_request& what) noexcept = nullptr;
  /// Releases the import of a handle that is not in use. Its descriptor is closed afterwards.
  void (*drop)(void* of, std::uint64_t id) noexcept = nullptr;
};

/// The device's memory as a tenant may see it.
export struct source_totals {
  std::uint64_t total_bytes = 0;  ///< the guarantee, or the limit without one
  std::uint64_t charged_bytes = 0;
  std::uint64_t most_bytes = 0;  ///< that it can have
};

/// Memory that threads which are short hold for their next requests.
///
/// Thread safety: all of it. Cost: a lock.
class source_loans {
 public:
  /// Of a thread.
  struct loan {
    std::uint64_t refused_bytes = 0;  ///< the smallest request that was refused
    lent_list handles{};
  };
  /// Effects: takes the calling thread's loan out. Errors: none.
  [[nodiscard]] loan take();
  /// Effects: sets it. Throws std::bad_alloc, without an effect.
  void put(loan&& next);
  /// Effects: moves handles that fit into `size_bytes` to `out`, the largest first. Throws
  /// std::bad_alloc, without an effect.
  void use(std::uint64_t size_bytes, lent_list& out);
  /// The bytes of all loans. Errors: none.
  [[nodiscard]] std::uint64_t bytes();
  /// The bytes that were given back, by all drivers over the source.
  [[nodiscard]] std::uint64_t given_bytes() const noexcept {
    return given_bytes_.load(std::memory_order_relaxed);
  }
  void count_given(std::uint64_t bytes) noexcept {
    given_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;
  std::map<std::thread::id, loan> of_;
  std::atomic<std::uint64_t> given_bytes_ = 0;
};

/// A source of physical memory.
export class memory_source {
 public:
  memory_source() = default;
  memory_source(const memory_source&) = delete;
  memory_source& operator=(const memory_source&) = delete;
  virtual ~memory_source() = default;

  /// Requires: bytes that are a positive multiple of market_granule_bytes. Effects: appends handles
  /// of exactly `what.bytes` to `out`, in descending sizes. Waits until they come or are refused,
  /// at most `what.within_ns`. Errors: out_of_memory (the text names the holders), over_budget (the
  /// limit, or, with what the tenant has, more than it can have: at once), unavailable (no owner;
  /// with EINTR a vmm::share_interruption of the thread has ended the wait, and the request with
  /// it), not_permitted (a forked child).
  [[nodiscard]] virtual status take(const lot_request& what, lent_list& out) = 0;
  /// Effects: none; refuses bytes that take() can never return to this tenant. Errors:
  /// out_of_memory, over_budget (the limit). Cost: a lock.
  [[nodiscard]] virtual status check_possible(std::uint64_t) const { return {}; }
  /// Requires: handles of take() whose work is done and that are unmapped. Effects: their
  /// charge ends once the owner has recorded it. Never waits. Errors: none. Without an owner
  /// they are given to the next one.
  virtual void give(std::span<const lent_handle> handles) noexcept = 0;
  /// Effects: none; the device's memory for this tenant. Errors: none. Cost: a lock.
  [[nodiscard]] virtual source_totals totals() const noexcept = 0;
  /// Effects: none; a text for the last refusal, with each holder. Errors: none. Cost: a lock and
  /// a copy.
  [[nodiscard]] virtual std::string last_refusal() const = 0;
  /// Equal for sources whose memory is one tenant's. Errors: none.
  [[nodiscard]] virtual const void* identity() const noexcept { return this; }
  /// The loans of its threads. Errors: none.
  [[nodiscard]] virtual source_loans& loans() noexcept { return loans_; }

 private:
  source_loans loans_;
};

// A wait on this thread, whose unix_os::interruption is called without the lock.
enum class wait_end : std::uint8_t { done, late, interrupted };
[[nodiscard]] wait_end wait_for(std::unique_lock<std::mutex>& held,
                                std::condition_variable& changed, std::int64_t until_ns,
                                const std::function<bool()>& is_done);
[[nodiscard]] error interrupted_wait() noexcept;

/// How a process becomes a tenant.
export struct tenant_options {
  std::string directory{};  ///< of the owner's socket
  market_key device{};
  market_name name{};
  market_name group{};
  market_key secret{};
  std::uint64_t job = 0;
  market_share share{};
  std::uint32_t timeout_ms = 1000;  ///< for the owner's start and its welcome
  std::uint32_t wait_ms = 0;        ///< beside it, for a guarantee that does not fit yet
  std::string program{};            ///< starts an owner where none is; empty: none is started

  friend bool operator==(const tenant_options&, const tenant_options&) = default;
};

/// The folder of owners' sockets that VMM_OWNER=auto names.
export [[nodiscard]] std::string default_market_directory();

/// Reads VMM_OWNER (off, auto, or a directory) and VMM_TENANT
/// (guarantee=20GiB,limit=60GiB,priority=1,elastic,wait=30,name=N,group=G,job=7). Without
/// VMM_OWNER, or with off: nothing. Errors: bad_option.
export [[nodiscard]] result<std::optional<tenant_options>> tenant_options_from_environment();

/// The identity of a CUDA driver's device, from its UUID; nothing if the driver reports none.
export template <class CudaDriver>
[[nodiscard]] std::optional<market_key> market_device_of(const CudaDriver& driver) {
  auto* const get_device =
      reinterpret_cast<int (*)(int* device, int ordinal)>(driver.entry_point("cuDeviceGet", 2'000));
  auto* const get_uuid = reinterpret_cast<int (*)(std::uint8_t* bytes, int device)>(
      driver.entry_point("cuDeviceGetUuid", 11'040));
  std::array<std::uint8_t, 16> bytes{};
  int device = 0;
  if (get_device == nullptr || get_uuid == nullptr ||
      get_device(&device, driver.home().ordinal) != 0 || get_uuid(bytes.data(), device) != 0)
    return std::nullopt;
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t each : bytes) {
    text += digits[each >> 4];
    text += digits[each & 15];
  }
  return make_market_device(text);
}

/// Effects: joins the device's owner, and starts one by `program` where none listens.
/// Errors: unavailable, not_permitted, bad_option, out_of_memory (the guarantees do not fit; the
/// text has the holders), foreign_error; as take() for an interruption.
/// Cost: a connection and a thread.
export [[nodiscard]] result<std::unique_ptr<memory_source>> join_market(
    const tenant_options& options, const source_callbacks& callbacks);

/// The same once for equal options: the drivers of a process are one tenant, with one share. A
/// request of the owner goes to one after the other. A join that waits delays only those of equal
/// options.
export [[nodiscard]] result<std::unique_ptr<memory_source>> join_market_once(
    const tenant_options& options, const source_callbacks& callbacks);

/// The memory of a device that the tenants of join_market_once() in this process hold. Errors:
/// none; throws std::bad_alloc. Cost: a lock for each.
export [[nodiscard]] std::uint64_t market_charged_bytes(const market_key& device);

}  // namespace vmm
