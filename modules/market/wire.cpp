// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

constexpr std::size_t handle_bytes = 16;
constexpr std::size_t row_bytes = 80;
static_assert(market_header_bytes + market_handles_max * handle_bytes == market_message_bytes);
static_assert(market_header_bytes + market_rows_max * row_bytes == market_message_bytes);

// Numbers of a message at increasing places; a writer's counterpart is a reader with the same
// calls, so one function is the layout of both.
class message_writer {
 public:
  explicit message_writer(market_bytes& to) noexcept : to_(to) {}

  template <class T>
  void number(const T& value) noexcept {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      to_[at_++] = static_cast<std::byte>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xFF);
  }
  template <class T, std::size_t N>
    requires(sizeof(T) == 1)
  void block(const std::array<T, N>& bytes) noexcept {
    for (const T each : bytes) to_[at_++] = static_cast<std::byte>(each);
  }
  void move_to(std::size_t offset) noexcept { at_ = offset; }

 private:
  market_bytes& to_;
  std::size_t at_ = 0;
};

class message_reader {
 public:
  explicit message_reader(std::span<const std::byte, market_message_bytes> from) noexcept
      : from_(from) {}

  template <class T>
  void number(T& value) noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      sum |= std::to_integer<std::uint64_t>(from_[at_++]) << (8 * i);
    value = static_cast<T>(sum);
  }
  template <class T, std::size_t N>
    requires(sizeof(T) == 1)
  void block(std::array<T, N>& bytes) noexcept {
    for (T& each : bytes) each = static_cast<T>(from_[at_++]);
  }
  void move_to(std::size_t offset) noexcept { at_ = offset; }

 private:
  std::span<const std::byte, market_message_bytes> from_;
  std::size_t at_ = 0;
};

// What stands for the fields that are not numbers.
struct packed {
  std::uint16_t version = market_version;
  std::uint16_t kind = 0;
  std::uint8_t reason = 0;
  std::uint8_t flags = 0;
};
enum message_flag : std::uint8_t { more_flag = 1, elastic_flag = 2, idle_flag = 4 };
enum handle_flag : std::uint32_t {
  clear_flag = 1U << 24,
  descriptor_flag = 1U << 25,
  use_flag = 1U << 26,
};
constexpr std::uint32_t granules_mask = clear_flag - 1;
enum row_flag : std::uint8_t { overdue_flag = 1, silent_flag = 2, row_elastic_flag = 4 };

template <class Archive, class Message, class Packed>
void pass_header(Archive& archive, Message& message, Packed& pack) noexcept {
  archive.number(pack.version);
  archive.number(pack.kind);
  archive.number(pack.reason);
  archive.number(pack.flags);
  archive.number(message.share.priority);
  archive.move_to(8);
  archive.number(message.epoch);
  archive.number(message.request);
  archive.number(message.bytes);
  archive.number(message.wish_bytes);
  archive.number(message.within_ns);
  archive.number(message.tenant);
  archive.number(message.job);
  archive.number(message.share.guarantee_bytes);
  archive.number(message.share.limit_bytes);
  archive.number(message.handle_count);
  archive.number(message.row_count);
  archive.block(message.device);
  archive.block(message.key);
  archive.block(message.resume);
  archive.block(message.name);
  archive.block(message.group);
  archive.number(message.unit_bytes);
}

template <class Archive, class Row, class Flags>
void pass_row(Archive& archive, Row& row, Flags& flags) noexcept {
  archive.number(row.tenant);
  archive.block(row.name);
  archive.number(row.held_bytes);
  archive.number(row.waiting_bytes);
  archive.number(row.share.guarantee_bytes);
  archive.number(row.share.limit_bytes);
  archive.number(row.share.priority);
  archive.number(flags);
}

bool has_handles(market_kind kind) noexcept {
  return kind == market_kind::inventory || kind == market_kind::give ||
         kind == market_kind::dropped || kind == market_kind::grant || kind == market_kind::drop;
}

