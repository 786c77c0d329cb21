// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:state - an owner's state, its constants, and the actions that it emits. Internal: the
// rules over it are in :policy, the collection of lots in :lots, the events in :owner.
//
// Thread safety: one thread at a time. Cost: constant for an action, O(tenants) for a refusal.
export module vmm.market:state;

import vmm.backend;
import vmm.std;
import :records;
import :wire;

namespace vmm {

/// An owner's constants.
export struct owner_options {
  std::uint64_t epoch = 1;           ///< not 0; another for each owner
  std::uint64_t first_handle = 1;    ///< the owner's handles are counted from it
  std::uint64_t capacity_bytes = 0;  ///< that the owner may create
  market_key device{};
  market_key key{};  ///< random: a tenant that comes back has one made of it
  std::uint64_t context_bytes = std::uint64_t{528} << 20;  ///< of a tenant, beside its memory
  std::uint64_t reserve_bytes = std::uint64_t{1} << 30;    ///< of a firm guarantee: never lent
  bool takes_stock = false;                                ///< tenants of an earlier owner may come
  std::int64_t grace_ns = 1'000'000'000;
  std::int64_t quiet_delay_ns = 200'000'000;
  std::int64_t stay_ns = 50'000'000;       ///< the least time between a grant and an ask
  std::int64_t move_ns_per_gib = 600'000;  ///< the time is at least 20 times that of the move
  std::int64_t ask_ns = 100'000'000;       ///< the time for an ask, and for each GiB of it
  std::int64_t ask_ns_per_gib = 24'000'000;
  std::int64_t cannot_ns = 100'000'000;  ///< the least time after a refused ask
  std::int64_t busy_ns = 20'000'000;     ///< the same after one for idle memory
  std::int64_t peace_ns = 10'000'000'000;
  std::int64_t pass_ns = 20'000'000;             ///< the least wait behind one that does not fit
  std::int64_t pass_ns_max = 500'000'000;        ///< the longest
  std::int64_t age_ns = 1'000'000'000;           ///< a class up
  std::int64_t credit_half_ns = 60'000'000'000;  ///< half of a credit is lost
  std::int64_t retry_ns = 1'000'000'000;         ///< after a refused create without a release
  std::int64_t build_ns = 1'000'000'000;  ///< a lot that is being created may be late by this
};

/// Something that the owner does.
export struct owner_action {
  enum class what : std::uint8_t {
    send,     // the message; of a grant with the descriptors of its handles that have one
    create,   // `bytes` of memory as `handle`: then created()
    release,  // the memory of `handle`: then released()
    adopt,    // descriptor number `index` of the message being received is `handle`
    close,    // ends the connection
    end,      // the last tenant has left
  };
  what kind = what::send;
  std::uint64_t connection = 0;
  std::uint64_t handle = 0;
  std::uint64_t bytes = 0;
  std::uint32_t index = 0;
  market_message message{};
};

/// Counts over an owner's life.
export struct owner_statistics {
  std::uint64_t granted_count = 0;
  std::uint64_t granted_bytes = 0;
  std::uint64_t denied_count = 0;
  std::uint64_t ask_count = 0;
  std::uint64_t ask_bytes = 0;
  std::uint64_t given_bytes = 0;  ///< on request
  std::uint64_t overdue_count = 0;
  std::uint64_t refault_bytes = 0;
  std::uint64_t created_count = 0;
  std::uint64_t refused_count = 0;  ///< creates
  std::uint64_t deadlock_count = 0;
  std::int64_t waited_ns = 0;       ///< by all requests together
  std::int64_t some_waited_ns = 0;  ///< time in which a tenant waited
  std::int64_t all_waited_ns = 0;   ///< time in which every tenant waited
};

/// The state.
export struct owner_state {
  struct group {
    std::uint64_t number = 0;
    market_name name{};
    market_key secret{};
  };

  explicit owner_state(const owner_options& given)
      : options(given), records(given.first_handle), usable_bytes(given.capacity_bytes) {}

  owner_options options;
  market_records records;
  std::vector<group> groups;
  std::uint64_t last_group = 0;
  std::int64_t now_ns = 0;
  std::int64_t grace_end_ns = 0;
  std::uint64_t usable_bytes;        // of the capacity, as far as the driver has not refused
  std::int64_t refused_ns = -1;      // the last refused create; -1: none is in force
  std::int64_t create_after_ns = 0;  // a release is being cleared until then
  std::uint64_t creating = 0;        // the handle of the create that has not returned
  std::uint64_t last_ask = 0;
  std::uint64_t last_drop = 0;
  bool is_draining = false;
  std::vector<owner_action> actions;
  owner_statistics counts;

  /// Every tenant, with what it holds.
  [[nodiscard]] std::vector<market_row> rows() const;
  void send(const tenant_record& to, market_message message);
  void send_to(std::uint64_t connection, market_message message);
  /// A refusal with the holders.
  [[nodiscard]] market_message refusal(market_kind kind, market_reason reason) const;
  void close(std::uint64_t connection);
  /// Ends a request without memory. Requires: it has no lot.
  void deny(const request_record& request, market_reason reason);
  void forget_request(const request_record& request);
};

}  // namespace vmm
