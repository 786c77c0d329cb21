// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#ifdef __linux__
#include <sys/auxv.h>
#else
#include <unistd.h>
#endif

module vmm.environment;

import vmm.backend;
import vmm.std;
import vmm.support;

namespace vmm {

namespace {

constexpr const char* no_detail = "a value is refused without a text";

struct byte_unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::uint64_t power(std::uint64_t base, int exponent) {
  check(base > 1 && exponent >= 0, "a unit is a power of nothing");
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
  const char* const value = environment_text(name);
  if (value == nullptr) return std::nullopt;
  return std::string_view{value};
}

}  // namespace

bool environment_is_trusted() noexcept {
#ifdef __linux__
  const unsigned long marked = ::getauxval(AT_SECURE);
  check(marked <= 1, "the kernel's mark of other rights is neither 0 nor 1");
  return marked == 0;
#else
  return ::getuid() == ::geteuid() && ::getgid() == ::getegid();
#endif
}

const char* environment_text(const char* name) noexcept {
  check(name != nullptr && *name != '\0', "a variable has no name");
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0' || !environment_is_trusted()) return nullptr;
  return value;
}

bool option_is_set(const char* name) noexcept { return variable(name).has_value(); }

std::optional<std::uint64_t> parse_bytes(std::string_view text) noexcept {
  std::uint64_t count = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (failure != std::errc{}) return std::nullopt;
  check(rest >= text.data() && rest <= text.data() + text.size(), "a number ends outside its text");
  const std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
  for (const byte_unit& known : byte_units) {
    if (known.name != unit) continue;
    if (count > (std::numeric_limits<std::uint64_t>::max() >> 1) / known.factor)
      return std::nullopt;
    check(count == 0 || count * known.factor / count == known.factor, "a size is not what it says");
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
  check(value - value == 0, "infinity, or not a number, is taken for a number");
  return value;
}

status read_bytes_option(const char* name, std::uint64_t& option, const char* detail) noexcept {
  check(detail != nullptr, no_detail);
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_bytes(*text);
  if (!value) return refuse(errc::bad_option, detail);
  option = *value;
  return {};
}

status read_number_option(const char* name, double& option, const char* detail) noexcept {
  check(detail != nullptr, no_detail);
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_number(*text);
  if (!value) return refuse(errc::bad_option, detail);
  option = *value;
  return {};
}

status read_switch_option(const char* name, bool& option, const char* detail) noexcept {
  check(detail != nullptr, no_detail);
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
