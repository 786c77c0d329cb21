// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#ifdef __linux__
#include <sys/auxv.h>
#else
#include <unistd.h>
#endif

module vmm.backend;

import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr const char* no_detail = "a value is refused without a text";

struct byte_unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::uint64_t power(std::uint64_t base, int exponent) {
  check(base > 1 && exponent >= 0, "a unit has no power");
  std::uint64_t value = 1;
  for (int i = 0; i < exponent; ++i) value *= base;
  return value;
}

constexpr std::array<byte_unit, 17> byte_units{{{"", 1},
                                                {"b", 1},
                                                {"k", power(1024, 1)},
                                                {"kib", power(1024, 1)},
                                                {"kb", power(1000, 1)},
                                                {"m", power(1024, 2)},
                                                {"mib", power(1024, 2)},
                                                {"mb", power(1000, 2)},
                                                {"g", power(1024, 3)},
                                                {"gib", power(1024, 3)},
                                                {"gb", power(1000, 3)},
                                                {"t", power(1024, 4)},
                                                {"tib", power(1024, 4)},
                                                {"tb", power(1000, 4)},
                                                {"p", power(1024, 5)},
                                                {"pib", power(1024, 5)},
                                                {"pb", power(1000, 5)}}};

// Independent of the locale.
constexpr char lower(char letter) noexcept {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

// The factor of a unit in any case.
std::optional<std::uint64_t> factor_of(std::string_view unit) noexcept {
  const auto same = [](char given, char known) { return lower(given) == known; };
  for (const byte_unit& known : byte_units) {
    if (std::equal(unit.begin(), unit.end(), known.name.begin(), known.name.end(), same))
      return known.factor;
  }
  return std::nullopt;
}

std::string_view without_blanks(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Removes the leading digits from the text and returns them.
std::string_view take_digits(std::string_view& text) noexcept {
  std::size_t count = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

// 0.DIGITS of the factor, rounded down: each digit with what the later ones carry.
std::uint64_t part_of(std::uint64_t factor, std::string_view digits) noexcept {
  check(factor <= power(1024, 5), "nine times a unit exceeds 64 bits");
  std::uint64_t part = 0;
  for (std::size_t i = digits.size(); i-- > 0;)
    part = (static_cast<std::uint64_t>(digits[i] - '0') * factor + part) / 10;
  return part;
}

template <class Number>
error refuse_digits(Number value, const char* detail) noexcept {
  char digits[32] = {};
  const auto [end, failure] = std::to_chars(digits, digits + sizeof digits, value);
  check(failure == std::errc{}, "a number has more digits than there is room for");
  return refuse_value({digits, end}, detail);
}

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
  std::string_view rest = without_blanks(text);
  const std::string_view whole = take_digits(rest);
  std::string_view part;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    part = take_digits(rest);
    if (part.empty()) return std::nullopt;
  }
  std::uint64_t count = 0;
  const auto [end, failure] = std::from_chars(whole.data(), whole.data() + whole.size(), count);
  if (failure != std::errc{}) return std::nullopt;
  check(end == whole.data() + whole.size(), "a number ends outside its text");
  const std::optional<std::uint64_t> factor = factor_of(without_blanks(rest));
  if (!factor || (*factor == 1 && !part.empty())) return std::nullopt;
  constexpr std::uint64_t bytes_max = std::numeric_limits<std::uint64_t>::max() >> 1;
  const std::uint64_t part_bytes = part_of(*factor, part);
  if (count > (bytes_max - part_bytes) / *factor) return std::nullopt;
  // A size below a byte is not 0, which may stand for none.
  if (count == 0 && part_bytes == 0 && part.find_first_not_of('0') != part.npos)
    return std::nullopt;
  return count * *factor + part_bytes;
}

std::optional<double> parse_number(std::string_view text) noexcept {
  double value = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || rest != text.data() + text.size()) return std::nullopt;
  if (!(value > -std::numeric_limits<double>::infinity() &&
        value < std::numeric_limits<double>::infinity())) {
    return std::nullopt;
  }
  check(value - value == 0, "infinity or NaN is read as a number");
  return value;
}

error refuse_value(std::string_view value, const char* detail) noexcept {
  check(detail != nullptr, no_detail);
  constexpr std::size_t shown_max = 60;
  return refuse(errc::bad_option, detail_text()
                                      .add(detail)
                                      .add("; not '")
                                      .add(value.substr(0, shown_max))
                                      .add(value.size() > shown_max ? "...'" : "'")
                                      .keep(detail));
}

error refuse_number(std::uint64_t value, const char* detail, errc code) noexcept {
  error refused = refuse_digits(value, detail);
  refused.code = code;
  return refused;
}
error refuse_number(double value, const char* detail) noexcept {
  return refuse_digits(value, detail);
}

error refuse_variable(const char* name, const char* detail) noexcept {
  return refuse_value(variable(name).value_or(""), detail);
}

status read_bytes_option(const char* name, std::uint64_t& option, const char* detail) noexcept {
  check(detail != nullptr, no_detail);
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_bytes(*text);
  if (!value) return refuse_value(*text, detail);
  option = *value;
  return {};
}

status read_number_option(const char* name, double& option, const char* detail) noexcept {
  check(detail != nullptr, no_detail);
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_number(*text);
  if (!value) return refuse_value(*text, detail);
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
    return refuse_value(*text, detail);
  }
  return {};
}

void read_text_option(const char* name, std::string_view& option) noexcept {
  if (const auto text = variable(name)) option = *text;
}

}  // namespace vmm
