// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "resource_calls.h"

#include "vmm.hpp"

namespace c_test {

struct resources {
  explicit resources(vmm_driver* on) {
    driver.reset(on);
    const vmm_status made = vmm::pool::try_create(driver, vmm::pool_options(), pool);
    if (made != VMM_SUCCESS) (void)driver.release();
    vmm::detail::require(made);
  }
  resources(const resources&) = delete;
  resources& operator=(const resources&) = delete;
  ~resources() { (void)driver.release(); }

  vmm::driver driver;
  vmm::pool pool;
};

namespace {

// As cuda::stream_ref.
struct stream_reference {
  vmm_stream named = nullptr;
  [[nodiscard]] vmm_stream get() const noexcept { return named; }
};

template <class Call>
vmm_status status_of(Call&& call) noexcept {
  try {
    call();
    return VMM_SUCCESS;
  } catch (const vmm::failure& failed) {
    return failed.code();
  }
}

}  // namespace

void end_resources::operator()(resources* gone) const noexcept { delete gone; }

vmm_status make_resources(vmm_driver* on, owned_resources& made) {
  return status_of([&] { made.reset(new resources(on)); });
}

vmm_status allocate_sync(const resources& from, std::size_t size_bytes) {
  return status_of([&] { (void)vmm::device_resource(from.pool).allocate_sync(size_bytes); });
}

vmm_status allocate(const resources& from, std::size_t size_bytes) {
  const stream_reference stream{from.pool.idle().get()};
  return status_of([&] { (void)vmm::stream_resource(from.pool).allocate(stream, size_bytes); });
}

}  // namespace c_test