bool has_rows(market_kind kind) noexcept {
  return kind == market_kind::refused || kind == market_kind::denied || kind == market_kind::report;
}

bool has_good_counts(const market_message& message) noexcept {
  return message.handle_count <= (has_handles(message.kind) ? market_handles_max : 0) &&
         message.row_count <= (has_rows(message.kind) ? market_rows_max : 0);
}

// The flags that a kind has no use for are not sent, and so refused.
std::uint32_t word_of(const market_handle& handle, market_kind kind) noexcept {
  const bool is_grant = kind == market_kind::grant;
  const bool clears = is_grant || kind == market_kind::give;
  std::uint32_t word = handle.granules;
  if (handle.must_clear && clears) word |= clear_flag;
  if (handle.has_descriptor && is_grant) word |= descriptor_flag;
  if (handle.in_use && kind == market_kind::inventory) word |= use_flag;
  return word;
}

error not_a_message(const char* detail) noexcept {
  return error{errc::foreign_error, call::none, 0, "", detail};
}

template <std::size_t N>
std::string_view text_in(const std::array<char, N>& name) noexcept {
  return {name.data(),
          static_cast<std::size_t>(std::find(name.begin(), name.end(), '\0') - name.begin())};
}

}  // namespace

market_name make_market_name(std::string_view text) noexcept {
  market_name name{};
  std::copy_n(text.begin(), std::min(text.size(), name.size()), name.begin());
  return name;
}

std::string_view text_of(const market_name& name) noexcept { return text_in(name); }

market_key make_market_device(std::string_view text) noexcept {
  market_key device{};
  for (std::size_t i = 0; i < std::min(text.size(), device.size()); ++i)
    device[i] = static_cast<std::byte>(text[i]);
  return device;
}

std::string market_device_text(const market_key& device) {
  std::string text;
  for (const std::byte each : device) {
    if (each == std::byte{0}) break;
    const char letter = static_cast<char>(each);
    const bool is_plain = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                          (letter >= 'A' && letter <= 'Z') || letter == '-';
    text += is_plain ? letter : '_';  // it becomes the name of a file
  }
  return text;
}

std::string market_socket_name(const market_key& device) {
  return "owner-" + market_device_text(device);
}

const char* text_of(market_reason reason) noexcept {
  switch (reason) {
    case market_reason::none: return "no reason";
    case market_reason::version: return "the owner has another version of the protocol";
    case market_reason::device: return "the owner has another device";
    case market_reason::share: return "the guarantee exceeds the limit, or the priority is above 7";
    case market_reason::secret: return "the group has another secret";
    case market_reason::tenants: return "the owner has 64 tenants, the limit";
    case market_reason::guarantees: return "the guarantees exceed the device's memory";
    case market_reason::draining: return "the owner takes no new tenants";
    case market_reason::limit: return "the request exceeds the tenant's limit";
    case market_reason::too_large: return "the request exceeds the memory that the owner lends";
    case market_reason::deadline: return "the memory was not given back in time";
    case market_reason::deadlock: return "every tenant with memory waits for more";
    case market_reason::requests: return "64 requests of the tenant wait, the limit";
    case market_reason::device_lost: return "the device was reset";
    case market_reason::broken: return "the peer broke the protocol";
    case market_reason::busy: return "the memory is in use";
    case market_reason::silent: return "the tenant's process has ended";
    case market_reason::unknown: return "no tenant has this number: vmm-owner ctl list shows them";
  }
  return "an unknown reason";
}

bool operator==(const market_message& a, const market_message& b) noexcept {
  return encode_market_message(a) == encode_market_message(b);
}

std::uint32_t descriptor_count_of(const market_message& message) noexcept {
  if (message.kind == market_kind::hello) return 1;
  if (message.kind == market_kind::inventory) return message.handle_count;
  if (message.kind != market_kind::grant) return 0;
  const std::span<const market_handle> handles = message.handle_list();
  return static_cast<std::uint32_t>(
      std::count_if(handles.begin(), handles.end(),
                    [](const market_handle& each) { return each.has_descriptor; }));
}

