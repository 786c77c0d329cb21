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

manager_policy manager_policy::va_pool() noexcept { return manager_policy{}; }

manager_policy manager_policy::keep_mapped() noexcept {
  manager_policy policy;
  policy.name = "keep_mapped";
  policy.on_free = free_rule::keep_mapped;
  debug_check([&] { return policy.validate().has_value(); }, "a preset leaves its ranges");
  return policy;
}

manager_policy manager_policy::virtual_caching() noexcept {
  manager_policy policy;
  policy.name = "virtual_caching";
  policy.on_free = free_rule::keep_mapped;
  policy.grow_cached = true;
  policy.unbind_cached = true;
  policy.fragment_ratio = 0;
  policy.chunk_bytes = std::uint64_t{20} << 20;
  debug_check([&] { return policy.validate().has_value(); }, "a preset leaves its ranges");
  return policy;
}

result<manager_policy> manager_policy::by_name(std::string_view name) noexcept {
  for (const manager_policy& known : {va_pool(), keep_mapped(), virtual_caching()}) {
    if (name == known.name) return known;
  }
  return refuse_value(name, "a policy is one of va_pool, keep_mapped, virtual_caching");
}

namespace {

constexpr std::array<option_row<manager_policy>, 2> policy_rows{{
    {"manager_policy::fragment_ratio is a number from 0 to 1", &manager_policy::fragment_ratio, 0,
     1},
    {"manager_policy::chunk_bytes is at most 2^56, or 0 for no chunks",
     &manager_policy::chunk_bytes, 0, option_bytes_max},
}};

}  // namespace

std::span<const option_row<manager_policy>> manager_policy::ranges() noexcept {
  return policy_rows;
}

status manager_policy::validate() const noexcept {
  if (name == nullptr) return refuse(errc::bad_option, "a policy has a name");
  if (on_free > free_rule::keep_mapped)
    return refuse(errc::bad_option, "manager_policy::on_free is one of free_rule");
  const status fits = check_options(ranges(), *this);
  debug_check([&] { return !fits || fragment_ratio <= 1; }, "a share of a request is more than it");
  return fits;
}

status manager_options::validate() const noexcept {
  const status own = memory_options::validate();
  debug_check([&] { return !own || reservation_bytes > 0; }, "a manager reserves no addresses");
  return own ? policy.validate() : own;
}

result<manager_options> manager_options::from_environment(const manager_options& base) noexcept {
  manager_options options = base;
  if (const char* name = environment_text("VMM_POLICY"); name != nullptr) {
    const result<manager_policy> policy = manager_policy::by_name(name);
    if (!policy) {
      return refuse_value(name, "VMM_POLICY takes one of va_pool, keep_mapped, virtual_caching");
    }
    options.policy = *policy;
  }
  const auto& [ratio, chunk] = policy_rows;
  status read = read_option("VMM_FRAG_RATIO", ratio, options.policy,
                            "VMM_FRAG_RATIO takes a number from 0 to 1, such as 0.25");
  if (read) {
    read = read_option(
        "VMM_CHUNK_SIZE", chunk, options.policy,
        "VMM_CHUNK_SIZE takes bytes with a unit, such as 20MiB, at most 64PiB, or 0 for no chunks");
  }
  if (read) read = options.read_environment();
  if (read) read = options.validate();
  if (!read) return read.error();
  return options;
}

status check_properties(const manager_options& options, const features& can) noexcept {
  const auto kinds = static_cast<unsigned>(options.shareable);
  const auto lacks = [&](share_kind kind, bool can_export) {
    return (kinds & static_cast<unsigned>(kind)) != 0 && !can_export;
  };
  const bool can_share = !lacks(share_kind::posix_fd, can.export_posix_fd) &&
                         !lacks(share_kind::fabric, can.export_fabric) &&
                         !lacks(share_kind::win32, false);
  const bool can_rdma = !options.rdma_capable || can.rdma;
  if (can.is_lender && (!can_share || !can_rdma)) {
    return refuse(errc::not_supported,
                  "an owner's memory is not shared with other processes or network cards: unset "
                  "VMM_OWNER for this program");
  }
  if (!can_share) {
    return refuse(errc::not_supported,
                  "manager_options::shareable: the driver cannot share memory in that way");
  }
  if (!can_rdma) {
    return refuse(errc::not_supported,
                  "manager_options::rdma_capable: the device cannot make memory that RDMA can "
                  "reach");
  }
  return {};
}

}  // namespace vmm
