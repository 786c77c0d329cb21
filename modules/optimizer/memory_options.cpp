// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.std;

namespace vmm {

namespace {

constexpr std::array<option_row<memory_options>, 2> memory_rows{{
    {"memory_options::reservation_bytes is from 1 to 2^56", &memory_options::reservation_bytes, 1,
     option_bytes_max},
    {"memory_options::budget_bytes is from 0 to 2^56, where 0 means no budget",
     &memory_options::budget_bytes, 0, option_bytes_max},
}};

}  // namespace

std::span<const option_row<memory_options>> memory_options::ranges() noexcept {
  return memory_rows;
}

status memory_options::validate() const noexcept {
  if (status fits = check_options(ranges(), *this); !fits) return fits;
  debug_check([&] { return reservation_bytes > 0; }, "no addresses are reserved at a time");
  if (contents > contents_rule::poison)
    return refuse(errc::bad_option, "memory_options::contents is one of contents_rule");
  return {};
}

status memory_options::read_environment() noexcept {
  peak_record::check_folder();
  const auto& [space, budget] = memory_rows;
  check(space.low >= 1 && budget.low == 0, "the range of an option excludes 0 wrongly");
  if (status read =
          read_option("VMM_VA_SIZE", space, *this,
                      "VMM_VA_SIZE takes bytes with a unit, such as 8TiB, not 0 and at most 64PiB");
      !read) {
    return read;
  }
  return read_option(
      "VMM_BUDGET", budget, *this,
      "VMM_BUDGET takes bytes with a unit, such as 40GiB, at most 64PiB, or 0 for no budget");
}

}  // namespace vmm
