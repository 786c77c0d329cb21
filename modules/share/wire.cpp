// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

module vmm.share;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

constexpr std::uint32_t magic = 0x4D4D5653;  // "SVMM"

// Where the fields of the header stand.
namespace at {
constexpr std::size_t magic = 0;
constexpr std::size_t version = 4;
constexpr std::size_t kind = 6;
constexpr std::size_t sequence = 8;
constexpr std::size_t id = 16;
constexpr std::size_t epoch = 24;
constexpr std::size_t size = 32;
constexpr std::size_t granularity = 40;
constexpr std::size_t part_count = 48;
constexpr std::size_t share_kind = 52;
constexpr std::size_t place = 53;
constexpr std::size_t flags = 54;
constexpr std::size_t reason = 55;
constexpr std::size_t ordinal = 56;
constexpr std::size_t reserved = 60;
constexpr std::size_t digest = 64;
constexpr std::size_t label = 96;
constexpr std::size_t sizes = share_header_bytes;
constexpr std::size_t fabric = sizes + share_fabric_parts_max * sizeof(std::uint64_t);
}  // namespace at

constexpr std::uint8_t compressible_flag = 1;
constexpr std::uint8_t rdma_flag = 2;
constexpr std::uint64_t block_bytes_max = std::uint64_t{1} << 56;
constexpr std::uint64_t granularity_bytes_max = std::uint64_t{1} << 40;
constexpr std::int32_t ordinal_max = 65'535;

error malformed(const char* detail) noexcept {
  check(detail != nullptr, "a message is refused without a text");
  return {errc::foreign_error, call::none, EPROTO, "EPROTO", detail};
}

