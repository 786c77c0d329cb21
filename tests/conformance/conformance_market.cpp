// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the driver of an owner's tenant: over the host
// driver, with vmm-owner, and over the fake driver, with a source of this process. Imports stay
// after their memory was lent again.
#include "conformance.h"
//
#include "../market/own_source.hpp"
#include "../market/tenants.hpp"

namespace conformance {
namespace {

struct market_host {
  using driver = vmm::any_backend;
  static constexpr bool memory_is_ours_alone = false;

  static opened<driver> make() {
    static const market_test::owner_process owner("1GiB");  // for all tests
    static std::atomic<int> count = 0;                      // each driver is a tenant of its own
    const std::string name = "conformance-" + std::to_string(++count);
    auto tenant =
        market_test::open_host_tenant(market_test::options_of(owner, name), 2'000'000'000);
    if (!tenant) return {std::nullopt, vmm::describe(tenant.error())};
    return {vmm::any_backend::own(std::move(*tenant)).value(), {}};
  }
  static conformance::unseen unseen() { return {}; }
  static bool nothing_left(driver& made) {
    auto* const tenant = made.get_if<vmm::tenant_driver>();
    const auto left = tenant->owned()->get_if<vmm::host_driver>()->resource_counts();
    for (int turns = 0; turns < 2000 && tenant->source().totals().charged_bytes != 0; ++turns)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return left.mappings == 0 && left.reservations == 0 &&
           tenant->source().totals().charged_bytes == 0;
  }
  static void close(driver&, const vmm::shared_handle& shared) {
    EXPECT_EQ(::close(static_cast<int>(shared.descriptor)), 0);
  }
};

template <vmm::fake::profile (*Plays)() noexcept>
struct market_fake {
  using driver = vmm::any_backend;
  static constexpr bool memory_is_ours_alone = true;

  static opened<driver> make() {
    return {vmm::any_backend::own(market_test::fake_tenant(4 * GiB, {}, Plays())).value(), {}};
  }
  static bool nothing_left(driver& made) {
    auto* const tenant = made.get_if<vmm::tenant_driver>();
    auto* const fake = tenant->owned()->get_if<vmm::fake_driver>();
    if (!fake->finish_all()) return false;
    const auto left = fake->resource_counts();
    return left.mappings == 0 && left.reservations == 0 &&
           tenant->source().totals().charged_bytes == 0;
  }
  static void close(driver& made, const vmm::shared_handle& shared) {
    auto* const tenant = made.get_if<vmm::tenant_driver>();
    EXPECT_TRUE(tenant->owned()->get_if<vmm::fake_driver>()->close_descriptor(shared));
  }
};

struct market_fake_cuda : market_fake<vmm::fake::profile::cuda> {
  static conformance::unseen unseen() { return {}; }
};
struct market_fake_host : market_fake<vmm::fake::profile::host> {
  static conformance::unseen unseen() {
    return {.access_over_hole = true, .free_while_mapped = true};
  }
};

VMM_CONFORMANCE(market_host);
VMM_CONFORMANCE(market_fake_cuda);
VMM_CONFORMANCE(market_fake_host);

}  // namespace
}  // namespace conformance
