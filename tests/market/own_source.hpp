// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A source of this process: memory of the fake driver, in handles as an owner's. It imports what it
// uses, so it is the last include except others with imports.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.market;

namespace market_test {

/// Lends up to `capacity_bytes`. Handles stay, and each has another job's bytes when it is lent
/// again.
class own_source final : public vmm::memory_source {
 public:
  own_source(vmm::fake_driver& of, std::uint64_t capacity_bytes)
      : of_(of), capacity_bytes_(capacity_bytes) {}
  own_source(const own_source&) = delete;
  own_source& operator=(const own_source&) = delete;
  ~own_source() override {
    if (while_ending) while_ending();
    for (const kept& each : all_) {
      EXPECT_TRUE(of_.close_descriptor(each.shared));
      EXPECT_TRUE(of_.release(each.handle));
    }
  }

  vmm::status take(const vmm::lot_request& what, vmm::lent_list& out) override {
    if (what.within_ns != 0 && while_waiting) while_waiting();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (what.within_ns != 0) waits_ns.push_back(what.within_ns);
    if (what.bytes > capacity_bytes_ - charged_bytes_)
      return vmm::error{vmm::errc::out_of_memory, vmm::call::none, 0, "", "the source is empty"};
    if (what.within_ns == 0 && others_wait)
      return vmm::error{vmm::errc::out_of_memory, vmm::call::none, 0, "", "others wait longer"};
    const std::size_t before = out.size();
    vmm::request_record lot{.unit_bytes = what.unit_bytes};
    lot.target_bytes = lot.missing_bytes = what.bytes;
    while (lot.missing_bytes != 0) {
      const std::size_t found = find(vmm::next_market_size(lot.next_bytes_max()));
      if (found == all_.size()) {
        for (; out.size() > before; out.pop_back()) all_[out.back().id - 1].is_lent = false;
        return vmm::error{vmm::errc::out_of_memory, vmm::call::none, 0, "", "the driver is full"};
      }
      kept& lent = all_[found];
      lent.is_lent = true;
      out.push_back({.id = found + 1,
                     .generation = ++lent.generation,
                     .size_bytes = lent.size_bytes,
                     .descriptor = lent.shared.descriptor,
                     .must_clear = lent.generation > 1});
      lot.missing_bytes -= lent.size_bytes;
    }
    std::ranges::sort(std::span(out).subspan(before), std::greater{},
                      &vmm::lent_handle::size_bytes);
    charged_bytes_ += what.bytes;
    return {};
  }
  vmm::status check_possible(std::uint64_t bytes) const override {
    if (bytes <= capacity_bytes_) return {};
    return vmm::error{vmm::errc::over_budget, vmm::call::none, 0, "", "beyond the source"};
  }
  void give(std::span<const vmm::lent_handle> handles) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const vmm::lent_handle& each : handles) {
      EXPECT_TRUE(std::exchange(all_[each.id - 1].is_lent, false)) << "given twice";
      charged_bytes_ -= each.size_bytes;
    }
  }
  vmm::source_totals totals() const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {capacity_bytes_, charged_bytes_, capacity_bytes_};
  }
  std::string last_refusal() const override { return "the source is empty"; }

  std::size_t handle_count() const { return all_.size(); }

  bool others_wait = false;               // longer than what does not wait
  std::vector<std::uint64_t> waits_ns;    // the longest waits of the requests that may wait
  std::function<void()> while_waiting{};  // in a take() that may wait
  std::function<void()> while_ending{};   // while it ends its callbacks
  vmm::source_callbacks calls{};          // of its tenant

 private:
  struct kept {
    vmm::physical_handle handle{};
    vmm::shared_handle shared{};
    std::uint64_t size_bytes = 0;
    std::uint32_t generation = 0;
    bool is_lent = false;
  };
  // The place of a handle that is not lent; the number of handles: the driver has none.
  std::size_t find(std::uint64_t size_bytes) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (!all_[i].is_lent && all_[i].size_bytes == size_bytes) return i;
    }
    const auto made = of_.create(
        {.size_bytes = size_bytes, .where = of_.home(), .shareable = vmm::share_kind::posix_fd});
    if (!made) return all_.size();
    const auto shared = of_.export_handle(*made, vmm::share_kind::posix_fd);
    if (!shared) {
      EXPECT_TRUE(of_.release(*made));
      return all_.size();
    }
    all_.push_back({*made, *shared, size_bytes});
    return all_.size() - 1;
  }

  vmm::fake_driver& of_;
  const std::uint64_t capacity_bytes_;
  mutable std::mutex mutex_;
  std::uint64_t charged_bytes_ = 0;
  std::vector<kept> all_;
};

/// A tenant over a fake driver that it owns. `prepare` runs while it joins.
inline std::unique_ptr<vmm::tenant_driver> fake_tenant(
    std::uint64_t capacity_bytes, const std::function<void(own_source&)>& prepare = {},
    const vmm::fake::profile& plays = vmm::fake::profile::cuda()) {
  auto any = vmm::any_backend::own(vmm::fake_driver(plays)).value();
  vmm::fake_driver& fake = *any.get_if<vmm::fake_driver>();
  auto made = vmm::tenant_driver::open(
      std::move(any),
      [&](const vmm::source_callbacks& calls) -> vmm::result<std::unique_ptr<vmm::memory_source>> {
        auto source = std::make_unique<own_source>(fake, capacity_bytes);
        source->calls = calls;
        if (prepare) prepare(*source);
        return std::unique_ptr<vmm::memory_source>(std::move(source));
      });
  EXPECT_TRUE(made) << vmm::describe(made.error());
  return made ? std::move(*made) : nullptr;
}
inline own_source& source_of(vmm::tenant_driver& tenant) {
  return dynamic_cast<own_source&>(tenant.source());
}

}  // namespace market_test