template <class T>
void put(share_bytes& to, std::size_t offset, T value) noexcept {
  check(offset + sizeof(T) <= to.size(), "a field is written past the end of a message");
  for (std::size_t i = 0; i < sizeof(T); ++i)
    to[offset + i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
}

template <class T>
T get(std::span<const std::byte> from, std::size_t offset) noexcept {
  check(offset + sizeof(T) <= from.size(), "I2: a field is read past the end of a message");
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::uint64_t{std::to_integer<std::uint8_t>(from[offset + i])} << (8 * i);
  return static_cast<T>(value);
}

bool has_block(share_message_kind kind) noexcept {
  return kind == share_message_kind::offer || kind == share_message_kind::update;
}

bool is_zero(std::span<const std::byte> bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The part of a message after its header, as far as its table does not use it.
bool rest_is_zero(std::span<const std::byte> bytes, const share_description& block) noexcept {
  check(block.part_count <= share_parts_max, "a table is longer than a message");
  const std::size_t sizes_end = at::sizes + block.part_count * sizeof(std::uint64_t);
  if (block.kind != share_kind::fabric) return is_zero(bytes.subspan(sizes_end));
  const std::size_t fabric_end = at::fabric + block.part_count * share_fabric_bytes;
  check(sizes_end <= at::fabric && fabric_end <= bytes.size(), "a table runs over its end");
  return is_zero(bytes.subspan(sizes_end, at::fabric - sizes_end)) &&
         is_zero(bytes.subspan(fabric_end));
}

void read_block(std::span<const std::byte> bytes, share_description& block) noexcept {
  check(bytes.size() == share_message_bytes, "a block is read from a partial message");
  block.id = get<std::uint64_t>(bytes, at::id);
  block.epoch = get<std::uint64_t>(bytes, at::epoch);
  block.size_bytes = get<std::uint64_t>(bytes, at::size);
  block.granularity_bytes = get<std::uint64_t>(bytes, at::granularity);
  block.part_count = get<std::uint32_t>(bytes, at::part_count);
  block.kind = static_cast<share_kind>(get<std::uint8_t>(bytes, at::share_kind));
  block.where.kind = static_cast<location::place>(get<std::uint8_t>(bytes, at::place));
  block.where.ordinal = static_cast<std::int32_t>(get<std::uint32_t>(bytes, at::ordinal));
  const auto flags = get<std::uint8_t>(bytes, at::flags);
  block.compressible = (flags & compressible_flag) != 0;
  block.rdma_capable = (flags & rdma_flag) != 0;
  std::memcpy(block.label.data(), bytes.data() + at::label, block.label.size());
}

// Requires: a count of parts that the table has.
void read_table(std::span<const std::byte> bytes, share_description& block) noexcept {
  check(block.part_count <= share_parts_max, "a table is read from a message without one");
  for (std::size_t i = 0; i < block.part_count; ++i) {
    block.part_bytes[i] = get<std::uint64_t>(bytes, at::sizes + i * sizeof(std::uint64_t));
  }
  if (block.kind != share_kind::fabric) return;
  check(block.part_count <= share_fabric_parts_max, "a table of fabric handles is too long");
  for (std::size_t i = 0; i < block.part_count; ++i) {
    std::memcpy(block.fabric[i].data(), bytes.data() + at::fabric + i * share_fabric_bytes,
                share_fabric_bytes);
  }
}

// I1, seen from the bytes.
bool is_encoding(const share_message& message, std::span<const std::byte> bytes) noexcept {
  const share_bytes made = encode_message(message);
  check(made.size() == share_message_bytes, "a message is not of its fixed size");
  return std::equal(made.begin(), made.end(), bytes.begin(), bytes.end());
}

// What a message without a block may have in its header.
bool has_only(std::span<const std::byte> bytes, share_message_kind kind) noexcept {
  check(!has_block(kind), "a message with a block is handled as one without");
  const bool digest = kind == share_message_kind::hello || kind == share_message_kind::proof;
  const bool epoch = kind == share_message_kind::accept;
  const bool reason = kind == share_message_kind::refuse;
  const bool id = !digest;
  const auto zero_unless = [&](bool used, std::size_t offset, std::size_t size) {
    return used || is_zero(bytes.subspan(offset, size));
  };
  return zero_unless(id, at::id, 8) && zero_unless(epoch, at::epoch, 8) &&
         zero_unless(reason, at::reason, 1) && zero_unless(digest, at::digest, 32) &&
         is_zero(bytes.subspan(at::size, at::reason - at::size)) &&
         is_zero(bytes.subspan(at::ordinal, at::digest - at::ordinal)) &&
         is_zero(bytes.subspan(at::label));
}

// Everything but the table: of that a parser reads only as many entries as the count, once it is
// checked.
status check_facts(const share_description& block) noexcept {
  if (block.kind == share_kind::win32) {
    return refuse(errc::not_supported,
                  "win32 handles are shared on Windows only: use posix_fd or fabric");
  }
  if (block.kind != share_kind::posix_fd && block.kind != share_kind::fabric)
    return refuse(errc::invalid_argument, "a block is shared as posix_fd or as fabric");
  const std::size_t most =
      block.kind == share_kind::fabric ? share_fabric_parts_max : share_parts_max;
  if (block.part_count == 0 || block.part_count > most) {
    return refuse(errc::invalid_argument,
                  "a shared block has 1 to 240 parts, 26 of fabric: use larger handles, or one");
  }
  if (block.size_bytes == 0 || block.size_bytes > block_bytes_max)
    return refuse(errc::invalid_argument, "a shared block has no size, or an impossible one");
  if (!std::has_single_bit(block.granularity_bytes) ||
      block.granularity_bytes > granularity_bytes_max)
    return refuse(errc::invalid_argument,
                  "the granularity of a shared block is not a power of "
                  "two");
  const bool known_place = block.where.kind == location::place::device ||
                           block.where.kind == location::place::host ||
                           block.where.kind == location::place::host_node;
  if (!known_place || block.where.ordinal < 0 || block.where.ordinal > ordinal_max ||
      (block.where.kind == location::place::host && block.where.ordinal != 0))
    return refuse(errc::invalid_argument, "a shared block has no location");
  if (block.id == 0) return refuse(errc::invalid_argument, "a shared block has no number");
  return {};
}

status check_part_table(const share_description& block) noexcept {
  check(block.part_count <= share_parts_max && block.granularity_bytes != 0,
        "a table is looked at before its header");
  std::uint64_t sum_bytes = 0;
  for (std::size_t i = 0; i < block.part_count; ++i) {
    const std::uint64_t part_bytes = block.part_bytes[i];
    if (part_bytes == 0 || part_bytes % block.granularity_bytes != 0)
      return refuse(errc::invalid_argument, "a part of a shared block is not whole granules");
    if (part_bytes > block.size_bytes - sum_bytes)
      return refuse(errc::invalid_argument, "the parts of a shared block exceed its size");
    sum_bytes += part_bytes;
    check(sum_bytes <= block.size_bytes, "parts are added up past the block");
  }
  if (sum_bytes != block.size_bytes)
    return refuse(errc::invalid_argument, "the parts of a shared block are smaller than its size");
  return {};
}

// The refusal of a description that came from elsewhere.
error not_such_block(const error& refused) noexcept {
  check(refused.code != errc::none, "a block is refused for no reason");
  return refused.code == errc::not_supported ? refused : malformed(refused.detail);
}

result<share_description> decode_block(std::span<const std::byte> bytes) noexcept {
  share_description block;
  read_block(bytes, block);
  if ((get<std::uint8_t>(bytes, at::flags) & ~(compressible_flag | rdma_flag)) != 0)
    return malformed("a message has flags that this version does not have");
  if (get<std::uint8_t>(bytes, at::reason) != 0 || get<std::uint32_t>(bytes, at::reserved) != 0)
    return malformed("a message has fields that its kind lacks");
  if (const status facts = check_facts(block); !facts) return not_such_block(facts.error());
  read_table(bytes, block);
  if (const status parts = check_part_table(block); !parts) return not_such_block(parts.error());
  if (!rest_is_zero(bytes, block))
    return malformed("a message has more parts than its header counts");
  debug_check([&] { return check_share_description(block).has_value(); },
              "a block is accepted that cannot be sent");
  return block;
}

}  // namespace

share_label make_share_label(std::string_view text) noexcept {
  share_label label{};
  std::copy_n(text.data(), std::min(text.size(), label.size()), label.data());
  return label;
}

std::uint32_t descriptor_count_of(const share_message& message) noexcept {
  check(message.block.part_count <= share_parts_max, "a message has more parts than its table");
  const bool carries = has_block(message.kind) && message.block.kind == share_kind::posix_fd;
  return carries ? message.block.part_count : 0;
}

status check_share_description(const share_description& block) noexcept {
  const status facts = check_facts(block);
  return facts ? check_part_table(block) : facts;
}

share_bytes encode_message(const share_message& message) noexcept {
  check(message.kind >= share_message_kind::hello && message.kind <= share_message_kind::release,
        "a message of no kind is encoded");
  share_bytes bytes{};
  put(bytes, at::magic, magic);
  put(bytes, at::version, share_version);
  put(bytes, at::kind, static_cast<std::uint16_t>(message.kind));
  put(bytes, at::sequence, message.sequence);
  put(bytes, at::id, message.block.id);
  put(bytes, at::epoch, message.block.epoch);
  put(bytes, at::reason, message.reason);
  std::memcpy(bytes.data() + at::digest, message.digest.data(), message.digest.size());
  if (!has_block(message.kind)) return bytes;
  const share_description& block = message.block;
  check(check_share_description(block).has_value(),
        "a block is encoded that no message can describe");
  put(bytes, at::size, block.size_bytes);
  put(bytes, at::granularity, block.granularity_bytes);
  put(bytes, at::part_count, block.part_count);
  put(bytes, at::share_kind, static_cast<std::uint8_t>(block.kind));
  put(bytes, at::place, static_cast<std::uint8_t>(block.where.kind));
  put(bytes, at::flags,
      static_cast<std::uint8_t>((block.compressible ? compressible_flag : 0) |
                                (block.rdma_capable ? rdma_flag : 0)));
  put(bytes, at::ordinal, static_cast<std::uint32_t>(block.where.ordinal));
  std::memcpy(bytes.data() + at::label, block.label.data(), block.label.size());
  for (std::size_t i = 0; i < block.part_count; ++i)
    put(bytes, at::sizes + i * sizeof(std::uint64_t), block.part_bytes[i]);
  if (block.kind != share_kind::fabric) return bytes;
  for (std::size_t i = 0; i < block.part_count; ++i) {
    std::memcpy(bytes.data() + at::fabric + i * share_fabric_bytes, block.fabric[i].data(),
                share_fabric_bytes);
  }
  return bytes;
}

result<share_message> decode_message(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != share_message_bytes) return malformed("a message is not of its fixed size");
  if (get<std::uint32_t>(bytes, at::magic) != magic) return malformed("not a message of vmm");
  if (get<std::uint16_t>(bytes, at::version) != share_version) {
    return refuse(errc::not_supported,
                  "the peer speaks another version of the protocol: use one vmm on both sides");
  }
  const auto kind = get<std::uint16_t>(bytes, at::kind);
  if (kind < static_cast<std::uint16_t>(share_message_kind::hello) ||
      kind > static_cast<std::uint16_t>(share_message_kind::release))
    return malformed("a message of a kind that this version does not have");
  share_message message;
  message.kind = static_cast<share_message_kind>(kind);
  message.sequence = get<std::uint64_t>(bytes, at::sequence);
  message.reason = get<std::uint8_t>(bytes, at::reason);
  std::memcpy(message.digest.data(), bytes.data() + at::digest, message.digest.size());
  message.block.id = get<std::uint64_t>(bytes, at::id);
  message.block.epoch = get<std::uint64_t>(bytes, at::epoch);
  const bool greets =
      message.kind == share_message_kind::hello || message.kind == share_message_kind::proof;
  if (!greets && message.block.id == 0) return malformed("a message names no block");
  if (!has_block(message.kind)) {
    if (!has_only(bytes, message.kind))
      return malformed("a message has fields that its kind lacks");
    return message;
  }
  const result<share_description> block = decode_block(bytes);
  if (!block) return block.error();
  message.block = *block;
  debug_check([&] { return is_encoding(message, bytes); },
              "I1: a decoded message does not encode to its bytes");
  return message;
}

}  // namespace vmm
