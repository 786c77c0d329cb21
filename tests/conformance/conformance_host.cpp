// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal and method: those of conformance.h, for the host driver: as it is, with lazy commit, with
// granules as a GPU has them, and through the adaptors that forward every call.
#include "conformance.h"

import vmm.host;
import vmm.observe;

namespace conformance {
namespace {

opened<vmm::host_driver> open_host(const vmm::host_options& options) {
  auto made = vmm::host_driver::open(options);
  if (!made) return {std::nullopt, vmm::describe(made.error())};
  return {std::move(*made), {}};
}

struct host_factory {
  using driver = vmm::host_driver;
  static constexpr bool memory_is_ours_alone = false;

  static conformance::unseen unseen() { return {}; }
  static bool nothing_left(driver& made) { return made.resource_counts().empty(); }
  template <class Driver>
  static void close(Driver&, const vmm::shared_handle& shared) {
    EXPECT_EQ(::close(static_cast<int>(shared.descriptor)), 0);
  }
};

struct host : host_factory {
  static opened<driver> make() { return open_host({}); }
};

// Without a capacity it takes any size: what is not there turns out when it is touched.
struct host_lazy : host_factory {
  static opened<driver> make() {
    return open_host({.commit = vmm::commit_mode::lazy, .capacity_bytes = 1u << 30});
  }
};

struct host_coarse : host_factory {
  static opened<driver> make() {
    return open_host({.minimum_bytes = 2u << 20, .capacity_bytes = 1u << 30});
  }
};

struct host_any : host_factory {
  using driver = vmm::any_backend;
  static opened<driver> make() {
    auto inside = open_host({});
    if (!inside.driver) return {std::nullopt, inside.why_not};
    return {vmm::any_backend::own(std::move(*inside.driver)).value(), {}};
  }
  static bool nothing_left(driver& made) {
    return made.get_if<vmm::host_driver>()->resource_counts().empty();
  }
};

struct host_observed : host_factory {
  using driver = vmm::observed_backend<vmm::host_driver, vmm::call_counter>;
  static opened<driver> make() {
    auto inside = open_host({});
    if (!inside.driver) return {std::nullopt, inside.why_not};
    return {driver{std::move(*inside.driver), std::make_shared<vmm::call_counter>()}, {}};
  }
  static bool nothing_left(driver& made) {
    const auto& seen = made.observer();
    const auto done = [&](vmm::call kind) { return seen.calls(kind) - seen.failures(kind); };
    return made.driver().resource_counts().empty() &&
           done(vmm::call::reserve) == done(vmm::call::free_reservation);
  }
};

VMM_CONFORMANCE(host);
VMM_CONFORMANCE(host_lazy);
VMM_CONFORMANCE(host_coarse);
VMM_CONFORMANCE(host_any);
VMM_CONFORMANCE(host_observed);

}  // namespace
}  // namespace conformance
