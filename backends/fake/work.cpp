// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - device work: lanes of queued work, and the two schedules that finish it.
//
// Timed: work starts when its lane's earlier work and what it waits for have finished, and takes
// its duration of virtual time. Manual: it finishes when the test says so, in any order that lanes
// and waits allow. Either way its effect on contents takes place when it finishes.
module;
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

module vmm.fake;

import vmm.backend;
import :contents;
import :state;

namespace vmm::fake {

namespace {

// For a heap whose top is the earliest moment. Of two at one time, the work queued first, and its
// start before its finish: work only ever waits for work queued before it.
bool later(const moment& a, const moment& b) noexcept {
  if (a.ns != b.ns) return a.ns > b.ns;
  if (a.serial != b.serial) return a.serial > b.serial;
  return a.finishes && !b.finishes;
}

}  // namespace

// ---- lanes ----

std::optional<std::uint32_t> driver_state::lane_of(stream_handle stream) noexcept {
  if (stream == stream_handle::default_stream) return 0;
  const stream_record* record = streams.find(static_cast<std::uint64_t>(stream));
  if (record == nullptr) return std::nullopt;
  return record->lane;
}

std::uint32_t driver_state::open_lane() {
  if (!spare_lanes.empty()) {
    const std::uint32_t which = spare_lanes.back();
    spare_lanes.pop_back();
    lanes[which].open = true;
    return which;
  }
  spare_lanes.reserve(lanes.size() + 1);  // so that closing never allocates
  lanes.emplace_back();
  return static_cast<std::uint32_t>(lanes.size() - 1);
}

void driver_state::close_lane_if_dry(std::uint32_t which) noexcept {
  lane& dry = lanes[which];
  if (!dry.open && dry.queue.empty()) spare_lanes.push_back(which);
}

// When a queued point is reached in the timed schedule; 0 when it is in the past.
std::uint64_t driver_state::finish_time(work_point point) const noexcept {
  if (reached(point)) return 0;
  const lane& of = lanes[point.lane];
  return of.queue[point.seq - of.finished_seq - 1].finish_ns;
}

void driver_state::enqueue(std::uint32_t where, work&& what) {
  lane& in = lanes[where];
  what.serial = ++world->serials;
  what.start_ns = std::max({now_ns, in.tail_finish_ns, finish_time(what.waits_for)});
  what.finish_ns = what.start_ns + what.duration_ns;
  moments.reserve(moments.size() + 2);
  in.queue.push_back(std::move(what));
  work& queued = in.queue.back();
  try {
    note_uses(queued, where);
  } catch (...) {
    in.queue.pop_back();
    throw;
  }
  ++in.tail_seq;
  in.tail_finish_ns = queued.finish_ns;
  if (queued.what != work::kind::wait) ++counts.pending_work;
  if (manual) return;
  moments.push_back({queued.start_ns, queued.serial, where, false});
  std::push_heap(moments.begin(), moments.end(), later);
  moments.push_back({queued.finish_ns, queued.serial, where, true});
  std::push_heap(moments.begin(), moments.end(), later);
}

// ---- running ----

void driver_state::settle() {
  while (!moments.empty() && moments.front().ns <= now_ns) {
    const moment next = moments.front();
    if (next.finishes) {
      finish_front(next.lane);
    } else {
      lane& of = lanes[next.lane];
      start(of.queue.front());
    }
    std::pop_heap(moments.begin(), moments.end(), later);
    moments.pop_back();
  }
}

// What a kernel touches must be mapped and usable when it runs; each first fault is one misuse.
void driver_state::start(work& what) {
  const auto ignore = [](const piece&, address) {};
  for (const address_range& range : what.reads) {
    if (!each_piece(call::none, range, access::read, ignore)) what.faulted = true;
  }
  for (const address_range& range : what.writes) {
    if (!each_piece(call::none, range, access::read_write, ignore)) what.faulted = true;
  }
}

void driver_state::finish_front(std::uint32_t which) {
  lane& of = lanes[which];
  if (!of.queue.front().faulted) carry_out(of.queue.front());
  const work done = std::move(of.queue.front());
  of.queue.pop_front();
  ++of.finished_seq;
  forget_uses(done, {which, of.finished_seq});
  if (done.what != work::kind::wait) --counts.pending_work;
  close_lane_if_dry(which);
}

void driver_state::finish_by_hand(std::uint32_t which) {
  start(lanes[which].queue.front());
  finish_front(which);
  pass_waits();
}

// The first word of each piece that a kernel reads.
void driver_state::check_expected(const work& done) {
  for (const address_range& range : done.reads) {
    const status seen =
        each_piece(call::none, range, access::read, [&](const piece& part, address at) {
          if (part.from->data.word(part.offset) == done.expected) return;
          misused(misuse_kind::wrong_contents, call::none, {at, part.size_bytes}, done.serial,
                  done.name);
        });
    if (!seen) return;  // reported as misuse
  }
}

void driver_state::carry_out_copy(const work& done) {
  address target = done.writes.front().base;
  const auto from = [&](const piece& source, address) {
    std::uint64_t offset = source.offset;
    const auto into = [&](const piece& to, address) {
      world->each_target(
          *to.from, to.offset, to.size_bytes,
          [&](contents& into_data, std::uint64_t at, std::uint64_t skipped, std::uint64_t size) {
            into_data.copy(at, source.from->data, offset + skipped, size);
          });
      offset += to.size_bytes;
    };
    const address_range part{target, source.size_bytes};
    const status put = each_piece(call::copy, part, access::read_write, into);
    (void)put;  // what failed is reported as misuse
    target = part.end();
  };
  const status got = each_piece(call::copy, done.reads.front(), access::read, from);
  (void)got;
}

// The effect on contents. May throw half-way; doing it again completes it.
void driver_state::carry_out(const work& done) {
  if (done.has_expected) check_expected(done);
  if (done.what == work::kind::copy) carry_out_copy(done);
  if (!done.has_tag) return;
  for (const address_range& range : done.writes) {
    const auto fill = [&](const piece& part, address) {
      world->each_target(*part.from, part.offset, part.size_bytes,
                         [&](contents& into, std::uint64_t at, std::uint64_t, std::uint64_t size) {
                           into.fill(at, size, done.tag);
                         });
    };
    const status filled = each_piece(call::none, range, access::read_write, fill);
    (void)filled;  // what failed is reported as misuse
  }
}

// ---- waiting ----

bool driver_state::front_ready(const lane& which) const noexcept {
  return !which.queue.empty() && reached(which.queue.front().waits_for);
}

// Waits whose work has finished are over, in the manual schedule too: nobody sees them.
void driver_state::pass_waits() {
  bool passed = true;
  while (passed) {
    passed = false;
    for (std::uint32_t i = 0; i < lanes.size(); ++i) {
      while (front_ready(lanes[i]) && lanes[i].queue.front().what == work::kind::wait) {
        finish_front(i);
        passed = true;
      }
    }
  }
}

void driver_state::wait_for(work_point until) {
  if (!manual) {
    now_ns = std::max(now_ns, finish_time(until));
    world->now_ns = std::max(world->now_ns, now_ns);
    settle();
    return;
  }
  // Only what the point needs: its lane up to it, and what waits in there name, until no more.
  std::vector<std::uint64_t> needed(lanes.size(), 0);
  needed[until.lane] = until.seq;
  bool more = true;
  while (more) {
    more = false;
    for (std::uint32_t i = 0; i < lanes.size(); ++i) {
      for (std::uint64_t seq = lanes[i].finished_seq + 1; seq <= needed[i]; ++seq) {
        const work_point on = lanes[i].queue[seq - lanes[i].finished_seq - 1].waits_for;
        if (on.seq <= needed[on.lane]) continue;
        needed[on.lane] = on.seq;
        more = true;
      }
    }
  }
  while (!reached(until)) {
    for (std::uint32_t i = 0; i < lanes.size(); ++i) {
      while (lanes[i].finished_seq < needed[i] && front_ready(lanes[i])) {
        start(lanes[i].queue.front());
        finish_front(i);
      }
    }
  }
  pass_waits();
}

}  // namespace vmm::fake
