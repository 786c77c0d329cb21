// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.suspend;

import vmm.backend;
import vmm.base;
import vmm.optimizer;
import vmm.physical;
import vmm.std;

namespace vmm {

status resumption::run() {
  try {
    return run_steps();
  } catch (const std::bad_alloc&) {
    take_again();
    throw;
  }
}

status resumption::run_steps() {
  status done = attempt(spilling::no);
  if (!done && is_device_shortage(done.error().code) && relieve_for(regions_))
    done = attempt(spilling::no);
  constexpr int loans_max = 4;  // other threads' requests may take a part
  std::int64_t until_ns = 0;
  for (int loans = 0; loans < loans_max && !done; ++loans) {
    if (!is_device_shortage(done.error().code)) break;
    std::vector<std::unique_ptr<relief_loan>> borrowed;
    if (!borrow_for(regions_, borrowed, until_ns)) break;
    done = attempt(spilling::no);
  }
  const bool can_spill = std::any_of(regions_.begin(), regions_.end(), [](suspended_region* each) {
    return each->core().memory.has_spill();
  });
  if (!done && done.error().code == errc::out_of_memory && can_spill) return attempt(spilling::yes);
  return done;
}

status resumption::attempt(spilling spills) {
  status done = bring_back(spills);
  if (!done) take_again();
  check(done || done.error().code != errc::none, "a resumption fails without a reason");
  return done;
}

status resumption::bring_back(spilling spills) {
  for (suspended_region* each : regions_) {
    obstacle_ = each;
    check(each->is_suspended, "a running region is resumed");
    if (status finished = each->finish_earlier(); !finished) return finished;
    if (status begun = each->begin_resume(); !begun) return begun;
    if (each->has_lost()) {
      return refuse(errc::in_use,
                    "the contents were lost with the suspender that kept them: free the blocks of "
                    "the region, then resume it");
    }
  }
  for (suspended_region* each : regions_) {
    obstacle_ = each;
    check(each->is_begun, "a region is resumed whose change was not begun");
    const relaxed_capture quiet(each->driver);
    std::optional<spill_permit> permit;
    if (spills == spilling::yes) permit.emplace(each->core().memory);
    const relief_pause no_wait;  // for other processes, with the allocators' locks
    if (status provided = provide_parts(each->core(), each->parts); !provided) return provided;
  }
  for (suspended_region* each : regions_) {
    obstacle_ = each;
    const relaxed_capture quiet(each->driver);
    if (status attached = each->attach(is_verified_); !attached) return attached;
  }
  obstacle_ = nullptr;
  return {};
}

// The resumption failed: memory that came back is released again, except memory that already holds
// its contents and memory of a copy that cannot be waited for.
void resumption::take_again() noexcept {
  for (suspended_region* each : regions_) {
    if (!each->is_begun) continue;
    check(each->is_suspended, "resumption I1: a region that runs is suspended again");
    const relaxed_capture quiet(each->driver);
    if (!each->is_intact && each->has_finished_copies()) {
      (void)try_to_detach(each->core(), each->parts);
      (void)release_parts(each->core(), each->parts);
    }
    each->end_resume(false);
  }
}

}  // namespace vmm
