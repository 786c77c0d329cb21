// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a call of vmm.h, or of a resource of cuda::mr, that fails has left no more with its driver
// than before it.
// Method: every driver call inside each call that creates memory or an object fails, with every
// code, once and for ever; the fake driver's own counts before and after. The C library's units are
// linked to this program, so that the driver behind a handle can be reached.
#include "bench.hpp"
#include "resource_calls.h"
//
#include "../support/fault_sweep.h"
#include "objects.hpp"

namespace {

using c_test::sized;

// A driver with a pool, a manager and a growable range, each with memory in use.
struct owners {
  vmm_driver* driver = nullptr;
  vmm_pool* pool = nullptr;
  vmm_manager* manager = nullptr;
  vmm_growable* range = nullptr;
  vmm_pool* other = nullptr;
  vmm_growable* other_range = nullptr;
  void* block = nullptr;
  void* buffer = nullptr;
  vmm_export* exported = nullptr;
  c_test::owned_resources resources;
  c_test::owned_resources other_resources;

  owners() {
    EXPECT_GOOD(vmm_driver_open("fake", VMM_ANY_DEVICE, &driver));
    EXPECT_GOOD(vmm_pool_create(driver, nullptr, &pool));
    EXPECT_GOOD(vmm_manager_create(driver, nullptr, &manager));
    EXPECT_GOOD(create_range(&range));
    EXPECT_GOOD(resize(range, 4 * MiB));
    EXPECT_GOOD(vmm_pool_allocate(pool, 3 * MiB, nullptr, &buffer));
    EXPECT_GOOD(allocate(4 * MiB, 16 * MiB));
    EXPECT_GOOD(c_test::make_resources(driver, resources));
    EXPECT_GOOD(c_test::allocate_sync(*resources, 3 * MiB));
  }
  owners(const owners&) = delete;
  owners& operator=(const owners&) = delete;
  // A driver that has refused to unmap keeps what it kept.
  ~owners() {
    resources.reset();
    other_resources.reset();
    (void)vmm_share_end_export(exported);
    for (vmm_growable* const each : {range, other_range}) (void)vmm_growable_destroy(each, nullptr);
    for (vmm_pool* const each : {pool, other}) (void)vmm_pool_destroy(each);
    (void)vmm_manager_destroy(manager);
    (void)vmm_driver_close(driver);
  }
  vmm::fake_driver& fake() const {
    const vmm_c::call_on<vmm_c::driver_object> on(driver);
    return *on->backend.get_if<vmm::fake_driver>();
  }
  vmm_status create_range(vmm_growable** made) const {
    vmm_growable_options options{};
    (void)vmm_growable_options_init(&options, sizeof options);
    options.segment_count = 2;
    options.segment_bytes_max = 32 * MiB;
    return vmm_growable_create(manager, &options, made);
  }
  static vmm_status resize(vmm_growable* what, std::uint64_t size_bytes) {
    auto request = sized<vmm_growable_request>(size_bytes);
    return vmm_growable_resize(what, &request);
  }
  vmm_status allocate(std::uint64_t size_bytes, std::uint64_t growth_bytes) {
    auto request = sized<vmm_block_request>(size_bytes);
    request.growth_bytes = growth_bytes;
    return vmm_manager_allocate(manager, &request, &block);
  }
  vmm_status resize(std::uint64_t size_bytes, bool in_place) {
    auto request = sized<vmm_resize_request>(size_bytes);
    request.at = block;
    request.in_place = in_place ? 1 : 0;
    return vmm_manager_resize(manager, &request, &block);
  }
};

struct failing_call {
  const char* name;
  vmm_status (*make)(owners& on);
};

constexpr std::array calls{
    failing_call{"vmm_pool_create and the first block",
                 [](owners& on) {
                   if (const auto made = vmm_pool_create(on.driver, nullptr, &on.other))
                     return made;
                   return vmm_pool_allocate(on.other, 5 * MiB, nullptr, &on.buffer);
                 }},
    failing_call{
        "vmm_pool_allocate",
        [](owners& on) { return vmm_pool_allocate(on.pool, 64 * MiB, nullptr, &on.buffer); }},
    failing_call{"vmm_pool_allocate_aligned",
                 [](owners& on) {
                   return vmm_pool_allocate_aligned(on.pool, 9 * MiB, 2 * MiB, nullptr, &on.buffer);
                 }},
    failing_call{"vmm_pool_allocate_dedicated",
                 [](owners& on) {
                   return vmm_pool_allocate_dedicated(on.pool, 5 * MiB, nullptr, &on.buffer);
                 }},
    failing_call{"vmm_pool_preallocate",
                 [](owners& on) {  // of one handle: those that were completed before stay
                   return vmm_pool_preallocate(on.pool, 8 * MiB, nullptr, nullptr);
                 }},
    failing_call{"vmm_manager_allocate", [](owners& on) { return on.allocate(5 * MiB, 0); }},
    failing_call{"vmm_manager_resize in place",
                 [](owners& on) { return on.resize(12 * MiB, true); }},
    failing_call{"vmm_manager_resize", [](owners& on) { return on.resize(64 * MiB, false); }},
    failing_call{"vmm_growable_create and the first growth",
                 [](owners& on) {
                   if (const auto made = on.create_range(&on.other_range)) return made;
                   return owners::resize(on.other_range, 4 * MiB);
                 }},
    failing_call{"vmm_growable_resize",
                 [](owners& on) { return owners::resize(on.range, 20 * MiB); }},
    failing_call{"vmm_share_export",
                 [](owners& on) {
                   auto request = sized<vmm_export_request>(4 * MiB);
                   return vmm_share_export(on.driver, &request, &on.exported);
                 }},
    failing_call{"a pool of vmm.hpp, and the first block of its resource",
                 [](owners& on) {
                   if (const auto made = c_test::make_resources(on.driver, on.other_resources))
                     return made;
                   return c_test::allocate_sync(*on.other_resources, 5 * MiB);
                 }},
    failing_call{"cuda::mr, allocate_sync",
                 [](owners& on) { return c_test::allocate_sync(*on.resources, 64 * MiB); }},
    failing_call{"cuda::mr, allocate",
                 [](owners& on) { return c_test::allocate(*on.resources, 64 * MiB); }},
};

TEST(CFaults, AFailedCallHoldsNoMoreThanBefore) {
  sweeps::sweep_scenarios(
      "C", vmm::fake::profile::cuda(), calls,
      [](const failing_call& one, const sweeps::fault_list& faults) {
        owners on;
        vmm::fake_driver& fake = on.fake();
        const sweeps::held before = sweeps::held_of(fake);
        const auto seen = sweeps::run_under(fake, faults, [&]() -> vmm::status {
          if (one.make(on) == VMM_SUCCESS) return {};
          return vmm::error{vmm::errc::internal, vmm::call::none, 0, "", "the call failed"};
        });
        if (!seen.result)
          sweeps::expect_no_more(before, fake, faults, one.name + sweeps::describe(faults));
        return seen;
      });
}

}  // namespace
