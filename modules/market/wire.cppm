// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:wire - the messages of owner and tenants, and their bytes.
//
// Every message has market_message_bytes: a header of 256 bytes and a table of handles or of
// tenants. Numbers are little-endian. Times are durations: the peers' clocks may differ.
//
// decode_market_message() accepts exactly the bytes that encode_market_message() creates. No field
// of a message is the size of an allocation, an unchecked index, a descriptor or a process number.
//
// Thread safety: values only. Cost: constant, no allocation.
export module vmm.market:wire;

import vmm.backend;
import vmm.std;

namespace vmm {

/// The protocol's number; the bytes of a message and of its header.
export inline constexpr std::uint16_t market_version = 1;
export inline constexpr std::size_t market_message_bytes = 4096;
export inline constexpr std::size_t market_header_bytes = 256;
/// The most handles of one message, each with at most one descriptor, and the most tenants.
export inline constexpr std::size_t market_handles_max = 240;
export inline constexpr std::size_t market_rows_max = 48;
/// Handles are this size times a power of two, up to the largest.
export inline constexpr std::uint64_t market_granule_bytes = std::uint64_t{2} << 20;
export inline constexpr std::uint64_t market_handle_bytes_max = std::uint64_t{1} << 30;
/// The most tenants of an owner.
export inline constexpr std::size_t market_tenants_max = 64;

/// A message as it is sent.
export using market_bytes = std::array<std::byte, market_message_bytes>;
/// A name: any bytes, filled with zeros.
export using market_name = std::array<char, 32>;
export using market_key = std::array<std::byte, 32>;

/// A name from a text, truncated; its text.
export [[nodiscard]] market_name make_market_name(std::string_view text) noexcept;
export [[nodiscard]] std::string_view text_of(const market_name& name) noexcept;

/// A device's identity: a text of at most 32 bytes, such as "host" or the digits of a UUID.
export [[nodiscard]] market_key make_market_device(std::string_view text) noexcept;
export [[nodiscard]] std::string market_device_text(const market_key& device);
/// The name of the owner's socket in its directory.
export [[nodiscard]] std::string market_socket_name(const market_key& device);

/// Whether a handle may have this size.
export [[nodiscard]] constexpr bool is_market_size(std::uint64_t size_bytes) noexcept {
  return size_bytes >= market_granule_bytes && size_bytes <= market_handle_bytes_max &&
         std::has_single_bit(size_bytes);
}
/// The size of the next handle of a lot with `missing_bytes`, not 0.
export [[nodiscard]] constexpr std::uint64_t next_market_size(
    std::uint64_t missing_bytes) noexcept {
  const std::uint64_t size_bytes = std::bit_floor(
      missing_bytes < market_handle_bytes_max ? missing_bytes : market_handle_bytes_max);
  return size_bytes < market_granule_bytes ? market_granule_bytes : size_bytes;
}

/// The kind of a message, and the side that sends it.
export enum class market_kind : std::uint16_t {
  hello = 1,  // tenant: name, group, share, device; its witness as descriptor
  inventory,  // tenant: handles that it holds, with descriptors
  want,       // tenant: bytes, or nothing, within a time
  cancel,     // tenant: the request has ended on its side
  give,       // tenant: handles back, unmapped, their work done
  cannot,     // tenant: bytes of an ask that it keeps
  dropped,    // tenant: the imports have ended
  leave,      // tenant: it holds nothing more
  welcome,    // owner: number, key, view
  refused,    // owner: the tenant or the connection is refused
  grant,      // owner: handles
  denied,     // owner: the request has ended without memory
  given,      // owner: a give is recorded
  ask,        // owner: gives bytes back within a time
  drop,       // owner: imports that are to end
  view,       // owner: the share has changed
  query,      // control: requests a report
  set_share,  // control: the share of a tenant
  drain,      // control: no new tenants, and the end with the last
  report,     // owner: the tenants
};

/// What a tenant is promised, and its limit. The limit 0 is the device.
export struct market_share {
  std::uint64_t guarantee_bytes = 0;
  std::uint64_t limit_bytes = 0;
  std::uint8_t priority = 0;  ///< a larger number goes first; at most 7
  bool elastic = false;       ///< the whole unused guarantee may be lent

  friend bool operator==(const market_share&, const market_share&) = default;
};
/// The highest class.
export inline constexpr std::uint8_t market_priority_max = 7;

/// What a tenant can have of an owner's memory.
export struct market_reach {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t kept_bytes = 0;  ///< what the guarantees of others keep from it
  market_share share{};

