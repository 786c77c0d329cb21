// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

module vmm.backend;

namespace vmm {

const char* name_of(errc code) noexcept {
  switch (code) {
    case errc::none: return "no error";
    case errc::invalid_argument: return "invalid argument";
    case errc::bad_option: return "bad option";
    case errc::out_of_memory: return "out of memory";
    case errc::out_of_host_memory: return "out of host memory";
    case errc::out_of_addresses: return "out of addresses";
    case errc::out_of_mappings: return "out of mappings";
    case errc::over_budget: return "over budget";
    case errc::unknown_address: return "unknown address";
    case errc::not_allocated: return "not allocated";
    case errc::overlap: return "overlap";
    case errc::in_use: return "in use";
    case errc::not_supported: return "not supported";
    case errc::not_permitted: return "not permitted";
    case errc::unavailable: return "unavailable";
    case errc::device_lost: return "device lost";
    case errc::foreign_error: return "foreign error";
    case errc::internal: return "internal error";
  }
  return "unknown error code";
}

const char* name_of(call where) noexcept {
  static constexpr std::array<const char*, call_count> names{"none",
                                                             "query_granularity",
                                                             "memory_info",
                                                             "reserve",
                                                             "free_reservation",
                                                             "create",
                                                             "release",
                                                             "map",
                                                             "unmap",
                                                             "set_access",
                                                             "get_access",
                                                             "retain",
                                                             "create_stream",
                                                             "destroy_stream",
                                                             "synchronize_stream",
                                                             "create_event",
                                                             "destroy_event",
                                                             "record_event",
                                                             "query_event",
                                                             "wait_event",
                                                             "synchronize_event",
                                                             "copy",
                                                             "fill",
                                                             "write",
                                                             "read",
                                                             "export_handle",
                                                             "import_handle",
                                                             "create_multicast",
                                                             "add_multicast_device",
                                                             "bind_multicast",
                                                             "unbind_multicast",
                                                             "get_properties",
                                                             "query_capture"};
  const auto index = static_cast<std::size_t>(where);
  return index < names.size() ? names[index] : "unknown call";
}

std::string describe(const error& failure) {
  std::string text = name_of(failure.code);
  if (failure.where != call::none) {
    text += " in ";
    text += name_of(failure.where);
  }
  if (failure.native_name[0] != '\0' || failure.native != 0) {
    text += " (";
    text += failure.native_name[0] != '\0' ? failure.native_name : "code";
    text += ' ';
    text += std::to_string(failure.native);
    text += ')';
  }
  if (failure.detail[0] != '\0') {
    text += ": ";
    text += failure.detail;
  }
  return text;
}

void fail_check(const char* what, std::source_location where) noexcept {
  std::fprintf(stderr, "vmm: check failed: %s\n  at %s:%u in %s\n", what, where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name());
  std::fflush(stderr);
  std::abort();
}

// ---- users ---------------------------------------------------------------------------

namespace {

std::atomic<bool> exit_has_begun = false;

// Registered when an object gets its first user, so after its destructor where it is static: exit()
// calls the function before that destructor. A bound, since what is registered stays: programs have
// few drivers, and one that makes them in a loop has no static one after so many.
void notice_exit() noexcept {
  static std::atomic<std::uint32_t> registered_count = 0;
  constexpr std::uint32_t registered_count_max = 1024;
  if (registered_count.fetch_add(1, std::memory_order_relaxed) >= registered_count_max) return;
  (void)std::atexit([] { exit_has_begun.store(true, std::memory_order_relaxed); });
}

}  // namespace

void user_count::add() noexcept {
  check(!is_gone_, "a pool or manager is made on a driver that was moved from");
  if (count_.fetch_add(1, std::memory_order_relaxed) == 0) notice_exit();
}

void user_count::remove() noexcept {
  const std::uint32_t before = count_.fetch_sub(1, std::memory_order_release);
  check(before > 0, "an object loses a user that it does not have");
}

void user_count::take(user_count& other) noexcept {
  check(!other.has_users(),
        "a driver is moved while a pool or manager uses it: move it before they are made");
  is_gone_ = std::exchange(other.is_gone_, true);
}

void user_count::check_replaced() const noexcept {
  check(!has_users(),
        "a driver is assigned to while a pool or manager uses it: destroy those first");
}

void user_count::fail_destroyed() const noexcept {
  if (exit_has_begun.load(std::memory_order_relaxed)) return;
  fail_check(what_ == used_object::manager
                 ? "a manager is destroyed while a vector uses it: destroy the vectors first"
                 : "a driver is destroyed while a pool or manager uses it: destroy those first",
             std::source_location::current());
}

void print_live_blocks(void*, const live_blocks& left) noexcept {
  static std::atomic<std::uint32_t> report_count = 0;
  const std::uint32_t number = report_count.fetch_add(1, std::memory_order_relaxed);
  if (number >= live_report_count_max) return;
  const bool is_last = number + 1 == live_report_count_max;
  std::fprintf(stderr, "vmm: a %s ends with %llu live blocks of %llu bytes; it gives them back%s\n",
               left.owner, static_cast<unsigned long long>(left.count),
               static_cast<unsigned long long>(left.size_bytes),
               is_last ? " (no further report is printed)" : "");
}

namespace {

struct byte_unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::uint64_t power(std::uint64_t base, int exponent) {
  std::uint64_t value = 1;
  for (int i = 0; i < exponent; ++i) value *= base;
  return value;
}

constexpr std::array<byte_unit, 14> byte_units{{{"", 1},
                                                {"B", 1},
                                                {"K", power(1024, 1)},
                                                {"KiB", power(1024, 1)},
                                                {"KB", power(1000, 1)},
                                                {"M", power(1024, 2)},
                                                {"MiB", power(1024, 2)},
                                                {"MB", power(1000, 2)},
                                                {"G", power(1024, 3)},
                                                {"GiB", power(1024, 3)},
                                                {"GB", power(1000, 3)},
                                                {"T", power(1024, 4)},
                                                {"TiB", power(1024, 4)},
                                                {"TB", power(1000, 4)}}};

// The variable's value, or nothing when it is unset or empty.
std::optional<std::string_view> variable(const char* name) noexcept {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string_view{value};
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) noexcept {
  std::uint64_t count = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (failure != std::errc{}) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
  for (const byte_unit& known : byte_units) {
    if (known.name != unit) continue;
    if (count > (std::numeric_limits<std::uint64_t>::max() >> 1) / known.factor)
      return std::nullopt;
    return count * known.factor;
  }
  return std::nullopt;
}

std::optional<double> parse_number(std::string_view text) noexcept {
  double value = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || rest != text.data() + text.size()) return std::nullopt;
  if (!(value > -std::numeric_limits<double>::infinity() &&
        value < std::numeric_limits<double>::infinity())) {
    return std::nullopt;
  }
  return value;
}

status read_bytes_option(const char* name, std::uint64_t& option, const char* detail) noexcept {
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_bytes(*text);
  if (!value) return refuse(errc::bad_option, detail);
  option = *value;
  return {};
}

status read_number_option(const char* name, double& option, const char* detail) noexcept {
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_number(*text);
  if (!value) return refuse(errc::bad_option, detail);
  option = *value;
  return {};
}

status read_switch_option(const char* name, bool& option, const char* detail) noexcept {
  const auto text = variable(name);
  if (!text) return {};
  if (*text == "1" || *text == "on") {
    option = true;
  } else if (*text == "0" || *text == "off") {
    option = false;
  } else {
    return refuse(errc::bad_option, detail);
  }
  return {};
}

void read_text_option(const char* name, std::string_view& option) noexcept {
  if (const auto text = variable(name)) option = *text;
}

}  // namespace vmm
