// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:records - an owner's records: handles, tenants, requests. Internal.
//
// B1  A handle has one state; a granted one has one holder, whose charge counts it.
// B2  Sums over the handles are the sums by state: created = free + granted + quarantined + void +
//     creating.
// B3  A generation of a handle is granted once: each grant counts it up.
// B4  Contents stay in their group: a handle with bytes is granted to its group only.
//
// Thread safety: one thread at a time. Cost: O(log handles) to find one, O(handles) in a sum.
export module vmm.market:records;

import vmm.backend;
import vmm.base;
import vmm.std;
import :wire;

namespace vmm {

/// The state of a handle.
export enum class handle_state : std::uint8_t {
  creating,     // the driver has not returned
  free,         // the owner's
  granted,      // a tenant's
  quarantined,  // its tenant is dead and not quiet, or two tenants claim it
  leaving,      // void: released once its last import has ended
  releasing,    // void: the driver has not returned
};

/// A handle.
export struct owned_handle {
  std::uint64_t id = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t generation = 0;
  handle_state state = handle_state::creating;
  std::uint64_t holder = 0;      ///< the tenant's number while granted or quarantined
  std::uint64_t request = 0;     ///< of the grant
  std::uint64_t importers = 0;   ///< a bit for the place of each tenant that has imported it
  std::uint64_t group = 0;       ///< of its bytes; 0: new memory
  std::uint64_t job = 0;         ///< of its bytes
  bool is_adopted = false;       ///< of an earlier owner: this one has a descriptor only
  bool is_doubled = false;       ///< two tenants claim it
  std::uint64_t listed = 0;      ///< the tenants whose inventory, not complete yet, has it
  std::uint64_t listed_use = 0;  ///< the same, in use
  bool must_clear = false;       ///< its holder receives bytes of another job
  std::uint64_t drops_sent = 0;  ///< leaving: the importers that have received a drop
  std::int64_t stay_ns = 0;      ///< granted: not recalled before
  std::int64_t drop_ns = 0;      ///< leaving: when its imports are to have ended
  bool is_late = false;          ///< leaving: they have not
};

/// A request of a tenant for memory.
export struct request_record {
  std::uint64_t tenant = 0;
  std::uint64_t request = 0;
  std::uint64_t least_bytes = 0;
  std::uint64_t wish_bytes = 0;
  std::uint64_t unit_bytes = 0;  ///< of requests that the lot will serve; 0: one
  std::int64_t since_ns = 0;
  std::int64_t deadline_ns = 0;
  std::int64_t pass_ns = 0;         ///< it fits: when it passes those before it
  std::uint64_t target_bytes = 0;   ///< while it is built: the lot's size
  std::uint64_t missing_bytes = 0;  ///< while it is built: not collected yet

  [[nodiscard]] bool is_building() const noexcept { return target_bytes != 0; }
  /// The largest handle that the lot may have next. The first of several units is cut into parts
  /// that serve a request of any size up to it: a growth's last one is smaller than the others.
  [[nodiscard]] std::uint64_t next_bytes_max() const noexcept {
    if (unit_bytes == 0 || missing_bytes == 0) return missing_bytes;
    const std::uint64_t left_bytes = (missing_bytes - 1) % unit_bytes + 1;
    const bool is_cut = target_bytes > unit_bytes && missing_bytes + unit_bytes > target_bytes;
    return is_cut ? std::max(left_bytes / 2, market_granule_bytes) : left_bytes;
  }
};

/// An ask that has not ended.
export struct ask_record {
  std::uint64_t request = 0;  ///< 0: none
  std::uint64_t bytes = 0;    ///< not given yet
  std::int64_t deadline_ns = 0;
  bool only_idle = false;
};

/// A tenant, from its hello until it is quiet.
export struct tenant_record {
  std::uint64_t number = 0;      ///< 0: the place is free
  std::uint64_t connection = 0;  ///< 0: it has none
  std::uint64_t process = 0;     ///< that it is of; 0: not known
  market_key resume{};
  market_name name{};
  std::uint64_t group = 0;
  std::uint64_t job = 0;
  market_share share{};
  bool is_waiting_to_join = false;  ///< for the grace's end, or for room for its guarantee
  bool is_earlier = false;          ///< a tenant of an earlier owner
  bool has_stock = false;           ///< its inventory is complete
  bool has_ended = false;           ///< its process
  bool has_witness = true;          ///< a process of it may use the device
  bool is_overdue = false;
  std::int64_t quiet_ns = 0;   ///< ended: when its memory is lent again
  std::int64_t join_ns = 0;    ///< waits to join: refused then
  std::int64_t peace_ns = 0;   ///< not recalled for borrowers before
  std::int64_t cannot_ns = 0;  ///< has refused an ask: not recalled before
  std::int64_t busy_ns = 0;    ///< has no idle memory: not recalled before
  std::int64_t largest_ns = 0;
  std::uint64_t largest_bytes = 0;  ///< its largest request of the last minute
  std::uint64_t moved_bytes = 0;    ///< given on request, idle memory aside
  std::uint64_t refault_bytes = 0;  ///< requested again soon after
  std::int64_t moved_ns = 0;
  double credit_byte_s = 0;  ///< of its part of the device, not used; decays
  std::uint64_t last_request = 0;
  std::uint64_t sent_kept_bytes = 0;  ///< what others keep from it, by its last view
  ask_record ask{};

