// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

module vmm.optimizer;

import vmm.backend;
import vmm.base;
import vmm.physical;
import vmm.std;

namespace vmm {

namespace {

// Adds the devices that may use everything, each of which must reach the memory.
status add_peers(driver_interface& driver, const memory_options& options, location memory_at,
                 grant_list& grants) {
  for (const access_grant& each : options.peers.all()) {
    if (each.grantee == driver.home() || each.grantee == memory_at) {
      return refuse(errc::bad_option,
                    "memory_options::peers names the home or the placement, which always have read "
                    "and write access");
    }
    if (status reached = check_reach(driver, memory_at, {&each, 1}); !reached) return reached;
    if (each.rights != access::none && !grants.set(each))
      return refuse(errc::bad_option,
                    "memory_options::peers has more locations than a list can hold");
  }
  check(grants.of(driver.home()) == access::read_write, "I1: the home may not use a core's memory");
  return {};
}

}  // namespace

status check_reach(driver_interface& driver, location memory_at,
                   std::span<const access_grant> grants) {
  for (const access_grant& each : grants) {
    check(each.grantee != driver.home() && each.grantee != memory_at,
          "the home's access is queried");
    if (each.rights == access::none) continue;
    if (!driver.feature_set().peers) {
      return refuse(
          errc::not_supported,
          "the driver has no rights for each device: they need a driver with peers, such as cuda");
    }
    // This fails for a location that does not exist, except nodes on CUDA. For the host and its own
    // memory it reports links, which do not exist.
    const result<peer_info> link = driver.query_peer({each.grantee, memory_at});
    if (!link) return link.error();
    const bool is_of_a_device =
        each.grantee.kind == location::place::device || memory_at.kind == location::place::device;
    if (is_of_a_device && !link->is_reachable()) {
      return refuse(errc::not_supported,
                    "the device cannot access this memory: call query_peer first");
    }
  }
  return {};
}

result<core_plan> plan_core(driver_interface& driver, const memory_options& options,
                            const physical_request& like,
                            std::span<const std::uint64_t> sizes_bytes) {
  check(!sizes_bytes.empty(), "a core is planned without a size");
  debug_check([&] { return options.validate().has_value(); }, "a core is planned with bad options");
  core_plan plan;
  const location home = driver.home();
  physical_request wanted = like;
  wanted.where = options.placement.value_or(home);
  for (const std::uint64_t size_bytes : sizes_bytes) {
    wanted.size_bytes = size_bytes;
    const result<granularity> unit = driver.query_granularity(wanted);
    const bool is_beyond = !unit && unit.error().code == errc::out_of_memory;
    if (is_beyond && plan.unit.minimum_bytes != 0) continue;  // no handle has this size
    if (!unit) return unit.error();
    plan.unit.minimum_bytes = std::max(plan.unit.minimum_bytes, unit->minimum_bytes);
    plan.unit.recommended_bytes = std::max(plan.unit.recommended_bytes, unit->recommended_bytes);
  }
  if (options.budget_bytes != 0 && options.budget_bytes < plan.unit.minimum_bytes)
    return refuse_beyond(options.budget_bytes,
                         "budget_bytes (VMM_BUDGET) is 0 for no budget, or at least one unit of "
                         "the device's memory",
                         "the bytes of a unit are", plan.unit.minimum_bytes);
  plan.options.physical.like = wanted;
  plan.options.physical.budget_bytes = options.budget_bytes;
  plan.options.reservation.reservation_bytes = options.reservation_bytes;
  plan.options.grants = grants_for(home, wanted.where);
  plan.options.streams_forgotten = options.streams_forgotten;
  if (status added = add_peers(driver, options, wanted.where, plan.options.grants); !added)
    return added.error();
  if (options.spill) {
    if (*options.spill == wanted.where)
      return refuse(errc::bad_option,
                    "memory_options::spill is the placement itself: name another location");
    wanted.where = *options.spill;
    const result<granularity> unit = driver.query_granularity(wanted);
    if (!unit) return unit.error();
    plan.unit.minimum_bytes = std::max(plan.unit.minimum_bytes, unit->minimum_bytes);
    plan.unit.recommended_bytes = std::max(plan.unit.recommended_bytes, unit->recommended_bytes);
    plan.options.physical.spill = options.spill;
  }
  check(!plan.options.grants.all().empty(), "a core's memory without access");
  return plan;
}

error refuse_beyond(std::uint64_t value, const char* detail, std::string_view why,
                    std::uint64_t limit) noexcept {
  check(!why.empty(), "a value is refused without a reason");
  return refuse(errc::bad_option, detail_text()
                                      .add(detail)
                                      .add("; not '")
                                      .add_number(value)
                                      .add("': ")
                                      .add(why)
                                      .add(" ")
                                      .add_number(limit)
                                      .keep(detail));
}

status check_handle_size(driver_interface& driver, const memory_options& options,
                         std::uint64_t handle_bytes, const char* detail) {
  check(detail != nullptr, "a value is refused without a text");
  constexpr std::uint64_t smallest_device_bytes = std::uint64_t{1} << 30;
  if (handle_bytes <= smallest_device_bytes || options.spill) return {};
  const result<memory_info> there = driver.query_memory(options.placement.value_or(driver.home()));
  if (!there || handle_bytes <= there->total_bytes) return {};
  return refuse_beyond(handle_bytes, detail, "its bytes are", there->total_bytes);
}

status device_core::validate() const noexcept {
  if (status valid = memory.validate(); !valid) return valid;
  return space.validate();
}

status give_back_core(device_core& core, const status& emptied) {
  const trim_report drained = core.memory.trim(0);
  if (!emptied) return emptied;
  if (drained.failure.code != errc::none) return drained.failure;
  check(core.memory.statistics().held_bytes == 0, "memory is in use when a core is closed");
  return core.space.close();
}

void report_unclosed(const char* owner, const error& failure) noexcept {
  check(failure.code != errc::none, "a core's failure to close is reported without an error");
  check(owner != nullptr && failure.detail != nullptr,
        "a core's failure to close is reported "
        "without an owner");
  std::fprintf(stderr,
               "vmm: a %s could not release everything: %s, %s; the rest stays with the process\n",
               owner, name_of(failure.code), failure.detail);
}

}  // namespace vmm
