// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A fake driver that drops or belies one kind of ordering, so that the pool above it does what it
// would do with that bug in its own code: hands out, moves or unmaps what is still in use. The
// hazard checker below it must see that. It imports what it uses, so it is the last
// include except others with imports.
#pragma once

#include <cstdint>
#include <set>

import vmm.backend;
import vmm.fake;

enum class driver_bug : std::uint8_t {
  none,
  skip_wait,             // a stream is not made to wait
  wait_on_other_stream,  // another stream is made to wait instead
  believe_finished,      // unfinished work is taken as finished
  do_not_block,          // the host does not wait where it must
  keep_old_mark,         // an event recorded once is never recorded anew
  mark_other_stream,     // a mark is made in another stream's work
};
inline constexpr driver_bug all_driver_bugs[] = {
    driver_bug::skip_wait,    driver_bug::wait_on_other_stream, driver_bug::believe_finished,
    driver_bug::do_not_block, driver_bug::keep_old_mark,        driver_bug::mark_other_stream};

[[nodiscard]] inline const char* name_of(driver_bug which) {
  switch (which) {
    case driver_bug::none: return "none";
    case driver_bug::skip_wait: return "skip a wait";
    case driver_bug::wait_on_other_stream: return "let another stream wait";
    case driver_bug::believe_finished: return "take unfinished work as finished";
    case driver_bug::do_not_block: return "do not block the host";
    case driver_bug::keep_old_mark: return "keep an old mark";
    case driver_bug::mark_other_stream: return "mark another stream";
  }
  return "";
}

/// Movable while no pool refers to it.
class careless_driver : public vmm::fake_driver {
 public:
  explicit careless_driver(const vmm::fake::profile& plays, driver_bug which)
      : vmm::fake_driver(plays), bug_(which) {}

  /// Turns the bug off: what a test does itself is ordered as it should be.
  void set_bug(driver_bug which) { bug_ = which; }

  [[nodiscard]] vmm::status wait_event(vmm::stream_handle stream, vmm::event_handle event) {
    if (bug_ == driver_bug::skip_wait) return {};
    if (bug_ == driver_bug::wait_on_other_stream) stream = vmm::stream_handle::default_stream;
    return fake_driver::wait_event(stream, event);
  }
  [[nodiscard]] vmm::result<bool> query_event(vmm::event_handle event) {
    if (bug_ == driver_bug::believe_finished) return true;
    return fake_driver::query_event(event);
  }
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle event) {
    if (bug_ == driver_bug::do_not_block) return {};
    return fake_driver::synchronize_event(event);
  }
  [[nodiscard]] vmm::status synchronize_all() {
    if (bug_ == driver_bug::do_not_block) return {};
    return fake_driver::synchronize_all();
  }
  [[nodiscard]] vmm::status record_event(vmm::event_handle event, vmm::stream_handle stream) {
    const bool first = recorded_.insert(event).second;
    if (bug_ == driver_bug::keep_old_mark && !first) return {};
    if (bug_ == driver_bug::mark_other_stream) stream = vmm::stream_handle::default_stream;
    return fake_driver::record_event(event, stream);
  }
  [[nodiscard]] vmm::status record_all(vmm::event_handle event) {
    const bool first = recorded_.insert(event).second;
    if (bug_ == driver_bug::keep_old_mark && !first) return {};
    if (bug_ == driver_bug::mark_other_stream)
      return fake_driver::record_event(event, vmm::stream_handle::default_stream);
    return fake_driver::record_all(event);
  }

 private:
  driver_bug bug_;
  std::set<vmm::event_handle> recorded_;
};
static_assert(vmm::stream_backend<careless_driver>);