  [[nodiscard]] bool is_there() const noexcept { return number != 0; }
  [[nodiscard]] bool is_open() const noexcept { return connection != 0 && has_stock; }
};

/// Bytes by state, and of all handles.
export struct market_sums {
  std::uint64_t free_bytes = 0;
  std::uint64_t granted_bytes = 0;
  std::uint64_t quarantined_bytes = 0;
  std::uint64_t void_bytes = 0;
  std::uint64_t creating_bytes = 0;

  [[nodiscard]] std::uint64_t created_bytes() const noexcept {
    return free_bytes + granted_bytes + quarantined_bytes + void_bytes + creating_bytes;
  }
  friend bool operator==(const market_sums&, const market_sums&) = default;
};

/// The records.
export class market_records {
 public:
  explicit market_records(std::uint64_t first_id) noexcept : next_id_(first_id) {}

  /// Adds a handle that is being created; one, unknown here and so far void, that a tenant has.
  [[nodiscard]] owned_handle& add_handle(std::uint64_t size_bytes);
  [[nodiscard]] owned_handle& adopt_handle(const market_handle& of_a_tenant);
  void remove_handle(std::uint64_t id) noexcept;
  /// Closing a descriptor returns at once, and its memory may be claimed again: removes adopted
  /// handles that are being released.
  void remove_adopted() noexcept;
  [[nodiscard]] owned_handle* find(std::uint64_t id) noexcept;
  /// Changes a handle's state and the sums. Granted and quarantined keep or set the holder.
  void move_to(owned_handle& handle, handle_state state) noexcept;
  void grant(owned_handle& handle, const tenant_record& to, std::uint64_t request) noexcept;
  [[nodiscard]] std::span<owned_handle> handles() noexcept { return handles_; }
  [[nodiscard]] std::span<const owned_handle> handles() const noexcept { return handles_; }

  /// A free place with the next number, or null.
  [[nodiscard]] tenant_record* add_tenant() noexcept;
  [[nodiscard]] tenant_record* tenant(std::uint64_t number) noexcept;
  [[nodiscard]] const tenant_record* tenant(std::uint64_t number) const noexcept;
  [[nodiscard]] tenant_record* tenant_of(std::uint64_t connection) noexcept;
  /// Whether they are tenants of one process, group and name, which have one share together; a
  /// tenant and itself.
  [[nodiscard]] bool are_one(const tenant_record& a, const tenant_record& b) const noexcept;
  [[nodiscard]] std::span<tenant_record> tenants() noexcept { return tenants_; }
  [[nodiscard]] std::span<const tenant_record> tenants() const noexcept { return tenants_; }
  [[nodiscard]] std::uint64_t bit_of(const tenant_record& tenant) const noexcept {
    return std::uint64_t{1} << place_of(tenant);
  }

  [[nodiscard]] std::size_t place_of(const tenant_record& tenant) const noexcept {
    return static_cast<std::size_t>(&tenant - tenants_.data());
  }

  /// A bit for the place of each tenant whose import of a void handle has not ended in time.
  [[nodiscard]] std::uint64_t late_importers() const noexcept;
  /// The bytes granted to a tenant.
  [[nodiscard]] std::uint64_t charge_of(const tenant_record& tenant) const noexcept {
    return charges_[place_of(tenant)];
  }
  [[nodiscard]] const market_sums& sums() const noexcept { return sums_; }

  std::vector<request_record> requests;

  /// Checks B1 and B2. Errors: internal.
  [[nodiscard]] status validate() const noexcept;

 private:
  owned_handle& insert(const owned_handle& made);
  [[nodiscard]] std::uint64_t& sum_of(handle_state state) noexcept;

  std::uint64_t next_id_;
  std::uint64_t last_tenant_ = 0;
  std::vector<owned_handle> handles_;  // by id
  std::array<tenant_record, market_tenants_max> tenants_{};
  std::array<std::uint64_t, market_tenants_max> charges_{};
  market_sums sums_;
};

/// Whether no tenant of its process has an earlier place: it stands for them all.
export [[nodiscard]] bool is_first(const market_records& records,
                                   const tenant_record& tenant) noexcept;

}  // namespace vmm
