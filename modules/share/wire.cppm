// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.share:wire - the message that two processes exchange, and its bytes.
//
// Every message has share_message_bytes: a header of 128 bytes and a table of the block's parts.
// Numbers are little-endian. The table has 8 bytes for the size of each part, and 64 more if the
// parts are fabric handles.
//
// I1  decode_message() accepts exactly the bytes that encode_message() creates: fields that a kind
//     of message does not use are zero. So decode_message(encode_message(m)) is m, and
//     encode_message(decode_message(b)) is b.
// I2  No field of a message is the size of an allocation, an unchecked index, a descriptor or a
//     process number.
//
// Thread safety: values only. Cost: constant, no allocation.
export module vmm.share:wire;

import vmm.backend;
import vmm.std;

namespace vmm {

/// The protocol's number; the bytes of a message, of its header and of a fabric handle.
export inline constexpr std::uint16_t share_version = 1;
export inline constexpr std::size_t share_message_bytes = 2048;
export inline constexpr std::size_t share_header_bytes = 128;
export inline constexpr std::size_t share_fabric_bytes = 64;
/// The maximum number of parts of a block, and of descriptors in one message.
export inline constexpr std::size_t share_parts_max =
    (share_message_bytes - share_header_bytes) / sizeof(std::uint64_t);
/// The same for fabric handles, which are in the message itself.
export inline constexpr std::size_t share_fabric_parts_max =
    (share_message_bytes - share_header_bytes) / (sizeof(std::uint64_t) + share_fabric_bytes);
static_assert(share_parts_max == 240 && share_fabric_parts_max == 26);
/// The kernel passes 253 descriptors at a time.
static_assert(share_parts_max <= 253);

/// The bytes of a message.
export using share_bytes = std::array<std::byte, share_message_bytes>;
/// A nonce, or a proof that its sender has the secret.
export using share_digest = std::array<std::byte, 32>;
/// The exporter's label of a block: any bytes.
export using share_label = std::array<char, 32>;
export using share_fabric = std::array<std::uint8_t, share_fabric_bytes>;

/// A label from a text, truncated.
export [[nodiscard]] share_label make_share_label(std::string_view text) noexcept;

/// The kind of a message, and the side that sends it.
export enum class share_message_kind : std::uint16_t {
  hello = 1,  // both: a nonce
  proof,      // both: that the sender has the secret
  offer,      // exporter: a block, with its descriptors
  update,     // exporter: the block as it is from now on, with all its descriptors
  withdraw,   // exporter: requests the block's return
  accept,     // importer: the block of this epoch is in use
  refuse,     // importer: the block is refused, with a reason
  release,    // importer: the block is out of use
};

/// A block as its message describes it. It is checked against the driver at import.
export struct share_description {
  std::uint64_t id = 0;     ///< of the connection; counted from 1
  std::uint64_t epoch = 0;  ///< counted up by each update
  std::uint64_t size_bytes = 0;
  std::uint64_t granularity_bytes = 0;
  share_kind kind = share_kind::none;
  location where{};
  bool compressible = false;
  bool rdma_capable = false;
  share_label label{};
  std::uint32_t part_count = 0;
  std::array<std::uint64_t, share_parts_max> part_bytes{};
  std::array<share_fabric, share_fabric_parts_max> fabric{};  ///< where kind is fabric

  friend bool operator==(const share_description&, const share_description&) = default;
};

/// A decoded message.
export struct share_message {
  share_message_kind kind = share_message_kind::hello;
  std::uint64_t sequence = 0;  ///< counted from 0 in each direction
  std::uint8_t reason = 0;     ///< of a refusal: an errc
  share_digest digest{};       ///< of hello and proof; of a sealed description, its seal
  /// Whole in offer and update; id and epoch in accept; id in withdraw, refuse and release.
  share_description block{};

  friend bool operator==(const share_message&, const share_message&) = default;
};

/// The number of descriptors of a message.
export [[nodiscard]] std::uint32_t descriptor_count_of(const share_message& message) noexcept;

/// Encodes the message. Requires: a message that decode_message() can return.
export [[nodiscard]] share_bytes encode_message(const share_message& message) noexcept;

/// Decodes a message. Errors: foreign_error (not a message), not_supported (another version, or a
/// kind of handle that this system does not have).
export [[nodiscard]] result<share_message> decode_message(
    std::span<const std::byte> bytes) noexcept;

/// Checks that the description can be sent. Errors: invalid_argument, not_supported.
export [[nodiscard]] status check_share_description(const share_description& block) noexcept;

}  // namespace vmm
