// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;
import vmm.timeline;
import vmm.va;

namespace vmm {

// A region map has these kinds of region: none, holes, one in reserve, and each record's.
static_assert(stream_progress::max_records == region_map::max_kinds - 3);

namespace {

// What a segment has at most, rounded down to a power of two.
constexpr std::uint64_t page_bytes_max = std::uint64_t{1} << 38;
// VPMM_PAGE_SIZE above this is a page that no request fills.
constexpr std::uint64_t source_page_bytes_max = std::uint64_t{1} << 30;

}  // namespace

pool_policy pool_policy::near_live() noexcept { return pool_policy{}; }

pool_policy pool_policy::vpmm() noexcept {
  pool_policy policy;
  policy.name = "vpmm";
  policy.tuning.first_fit_bytes = 0;
  policy.handle_bytes_max = 0;
  policy.tuning.small_handle_bytes = 0;
  policy.tuning.small_pool_bytes = 0;
  policy.tuning.move_budget_ns = 0;
  policy.headroom = 0;
  policy.tuning.slack_bytes = 0;
  policy.tuning.min_move_share = 0;
  policy.tuning.growth_share = 0;
  policy.tuning.growth_gap_bytes = 0;
  policy.tuning.whole_pages = true;
  policy.tuning.smallest_hole = true;
  policy.tuning.oldest_first = true;
  policy.eager_unmap = true;
  debug_check([&] { return policy.validate().has_value(); }, "a preset leaves its ranges");
  return policy;
}

// A new handle is as large as its block.
pool_policy pool_policy::off() noexcept {
  pool_policy policy = vpmm();
  policy.name = "off";
  policy.handle_bytes_max = page_bytes_max;
  policy.tuning.whole_pages = false;
  policy.tuning.keep_none = true;
  debug_check([&] { return policy.validate().has_value(); }, "a preset leaves its ranges");
  return policy;
}

result<pool_policy> pool_policy::by_name(std::string_view name) noexcept {
  for (const pool_policy& known : {near_live(), vpmm(), off()}) {
    if (name == known.name) return known;
  }
  return refuse_value(name, "a pool policy is one of pool, vpmm, off");
}

namespace {

constexpr double share_max = 1 << 20;

constexpr std::array<option_row<pool_policy>, 2> policy_rows{{
    {"handle_bytes_max is at most 2^56, or 0 for one page", &pool_policy::handle_bytes_max, 0,
     option_bytes_max},
    {"headroom is a number from 0 to 1000", &pool_policy::headroom, 0, 1000},
}};

constexpr std::array<option_row<pool_tuning>, 10> tuning_rows{{
    {"first_fit_bytes is a power of two from 512 to 2^38, or 0 for never",
     &pool_tuning::first_fit_bytes, 512, page_bytes_max, option_rule::power_of_two},
    {"small_handle_bytes is at most 2^56, or 0 for handle_bytes_max",
     &pool_tuning::small_handle_bytes, 0, option_bytes_max},
    {"move_budget_ns is from 0 to 10^9, or 0 for none", &pool_tuning::move_budget_ns, 0, 1e9},
    {"small_pool_bytes is at most 2^56, or 0 for none", &pool_tuning::small_pool_bytes, 0,
     option_bytes_max},
    {"slack_bytes is from 0 to 2^56", &pool_tuning::slack_bytes, 0, option_bytes_max},
    {"min_move_share is at most 2^20, or 0 for any request", &pool_tuning::min_move_share, 0,
     share_max},
    {"min_move_bytes is from 0 to 2^56", &pool_tuning::min_move_bytes, 0, option_bytes_max},
    {"growth_share is at most 2^20, or 0 for the requested size alone", &pool_tuning::growth_share,
     0, share_max},
    {"growth_gap_bytes is from 0 to 2^56", &pool_tuning::growth_gap_bytes, 0, option_bytes_max},
    {"stale_count_max is from 0 to 2^56", &pool_tuning::stale_count_max, 0, option_bytes_max},
}};

constexpr std::array<option_row<pool_options>, 2> pool_rows{{
    {"page_bytes is at most 2^38, or 0 for the recommended granularity", &pool_options::page_bytes,
     0, page_bytes_max},
    {"page_count is from 0 to 2^40", &pool_options::page_count, 0, std::uint64_t{1} << 40},
}};

// Unlike the option, the variable has no value 0 for the default.
status read_page_bytes(const char* name, pool_options& options, const char* detail) noexcept {
  const status read = read_option(name, pool_rows[0], options, detail);
  const bool is_none = read && option_is_set(name) && options.page_bytes == 0;
  return is_none ? status{refuse_variable(name, detail)} : read;
}

// In the source requests below a page are not the pool's, so that a page larger than any request
// turns it off. The largest number of 64 bits is named there for that.
status read_source_page_bytes(pool_options& options) noexcept {
  constexpr const char* detail =
      "VPMM_PAGE_SIZE takes bytes, such as 2MiB, not 0; above 1GiB the "
      "pool is off";
  std::string_view text;
  read_text_option("VPMM_PAGE_SIZE", text);
  std::uint64_t size_bytes = options.page_bytes;
  if (text == "18446744073709551615") {
    size_bytes = std::numeric_limits<std::uint64_t>::max();
  } else if (status read = read_bytes_option("VPMM_PAGE_SIZE", size_bytes, detail); !read) {
    return read;
  }
  if (text.empty()) return {};
  if (size_bytes == 0) return refuse_value(text, detail);
  if (size_bytes <= source_page_bytes_max) {
    options.page_bytes = size_bytes;
  } else {
    options.policy = pool_policy::off();
  }
  check(options.page_bytes <= page_bytes_max || !options.validate(), "a page is larger than any");
  return {};
}

status read_page_count(const char* name, pool_options& options, const char* detail) noexcept {
  if (!option_is_set(name)) return {};
  std::string_view text;
  read_text_option(name, text);
  std::uint64_t value = 0;
  const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = failure == std::errc{} && stop == text.data() + text.size();
  if (!is_whole || static_cast<double>(value) > pool_rows[1].high)
    return refuse_variable(name, detail);
  options.page_count = value;
  debug_check([&] { return pool_rows[1].check_value(options).has_value(); },
              "a count of pages leaves its range");
  return {};
}

result<capture_rule> capture_by_name(std::string_view name) noexcept {
  if (name == "refuse") return capture_rule::refuse;
  if (name == "private") return capture_rule::private_memory;
  if (name == "unchecked") return capture_rule::unchecked;
  return refuse_value(name, "VMM_POOL_CAPTURE takes one of refuse, private, unchecked");
}

}  // namespace

std::span<const option_row<pool_tuning>> pool_tuning::ranges() noexcept { return tuning_rows; }

std::span<const option_row<pool_policy>> pool_policy::ranges() noexcept { return policy_rows; }

status pool_policy::validate() const noexcept {
  if (name == nullptr) return refuse(errc::bad_option, "a pool policy has a name");
  if (status fits = check_options(ranges(), *this); !fits) return fits;
  const status fits = check_options(pool_tuning::ranges(), tuning);
  debug_check([&] { return !fits || headroom >= 0; }, "memory held may be below the live bytes");
  return fits;
}

std::span<const option_row<pool_options>> pool_options::ranges() noexcept { return pool_rows; }

status pool_options::validate() const noexcept {
  if (status fits = memory_options::validate(); !fits) return fits;
  if (status fits = check_options(ranges(), *this); !fits) return fits;
  if (capture > capture_rule::unchecked)
    return refuse(errc::bad_option, "capture is one of capture_rule");
  if (stream_arenas > arena_rule::never)
    return refuse(errc::bad_option, "stream_arenas is one of arena_rule");
  return policy.validate();
}

result<pool_options> pool_options::from_environment(const pool_options& base) noexcept {
  pool_options options = base;
  memory_options& memory = options;
  status read = read_option("VPMM_VA_SIZE", memory_options::ranges()[0], memory,
                            "VPMM_VA_SIZE takes bytes, such as 8TiB, not 0, at most 64PiB");
  if (read) read = read_source_page_bytes(options);
  if (read) {
    read = read_page_count("VPMM_PAGES", options,
                           "VPMM_PAGES takes a whole number of pages, such as 0 or 16384");
  }
  if (read) read = options.read_environment();
  if (read) {
    read = read_page_bytes(
        "VMM_POOL_PAGE_SIZE", options,
        "VMM_POOL_PAGE_SIZE takes bytes with a unit, such as 2MiB, not 0, at most 256GiB");
  }
  if (read) {
    read = read_page_count("VMM_POOL_PAGES", options,
                           "VMM_POOL_PAGES takes a whole number of pages, such as 0 or 16384");
  }
  if (!read) return read.error();
  if (const char* name = environment_text("VMM_POOL_POLICY"); name != nullptr) {
    const result<pool_policy> policy = pool_policy::by_name(name);
    if (!policy) return refuse_value(name, "VMM_POOL_POLICY takes one of pool, vpmm, off");
    options.policy = *policy;
  }
  if (const char* name = environment_text("VMM_POOL_CAPTURE"); name != nullptr) {
    const result<capture_rule> rule = capture_by_name(name);
    if (!rule) return rule.error();
    options.capture = *rule;
  }
  if (status valid = options.validate(); !valid) return valid.error();
  return options;
}

}  // namespace vmm
