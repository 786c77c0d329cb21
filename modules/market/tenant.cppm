// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:tenant - a tenant's side of the protocol: (state, event, clock) -> actions.
//
// I1  A request has one end: its lot, or a refusal. Without an owner it ends by its own deadline,
//     and a lot that comes later is given back.
// I2  A handle is used, given until the owner has recorded it, or only imported.
//
// After a reconnection the owner receives every handle that is used, with its generation,
// before any request. Gives that were not recorded are left out, which gives them.
//
// No clock, socket or descriptor: those are in :source. Thread safety: one thread at a time.
// Cost: O(handles) for a reconnection, O(log handles) for each handle of a message.
export module vmm.market:tenant;

import vmm.backend;
import vmm.std;
import :wire;

namespace vmm {

/// A tenant's connection to its owner.
export enum class tenant_stage : std::uint8_t {
  alone,     // no connection
  greeting,  // hello was sent
  open,
  refused,  // the owner refuses this tenant: it does not connect again by itself
};

/// Something that the outside does for a tenant.
export struct tenant_action {
  enum class what : std::uint8_t {
    send,     // the message; of an inventory with the descriptors of its handles
    keep,     // a granted handle: the descriptor that came with it, or the one kept before
    granted,  // the request has its lot: take_lot()
    denied,   // the request has ended without memory: `message` has reason and rows
    ask,      // gives back up to `message.bytes` within `message.within_ns`
    drop,     // the import of `handle` is to end: then dropped()
    close,    // ends the connection: the owner broke the protocol
  };
  what kind = what::send;
  std::uint64_t request = 0;
  market_handle handle{};
  market_message message{};
};

/// A handle of a tenant.
export struct held_handle {
  enum class use : std::uint8_t { used, given, imported };
  market_handle handle{};
  use state = use::used;
  std::uint64_t request = 0;  // the give that is not recorded
  bool is_void = false;       // its drop waits for its give
};

/// The handles of a tenant, by number.
export class held_handles {
 public:
  [[nodiscard]] held_handle* find(std::uint64_t id) noexcept;
  held_handle& insert(const market_handle& handle);
  void erase(const held_handle& gone) noexcept;
  [[nodiscard]] std::span<held_handle> all() noexcept { return list_; }
  /// Bytes of handles in use and of gives that were not recorded.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept;
  [[nodiscard]] std::vector<market_handle> in_use() const;
  [[nodiscard]] bool is_held(std::uint64_t id) const noexcept;
  [[nodiscard]] bool is_used(std::uint64_t id) const noexcept;
  void clear() noexcept { list_.clear(); }
  [[nodiscard]] bool is_in_order() const noexcept;
  /// A give is recorded: its handles are only imported. Returns those whose drop waited for it.
  [[nodiscard]] std::vector<market_handle> record(std::uint64_t request);

 private:
  std::vector<held_handle> list_;
};

/// The tenant's machine.
export class market_tenant {
 public:
  struct identity {
    market_key device{};
    market_name name{};
    market_name group{};
    market_key secret{};
    std::uint64_t job = 0;
    market_share share{};
    std::uint64_t wait_ns = 0;  ///< for its guarantee, where it does not fit yet
  };
  explicit market_tenant(const identity& self) noexcept : self_(self) {}

  /// A connection was made: sends hello.
  void connected(std::int64_t now_ns);
  /// The connection has ended.
  void lost(std::int64_t now_ns);
  /// A message of the owner.
  void receive(const market_message& message, std::int64_t now_ns);
  /// Ends the requests whose time has passed.
  void tick(std::int64_t now_ns);

  /// What a request is for.
  struct wanted {
    std::uint64_t least_bytes = 0;
    std::uint64_t wish_bytes = 0;  ///< at least least_bytes
    std::uint64_t within_ns = 0;
    std::uint64_t unit_bytes = 0;  ///< of requests that the lot will serve; 0: one
  };
  /// Requires: positive multiples of market_granule_bytes. Returns the request's number.
  [[nodiscard]] std::uint64_t want(const wanted& what, std::int64_t now_ns);
  /// Ends a request. What it has is given back; without `why` no action reports its end.
  void cancel(std::uint64_t request, const market_message* why = nullptr);
  /// The lot of a request that was granted, once.
  [[nodiscard]] std::vector<market_handle> take_lot(std::uint64_t request);
  /// Requires: handles of lots, unmapped; must_clear where they were not cleared. Others
  /// are ignored.
  void give(std::span<const market_handle> handles);
  /// Ends an ask: `bytes` of it are kept.
  struct refusal {
    std::uint64_t request = 0;
    std::uint64_t bytes = 0;
  };
  void cannot(const refusal& kept);
  /// The import of a handle has ended. False: the handle is not one that was to be dropped.
  [[nodiscard]] bool dropped(std::uint64_t id);
  /// Gives everything and says goodbye. Requires: no mapping is left.
  void leave();

  [[nodiscard]] tenant_stage stage() const noexcept { return stage_; }
  /// Without a welcome so far it has no capacity.
  [[nodiscard]] market_reach reach() const noexcept {
    return {capacity_bytes_, kept_bytes_, self_.share};
  }
  [[nodiscard]] const held_handles& handles() const noexcept { return held_; }
  /// The next time at which tick() changes something; the largest value: never.
  [[nodiscard]] std::int64_t next_deadline_ns() const noexcept;
  [[nodiscard]] std::vector<tenant_action> take_actions() noexcept {
    return std::exchange(actions_, {});
  }
  /// Checks I1 and I2. Errors: internal.
  [[nodiscard]] status validate() const noexcept;

 private:
  struct pending {
    std::uint64_t request = 0;
    wanted what{};
    std::int64_t deadline_ns = 0;
    std::vector<market_handle> lot{};  // parts that have come
    bool is_granted = false;           // waits for take_lot()
  };
  struct pending_list : std::vector<pending> {
    [[nodiscard]] pending* find(std::uint64_t request) noexcept;
  };

  [[nodiscard]] bool dispatch(const market_message& message, std::int64_t now_ns);
  [[nodiscard]] bool greet(const market_message& message, std::int64_t now_ns);
  [[nodiscard]] bool take_grant(const market_message& message);
  void take_drop(const market_message& message);
  void send_want(const pending& each, std::int64_t now_ns);
  void end(std::uint64_t request, const market_message* why);
  void send(market_message message);

  identity self_;
  tenant_stage stage_ = tenant_stage::alone;
  std::uint64_t epoch_ = 0;
  std::uint64_t number_ = 0;
  market_key resume_{};
  std::uint64_t capacity_bytes_ = 0;
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t last_request_ = 0;
  std::uint64_t last_give_ = 0;
  held_handles held_;
  pending_list pending_;
  std::vector<tenant_action> actions_;
};

}  // namespace vmm