  [[nodiscard]] constexpr std::uint64_t most_bytes() const noexcept {
    const std::uint64_t lent_bytes =
        std::max(share.guarantee_bytes, capacity_bytes - std::min(capacity_bytes, kept_bytes));
    return share.limit_bytes == 0 ? lent_bytes : std::min(lent_bytes, share.limit_bytes);
  }
  /// The device as the tenant sees it: its guarantee, or its limit.
  [[nodiscard]] constexpr std::uint64_t total_bytes() const noexcept {
    if (share.guarantee_bytes != 0) return share.guarantee_bytes;
    return share.limit_bytes == 0 ? capacity_bytes : share.limit_bytes;
  }
  [[nodiscard]] constexpr bool is_at_limit() const noexcept {
    return most_bytes() == share.limit_bytes;
  }
};

/// Why a request or a tenant was refused.
export enum class market_reason : std::uint8_t {
  none,
  version,      // another protocol
  device,       // another device
  share,        // not a share: a guarantee above the limit, a priority above 7
  secret,       // the group has another secret
  tenants,      // 64 tenants
  guarantees,   // the guarantees do not fit the device
  draining,     // the owner ends
  limit,        // the request exceeds the tenant's limit
  too_large,    // the request exceeds what the device has for it
  deadline,     // its time has passed
  deadlock,     // every holder waits
  requests,     // too many requests at once
  device_lost,  // the device was reset
  broken,       // the peer broke the protocol
  busy,         // memory in use (cannot)
  silent,       // the tenant was taken for dead
  unknown,      // control: no tenant has this number
};
/// A text for the reason, static storage.
export [[nodiscard]] const char* text_of(market_reason reason) noexcept;

/// A handle in a message.
export struct market_handle {
  std::uint64_t id = 0;  ///< not 0
  std::uint32_t generation = 0;
  std::uint32_t granules = 0;   ///< its size in market_granule_bytes
  bool must_clear = false;      ///< grant, give: it has the bytes of another job
  bool has_descriptor = false;  ///< grant: the next descriptor of the message is its memory
  bool in_use = false;          ///< inventory: granted to the sender, not only imported

  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    return granules * market_granule_bytes;
  }
  friend bool operator==(const market_handle&, const market_handle&) = default;
};

/// A tenant in a report or a refusal.
export struct market_row {
  std::uint64_t tenant = 0;
  market_name name{};
  std::uint64_t held_bytes = 0;
  std::uint64_t waiting_bytes = 0;
  market_share share{};
  bool overdue = false;    ///< it gave nothing in time
  bool is_silent = false;  ///< its connection has ended, its memory is not quiet

  friend bool operator==(const market_row&, const market_row&) = default;
};

/// A decoded message. A kind uses the fields that its comments name.
export struct market_message {
  market_kind kind = market_kind::query;
  market_reason reason = market_reason::none;
  bool more = false;          ///< grant, inventory, report: a further message belongs to it
  bool only_idle = false;     ///< ask: only memory that no allocator uses
  std::uint64_t epoch = 0;    ///< of the owner; all but hello
  std::uint64_t request = 0;  ///< counted by the sender of want, give, ask, drop
  std::uint64_t bytes = 0;    ///< want: the least; ask, cannot; welcome and report: capacity
  /// want: at most; view: the charge; denied: what was requested; refused: the guarantees
  std::uint64_t wish_bytes = 0;
  /// want, ask: the time left; hello: for its guarantee; denied: the time that the request waited
  std::uint64_t within_ns = 0;
  /// want: requests that the lot will serve; 0: one. refused: what is kept beside the guarantees.
  /// welcome, view, denied: what the guarantees of others keep from this tenant
  std::uint64_t unit_bytes = 0;
  std::uint64_t tenant = 0;  ///< welcome, denied; hello: to resume, else 0; set_share
  /// hello: handles of one job are not cleared; 0: none. denied: what the process' tenants hold
  std::uint64_t job = 0;
  market_key device{};   ///< hello: the device's identity
  market_key key{};      ///< hello: the group's secret; welcome: to resume
  market_key resume{};   ///< hello: the key of the welcome
  market_name name{};    ///< hello
  market_name group{};   ///< hello
  market_share share{};  ///< hello, set_share, view, denied
  std::uint32_t handle_count = 0;
  std::uint32_t row_count = 0;
  std::array<market_handle, market_handles_max> handles{};
  std::array<market_row, market_rows_max> rows{};

  [[nodiscard]] std::span<const market_handle> handle_list() const noexcept {
    return std::span(handles).first(handle_count);
  }
  [[nodiscard]] std::span<const market_row> row_list() const noexcept {
    return std::span(rows).first(row_count);
  }
  friend bool operator==(const market_message& a, const market_message& b) noexcept;
};

/// Effects: none; the number of descriptors that go with the message. Cost: O(handles).
export [[nodiscard]] std::uint32_t descriptor_count_of(const market_message& message) noexcept;

/// Requires: a message that decode_market_message() can return, else the process ends.
export [[nodiscard]] market_bytes encode_market_message(const market_message& message) noexcept;

/// Errors: foreign_error (not a message of this protocol), not_supported (another version).
export [[nodiscard]] result<market_message> decode_market_message(
    std::span<const std::byte> bytes) noexcept;

}  // namespace vmm
