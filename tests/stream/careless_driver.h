// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A fake driver that drops or belies one kind of ordering, so that the pool above it does what it
// would do with that bug in its own code: hands out, moves or unmaps what is still in use. The
// hazard checker below it must see that. [R13, R15] It imports what it uses, so it is the last
// include but for those that do the same.
#pragma once

#include <cstdint>
#include <set>

import vmm.backend;
import vmm.fake;

enum class plant : std::uint8_t {
  none,
  skip_wait,             // a stream is not made to wait
  wait_on_other_stream,  // another stream is made to wait instead
  believe_finished,      // unfinished work is taken as finished
  do_not_block,          // the host does not wait where it must
  keep_old_mark,         // an event recorded once is never recorded anew
  mark_other_stream,     // a mark is made in another stream's work
};
inline constexpr plant all_plants[] = {plant::skip_wait,        plant::wait_on_other_stream,
                                       plant::believe_finished, plant::do_not_block,
                                       plant::keep_old_mark,    plant::mark_other_stream};

[[nodiscard]] inline const char* name_of(plant which) {
  switch (which) {
    case plant::none: return "none";
    case plant::skip_wait: return "skip a wait";
    case plant::wait_on_other_stream: return "let another stream wait";
    case plant::believe_finished: return "take unfinished work as finished";
    case plant::do_not_block: return "do not block the host";
    case plant::keep_old_mark: return "keep an old mark";
    case plant::mark_other_stream: return "mark another stream";
  }
  return "";
}

/// Movable while no pool refers to it.
class careless_driver : public vmm::fake_driver {
 public:
  explicit careless_driver(const vmm::fake::profile& plays, plant which)
      : vmm::fake_driver(plays), plant_(which) {}

  /// Turns the bug off: what a test does itself is ordered as it should be.
  void set_plant(plant which) { plant_ = which; }

  [[nodiscard]] vmm::status wait_event(vmm::stream_handle stream, vmm::event_handle event) {
    if (plant_ == plant::skip_wait) return {};
    if (plant_ == plant::wait_on_other_stream) stream = vmm::stream_handle::default_stream;
    return fake_driver::wait_event(stream, event);
  }
  [[nodiscard]] vmm::result<bool> query_event(vmm::event_handle event) {
    if (plant_ == plant::believe_finished) return true;
    return fake_driver::query_event(event);
  }
  [[nodiscard]] vmm::status synchronize_event(vmm::event_handle event) {
    if (plant_ == plant::do_not_block) return {};
    return fake_driver::synchronize_event(event);
  }
  [[nodiscard]] vmm::status synchronize_all() {
    if (plant_ == plant::do_not_block) return {};
    return fake_driver::synchronize_all();
  }
  [[nodiscard]] vmm::status record_event(vmm::event_handle event, vmm::stream_handle stream) {
    const bool first = recorded_.insert(event).second;
    if (plant_ == plant::keep_old_mark && !first) return {};
    if (plant_ == plant::mark_other_stream) stream = vmm::stream_handle::default_stream;
    return fake_driver::record_event(event, stream);
  }
  [[nodiscard]] vmm::status record_all(vmm::event_handle event) {
    const bool first = recorded_.insert(event).second;
    if (plant_ == plant::keep_old_mark && !first) return {};
    if (plant_ == plant::mark_other_stream)
      return fake_driver::record_event(event, vmm::stream_handle::default_stream);
    return fake_driver::record_all(event);
  }

 private:
  plant plant_;
  std::set<vmm::event_handle> recorded_;
};
static_assert(vmm::stream_backend<careless_driver>);
