// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

module vmm.stream;

import vmm.backend;

namespace vmm {

pool_policy pool_policy::near_live() noexcept { return pool_policy{}; }

pool_policy pool_policy::vpmm() noexcept {
  pool_policy rules;
  rules.name = "vpmm";
  rules.lowest_fit_bytes = 0;
  rules.handle_bytes = 0;
  rules.fine_handle_bytes = 0;
  rules.headroom = 0;
  rules.slack_bytes = 0;
  rules.harvest_share = 0;
  rules.growth_share = 0;
  rules.window_gap_bytes = 0;
  rules.whole_pages = true;
  rules.smallest_hole = true;
  rules.oldest_first = true;
  rules.unmap_early = true;
  return rules;
}

result<pool_policy> pool_policy::by_name(std::string_view name) noexcept {
  for (const pool_policy& known : {near_live(), vpmm()}) {
    if (name == known.name) return known;
  }
  return refuse(errc::bad_option, "a pool policy is one of pool, vpmm");
}

status check_rules(const pool_policy& rules) noexcept {
  constexpr std::uint64_t lowest_min = 512;
  constexpr std::uint64_t lowest_max = std::uint64_t{1} << 38;
  const std::uint64_t lowest = rules.lowest_fit_bytes;
  const bool in_range = lowest >= lowest_min && lowest <= lowest_max;
  if (lowest != 0 && !(in_range && std::has_single_bit(lowest))) {
    return refuse(errc::bad_option,
                  "lowest_fit_bytes is a power of two from 512 to 2^38, or 0 for never");
  }
  constexpr double headroom_max = 1000;
  if (!(rules.headroom >= 0 && rules.headroom <= headroom_max))
    return refuse(errc::bad_option, "headroom is a number from 0 to 1000");
  return {};
}

namespace {

status read_size(const char* name, std::uint64_t& option, const char* detail) noexcept {
  if (status read = read_bytes_option(name, option, detail); !read) return read;
  const char* const text = std::getenv(name);
  const bool given = text != nullptr && *text != '\0';
  if (given && option == 0) return refuse(errc::bad_option, detail);
  return {};
}

status read_count(const char* name, std::uint64_t& option, const char* detail) noexcept {
  constexpr double count_max = 1e12;
  double value = static_cast<double>(option);
  if (status read = read_number_option(name, value, detail); !read) return read;
  if (!(value >= 0 && value <= count_max) || value != std::floor(value))
    return refuse(errc::bad_option, detail);
  option = static_cast<std::uint64_t>(value);
  return {};
}

result<capture_rule> capture_by_name(std::string_view name) noexcept {
  if (name == "refuse") return capture_rule::refuse;
  if (name == "private") return capture_rule::private_memory;
  if (name == "unchecked") return capture_rule::unchecked;
  return refuse(errc::bad_option, "VMM_POOL_CAPTURE takes one of refuse, private, unchecked");
}

}  // namespace

result<pool_options> pool_options::from_environment(const pool_options& base) noexcept {
  pool_options options = base;
  status read = read_size("VPMM_VA_SIZE", options.reservation_bytes,
                          "VPMM_VA_SIZE takes bytes, such as 8TiB, and not 0");
  if (read) {
    read = read_size("VPMM_PAGE_SIZE", options.page_bytes,
                     "VPMM_PAGE_SIZE takes bytes, such as 2MiB, and not 0");
  }
  if (read) {
    read = read_count("VPMM_PAGES", options.page_count,
                      "VPMM_PAGES takes a whole number of pages, such as 0 or 16384");
  }
  if (read) {
    read = read_size("VMM_VA_SIZE", options.reservation_bytes,
                     "VMM_VA_SIZE takes bytes with a unit, such as 8TiB, and not 0");
  }
  if (read) {
    read = read_size("VMM_POOL_PAGE_SIZE", options.page_bytes,
                     "VMM_POOL_PAGE_SIZE takes bytes with a unit, such as 2MiB, and not 0");
  }
  if (read) {
    read = read_count("VMM_POOL_PAGES", options.page_count,
                      "VMM_POOL_PAGES takes a whole number of pages, such as 0 or 16384");
  }
  if (read) {
    read =
        read_bytes_option("VMM_BUDGET", options.budget_bytes,
                          "VMM_BUDGET takes bytes with a unit, such as 40GiB, or 0 for no budget");
  }
  if (!read) return read.error();
  if (const char* name = std::getenv("VMM_POOL_POLICY"); name != nullptr && *name != '\0') {
    const result<pool_policy> rules = pool_policy::by_name(name);
    if (!rules) return refuse(errc::bad_option, "VMM_POOL_POLICY takes one of pool, vpmm");
    options.rules = *rules;
  }
  if (const char* name = std::getenv("VMM_POOL_CAPTURE"); name != nullptr && *name != '\0') {
    const result<capture_rule> rule = capture_by_name(name);
    if (!rule) return rule.error();
    options.capture = *rule;
  }
  return options;
}

}  // namespace vmm