market_bytes encode_market_message(const market_message& message) noexcept {
  check(has_good_counts(message), "a message has more than its table holds");
  market_bytes bytes{};
  message_writer writer(bytes);
  const packed pack{.kind = static_cast<std::uint16_t>(message.kind),
                    .reason = static_cast<std::uint8_t>(message.reason),
                    .flags = static_cast<std::uint8_t>((message.more ? more_flag : 0) |
                                                       (message.share.elastic ? elastic_flag : 0) |
                                                       (message.only_idle ? idle_flag : 0))};
  pass_header(writer, message, pack);
  writer.move_to(market_header_bytes);
  for (const market_handle& each : message.handle_list()) {
    check(is_market_size(each.size_bytes()), "a handle has no size of a market");
    check(each.id != 0, "a handle has no number");
    writer.number(each.id);
    writer.number(each.generation);
    writer.number(word_of(each, message.kind));
  }
  for (std::size_t i = 0; i < message.row_count; ++i) {
    const market_row& row = message.rows[i];
    writer.move_to(market_header_bytes + i * row_bytes);
    const auto flags = static_cast<std::uint8_t>((row.overdue ? overdue_flag : 0) |
                                                 (row.is_silent ? silent_flag : 0) |
                                                 (row.share.elastic ? row_elastic_flag : 0));
    pass_row(writer, row, flags);
  }
  return bytes;
}

result<market_message> decode_market_message(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != market_message_bytes)
    return not_a_message("a message of the market has 4,096 bytes");
  message_reader reader(bytes.first<market_message_bytes>());
  market_message message;
  packed pack;
  pass_header(reader, message, pack);
  if (pack.version != market_version) {
    return refuse(errc::not_supported,
                  "the peer has another version of the market's protocol: update both");
  }
  if (pack.kind < static_cast<std::uint16_t>(market_kind::hello) ||
      pack.kind > static_cast<std::uint16_t>(market_kind::report) ||
      pack.reason > static_cast<std::uint8_t>(market_reason::unknown))
    return not_a_message("a message of no kind, or with an unknown reason");
  message.kind = static_cast<market_kind>(pack.kind);
  message.reason = static_cast<market_reason>(pack.reason);
  message.more = (pack.flags & more_flag) != 0;
  message.share.elastic = (pack.flags & elastic_flag) != 0;
  message.only_idle = (pack.flags & idle_flag) != 0;
  if (!has_good_counts(message)) return not_a_message("a message claims more than its table holds");
  reader.move_to(market_header_bytes);
  for (std::size_t i = 0; i < message.handle_count; ++i) {
    market_handle& handle = message.handles[i];
    std::uint32_t word = 0;
    reader.number(handle.id);
    reader.number(handle.generation);
    reader.number(word);
    handle.granules = word & granules_mask;
    handle.must_clear = (word & clear_flag) != 0;
    handle.has_descriptor = (word & descriptor_flag) != 0;
    handle.in_use = (word & use_flag) != 0;
    if (!is_market_size(handle.size_bytes()))
      return not_a_message("a handle has no size of a market");
    if (handle.id == 0) return not_a_message("a handle has no number");
  }
  for (std::size_t i = 0; i < message.row_count; ++i) {
    market_row& row = message.rows[i];
    reader.move_to(market_header_bytes + i * row_bytes);
    std::uint8_t flags = 0;
    pass_row(reader, row, flags);
    row.overdue = (flags & overdue_flag) != 0;
    row.is_silent = (flags & silent_flag) != 0;
    row.share.elastic = (flags & row_elastic_flag) != 0;
  }
  // Bytes that no field stands for are refused, too.
  const market_bytes again = encode_market_message(message);
  if (!std::equal(again.begin(), again.end(), bytes.begin()))
    return not_a_message("a message has bytes that stand for nothing");
  return message;
}

}  // namespace vmm
