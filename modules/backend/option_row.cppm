// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:option_row - options with their ranges.
//
// An option's range is in one place: a row of its struct's table. validate() of the struct and the
// values of an environment variable both follow it.
//
// I1  A row's detail begins with the option's name and has its range.
//
// Not a number and infinity are in no range.
//
// Thread safety: values only; read_option() as getenv. Cost: constant, no allocation.
export module vmm.backend:option_row;

import vmm.base;
import vmm.std;
import :environment;
import :result;

namespace vmm {

/// The values of a range that an option can have.
export enum class option_rule : std::uint8_t {
  any,           // all of them
  power_of_two,  // powers of two only; and 0, below the range, for "none"
};

/// An option's member of the struct `Options`, and its type.
template <class Options>
class option_member {
 public:
  constexpr option_member(std::uint64_t Options::* at) noexcept : whole_(at) {
    check(at != nullptr, "an option is not a member of its struct");
  }
  constexpr option_member(std::uint32_t Options::* at) noexcept : share_(at) {
    check(at != nullptr, "an option is not a member of its struct");
  }
  constexpr option_member(double Options::* at) noexcept : number_(at) {
    check(at != nullptr, "an option is not a member of its struct");
  }

  /// Calls `look` with the typed pointer to the member.
  template <class Look>
  constexpr auto visit(Look&& look) const {
    if (whole_ != nullptr) return look(whole_);
    if (share_ != nullptr) return look(share_);
    check(number_ != nullptr, "an option has no type");
    return look(number_);
  }

 private:
  std::uint64_t Options::* whole_ = nullptr;
  std::uint32_t Options::* share_ = nullptr;
  double Options::* number_ = nullptr;
};

/// One option of the struct `Options`, and its range, both ends included.
export template <class Options>
struct option_row {
  const char* detail;  ///< of the error: the option's name and its range
  option_member<Options> option;
  double low = 0;  ///< whole, and at most 2^56, if the option is an integer
  double high = 0;
  option_rule rule = option_rule::any;

  /// Errors: bad_option, with the row's detail and the value.
  [[nodiscard]] status check_value(const Options& options) const noexcept {
    check(detail != nullptr, "I1: an option's range has no text");
    return option.visit([&](auto at) -> status {
      if (is_within(options.*at)) return {};
      return refuse_number(options.*at, detail);
    });
  }

 private:
  // Not a number compares false with everything.
  [[nodiscard]] bool is_within(double value) const noexcept {
    check(low <= high, "the range of an option is empty");
    return value >= low && value <= high;
  }
  // As integers: a double cannot represent all of them above 2^53.
  [[nodiscard]] bool is_within(std::uint64_t value) const noexcept {
    check(low >= 0 && low <= high, "the range of an option is empty");
    const bool is_power = value != 0 && (value & (value - 1)) == 0;
    if (rule == option_rule::power_of_two && value == 0) return true;
    if (rule == option_rule::power_of_two && !is_power) return false;
    return value >= static_cast<std::uint64_t>(low) && value <= static_cast<std::uint64_t>(high);
  }
  [[nodiscard]] bool is_within(std::uint32_t value) const noexcept {
    return is_within(std::uint64_t{value});
  }
};

/// Requires: a row, else the process ends. Effects: none; checks whether each option is in its
/// range. Errors: bad_option, with the detail of the first row whose option is not.
/// Cost: O(rows). Thread safety: values only.
export template <class Options>
[[nodiscard]] status check_options(std::span<const option_row<Options>> rows,
                                   const Options& options) noexcept {
  check(!rows.empty(), "a table of options without rows");
  for (const option_row<Options>& row : rows) {
    if (status fits = row.check_value(options); !fits) return fits;
  }
  return {};
}

/// No device has more memory or address space than this.
export inline constexpr std::uint64_t option_bytes_max = std::uint64_t{1} << 56;

// Each reads the variable `name` as the type of the option: bytes with a unit, or a number.
[[nodiscard]] status read_value(const char* name, std::uint64_t& option,
                                const char* detail) noexcept;
[[nodiscard]] status read_value(const char* name, std::uint32_t& option,
                                const char* detail) noexcept;
[[nodiscard]] status read_value(const char* name, double& option, const char* detail) noexcept;

/// Effects: reads the variable `name`, where it is set, into the row's option: bytes with a unit,
/// or a number where the option is one. Errors: refuse_variable() where the value is malformed or
/// out of the row's range; the option is as before. Cost: a getenv and a copy of the
/// options. Thread safety: no thread may change the environment meanwhile.
export template <class Options>
[[nodiscard]] status read_option(const char* name, const option_row<Options>& row, Options& options,
                                 const char* detail) noexcept {
  check(detail != nullptr, "a variable is refused without a text");
  if (!option_is_set(name)) return {};
  Options changed = options;
  const status read =
      row.option.visit([&](auto at) { return read_value(name, changed.*at, detail); });
  if (!read) return read;
  if (!row.check_value(changed)) return refuse_variable(name, detail);
  options = changed;
  debug_check([&] { return row.check_value(options).has_value(); },
              "an option is left with a value out of its range");
  return {};
}

}  // namespace vmm
