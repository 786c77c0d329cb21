// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.manager;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.std;

namespace vmm {

policy policy::va_pool() noexcept { return policy{}; }

policy policy::keep_mapped() noexcept {
  policy rules;
  rules.name = "keep_mapped";
  rules.on_free = free_rule::keep_mapped;
  debug_check([&] { return rules.validate().has_value(); }, "a preset leaves its ranges");
  return rules;
}

policy policy::virtual_caching() noexcept {
  policy rules;
  rules.name = "virtual_caching";
  rules.on_free = free_rule::keep_mapped;
  rules.grow_cached = true;
  rules.unbind_cached = true;
  rules.fragment_ratio = 0;
  rules.chunk_bytes = std::uint64_t{20} << 20;
  debug_check([&] { return rules.validate().has_value(); }, "a preset leaves its ranges");
  return rules;
}

result<policy> policy::by_name(std::string_view name) noexcept {
  for (const policy& known : {va_pool(), keep_mapped(), virtual_caching()}) {
    if (name == known.name) return known;
  }
  return refuse_value(name, "a policy is one of va_pool, keep_mapped, virtual_caching");
}

namespace {

constexpr std::array<option_row<policy>, 2> policy_rows{{
    {"policy::fragment_ratio is a number from 0 to 1", &policy::fragment_ratio, 0, 1},
    {"policy::chunk_bytes is at most 2^56, or 0 for no chunks", &policy::chunk_bytes, 0,
     option_bytes_max},
}};

}  // namespace

std::span<const option_row<policy>> policy::ranges() noexcept { return policy_rows; }

status policy::validate() const noexcept {
  if (name == nullptr) return refuse(errc::bad_option, "a policy has a name");
  if (on_free > free_rule::keep_mapped)
    return refuse(errc::bad_option, "policy::on_free is one of free_rule");
  const status fits = check_options(ranges(), *this);
  debug_check([&] { return !fits || fragment_ratio <= 1; }, "a share of a request is more than it");
  return fits;
}

status manager_options::validate() const noexcept {
  const status own = memory_options::validate();
  debug_check([&] { return !own || reservation_bytes > 0; }, "a manager reserves no addresses");
  return own ? rules.validate() : own;
}

result<manager_options> manager_options::from_environment(const manager_options& base) noexcept {
  manager_options options = base;
  if (const char* name = environment_text("VMM_POLICY"); name != nullptr) {
    const result<policy> rules = policy::by_name(name);
    if (!rules) {
      return refuse_value(name, "VMM_POLICY takes one of va_pool, keep_mapped, virtual_caching");
    }
    options.rules = *rules;
  }
  const auto& [ratio, chunk] = policy_rows;
  status read = read_option("VMM_FRAG_RATIO", ratio, options.rules,
                            "VMM_FRAG_RATIO takes a number from 0 to 1, such as 0.25");
  if (read) {
    read = read_option(
        "VMM_CHUNK_SIZE", chunk, options.rules,
        "VMM_CHUNK_SIZE takes bytes with a unit, such as 20MiB, at most 64PiB, or 0 for no chunks");
  }
  if (read) read = options.read_environment();
  if (read) read = options.validate();
  if (!read) return read.error();
  return options;
}

}  // namespace vmm
