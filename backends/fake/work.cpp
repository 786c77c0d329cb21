// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - device work: queues of queued work, and the two schedules that finish it.
//
// Timed: work starts when its queue's earlier work and the events that it waits for have finished,
// and takes its duration of virtual time. Manual: it finishes at the test's call, in any order that
// queues and waits allow. Either way contents change when it finishes.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :contents;
import :machine;
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

// ---- queues ----

std::optional<std::uint32_t> fake_state::queue_of(stream_handle stream) noexcept {
  if (emulated.can.canonical(stream) == stream_handle::default_stream) return 0;
  const stream_record* record = streams.find(static_cast<std::uint64_t>(stream));
  if (record == nullptr) return std::nullopt;
  check(record->queue != 0 && queues[record->queue].open, "a stream has no queue of its own");
  return record->queue;
}

std::uint32_t fake_state::open_queue() {
  if (!spare_queues.empty()) {
    const std::uint32_t which = spare_queues.back();
    spare_queues.pop_back();
    check(!queues[which].open && queues[which].works.empty(), "a spare queue is in use");
    queues[which].open = true;
    return which;
  }
  spare_queues.reserve(queues.size() + 1);  // so that closing never allocates
  queues.emplace_back();
  return static_cast<std::uint32_t>(queues.size() - 1);
}

void fake_state::close_queue_if_dry(std::uint32_t which) noexcept {
  work_queue& dry = queues[which];
  if (dry.open || !dry.works.empty()) return;
  check(which != 0 && spare_queues.size() < spare_queues.capacity(),
        "the default queue is closed, or closing would allocate");
  spare_queues.push_back(which);
}

// When a queued point is reached in the timed schedule; 0 when it is in the past.
std::uint64_t fake_state::finish_time(work_point point) const noexcept {
  if (reached(point)) return 0;
  const work_queue& of = queues[point.queue];
  check(of.tail_seq == of.finished_seq + of.works.size(), "a queue's count of work is wrong");
  check(point.seq <= of.tail_seq, "a point lies behind all work of its queue");
  return of.works[point.seq - of.finished_seq - 1].finish_ns;
}

void fake_state::enqueue(std::uint32_t where, work&& what) {
  check(where < queues.size() && queues[where].open, "work is given to a queue that is closed");
  work_queue& in = queues[where];
  what.serial = ++machine->serials;
  what.start_ns = std::max({now_ns, in.tail_finish_ns, finish_time(what.waits_for)});
  for (const work_point& each : what.also_waits_for)
    what.start_ns = std::max(what.start_ns, finish_time(each));
  what.finish_ns = what.start_ns + what.duration_ns;
  moments.reserve(moments.size() + 2);
  in.works.push_back(std::move(what));
  work& queued = in.works.back();
  try {
    note_uses(queued, where);
  } catch (...) {
    in.works.pop_back();
    throw;
  }
  ++in.tail_seq;
  check(in.tail_seq == in.finished_seq + in.works.size(), "a queue's count of work is wrong");
  check(queued.finish_ns >= queued.start_ns && queued.start_ns >= now_ns,
        "work finishes in the past");
  in.tail_finish_ns = queued.finish_ns;
  if (queued.what != work::kind::wait) ++counts.pending_work;
  if (manual) return;
  moments.push_back({queued.start_ns, queued.serial, where, false});
  std::push_heap(moments.begin(), moments.end(), later);
  moments.push_back({queued.finish_ns, queued.serial, where, true});
  std::push_heap(moments.begin(), moments.end(), later);
}

// ---- running ----

void fake_state::run_due() {
  while (!moments.empty() && moments.front().ns <= now_ns) {
    const moment next = moments.front();
    check(!queues[next.queue].works.empty(), "a moment comes of a queue without work");
    if (next.finishes) {
      finish_head(next.queue);
    } else {
      work_queue& of = queues[next.queue];
      start(of.works.front());
    }
    std::pop_heap(moments.begin(), moments.end(), later);
    moments.pop_back();
  }
}

// What a kernel touches must be mapped and usable when it runs; each first fault is one misuse.
void fake_state::start(work& what) {
  const auto ignore = [](const mapped_part&, address) {};
  const bool is_copy = what.what == work::kind::copy;
  const user reader{what.device, access::read, is_copy, true};
  const user writer{what.device, access::read_write, is_copy, true};
  check(what.what == work::kind::wait || known(what.device), "work runs on no device");
  for (const address_range& range : what.reads) {
    if (!each_part(call::none, range, reader, ignore)) what.faulted = true;
  }
  for (const address_range& range : what.writes) {
    if (!each_part(call::none, range, writer, ignore)) what.faulted = true;
  }
}

void fake_state::finish_head(std::uint32_t which) {
  work_queue& of = queues[which];
  check(!of.works.empty(), "work finishes in a queue that has none");
  check(is_free(of.works.front()), "work finishes before what it waits for");
  if (!of.works.front().faulted) carry_out(of.works.front());
  const work done = std::move(of.works.front());
  of.works.pop_front();
  ++of.finished_seq;
  check(of.finished_seq <= of.tail_seq, "more work has finished than was queued");
  forget_uses(done, {which, of.finished_seq});
  if (done.what != work::kind::wait) {
    check(counts.pending_work != 0, "more work has finished than was queued");
    --counts.pending_work;
  }
  close_queue_if_dry(which);
}

void fake_state::finish_by_hand(std::uint32_t which) {
  check(manual && head_ready(queues[which]), "work that cannot finish is finished manually");
  const std::uint64_t before = queues[which].finished_seq;
  start(queues[which].works.front());
  finish_head(which);
  check(queues[which].finished_seq == before + 1, "finished work is not counted");
  pass_waits();
}

// The first word of each piece that a kernel reads.
void fake_state::check_expected(const work& done) {
  check(done.has_expected, "contents are compared without an expected value");
  for (const address_range& range : done.reads) {
    const user by{done.device, access::read};
    const status seen = each_part(call::none, range, by, [&](const mapped_part& part, address at) {
      if (part.from->data.word(part.offset) == done.expected) return;
      misused(misuse_kind::wrong_contents, call::none, {at, part.size_bytes}, done.serial,
              done.name);
    });
    if (!seen) return;  // reported as misuse
  }
}

void fake_state::carry_out_copy(const work& done) {
  check(done.reads.size() == 1 && done.writes.size() == 1, "a copy has not one source and target");
  address target = done.writes.front().base;
  const auto from = [&](const mapped_part& source, address) {
    std::uint64_t offset = source.offset;
    const auto into = [&](const mapped_part& to, address) {
      machine->each_target(
          *to.from, to.offset, to.size_bytes,
          [&](contents& into_data, std::uint64_t at, std::uint64_t skipped, std::uint64_t size) {
            into_data.copy(at, source.from->data, offset + skipped, size);
          });
      offset += to.size_bytes;
    };
    const address_range part{target, source.size_bytes};
    const status put =
        each_part(call::copy, part, user{done.device, access::read_write, true, true}, into);
    (void)put;  // what failed is reported as misuse
    target = part.end();
  };
  const status got =
      each_part(call::copy, done.reads.front(), user{done.device, access::read, true, true}, from);
  (void)got;
}

// The effect on contents. May throw half-way; doing it again completes it.
void fake_state::carry_out(const work& done) {
  check(!done.faulted, "faulted work is carried out");
  if (done.has_expected) check_expected(done);
  if (done.what == work::kind::copy) carry_out_copy(done);
  if (!done.has_tag) return;
  for (const address_range& range : done.writes) {
    const auto fill = [&](const mapped_part& part, address) {
      machine->each_target(*part.from, part.offset, part.size_bytes,
                           [&](contents& into, std::uint64_t at, std::uint64_t,
                               std::uint64_t size) { into.fill(at, size, done.tag); });
    };
    const status filled = each_part(call::none, range, user{done.device, access::read_write}, fill);
    (void)filled;  // what failed is reported as misuse
  }
}

// ---- waiting ----

bool fake_state::is_free(const work& what) const noexcept {
  return reached(what.waits_for) &&
         std::all_of(what.also_waits_for.begin(), what.also_waits_for.end(),
                     [this](const work_point& each) { return reached(each); });
}

bool fake_state::head_ready(const work_queue& which) const noexcept {
  return !which.works.empty() && is_free(which.works.front());
}

bool fake_state::reached(const event_record& event) const noexcept {
  if (!event.is_of_all) return reached(event.at);
  check(event.after.size() <= queues.size(), "an event covers missing queues");
  for (std::uint32_t i = 0; i < event.after.size(); ++i) {
    if (!reached(work_point{i, event.after[i]})) return false;
  }
  return true;
}

// Waits for nothing where everything is reached, or lies before in the same queue.
work fake_state::wait_behind(const event_record& event, std::uint32_t queue) const {
  check(queue < queues.size(), "a wait is for no queue");
  check(event.after.size() <= queues.size(), "an event covers missing queues");
  work wait{};
  wait.what = work::kind::wait;
  if (!event.is_of_all) {
    if (event.at.queue != queue && !reached(event.at)) wait.waits_for = event.at;
    return wait;
  }
  for (std::uint32_t i = 0; i < event.after.size(); ++i) {
    const work_point last{i, event.after[i]};
    if (i == queue || reached(last)) continue;
    if (wait.waits_for.seq == 0) {
      wait.waits_for = last;
    } else {
      wait.also_waits_for.push_back(last);
    }
  }
  return wait;
}

// Waits whose work has finished are over, in the manual schedule too.
void fake_state::pass_waits() {
  check(!queues.empty() && queues.front().open, "the default stream has no queue");
  bool passed = true;
  while (passed) {
    passed = false;
    for (std::uint32_t i = 0; i < queues.size(); ++i) {
      while (head_ready(queues[i]) && queues[i].works.front().what == work::kind::wait) {
        finish_head(i);
        passed = true;
      }
    }
  }
}

void fake_state::wait_for(work_point until) {
  check(until.queue < queues.size(), "a point is waited for in no queue");
  if (!manual) {
    now_ns = std::max(now_ns, finish_time(until));
    machine->now_ns = std::max(machine->now_ns, now_ns);
    run_due();
    check(reached(until), "time has passed a point that has not been reached");
    return;
  }
  // Only what the point needs: its queue up to it, and what waits in there name, until no more.
  std::vector<std::uint64_t> needed(queues.size(), 0);
  needed[until.queue] = until.seq;
  const auto need = [&needed](const work_point& on) {
    if (on.seq <= needed[on.queue]) return false;
    needed[on.queue] = on.seq;
    return true;
  };
  bool more = true;
  while (more) {
    more = false;
    for (std::uint32_t i = 0; i < queues.size(); ++i) {
      for (std::uint64_t seq = queues[i].finished_seq + 1; seq <= needed[i]; ++seq) {
        const work& next = queues[i].works[seq - queues[i].finished_seq - 1];
        more = need(next.waits_for) || more;
        for (const work_point& each : next.also_waits_for) more = need(each) || more;
      }
    }
  }
  while (!reached(until)) {
    bool moves = false;
    for (std::uint32_t i = 0; i < queues.size(); ++i) {
      while (queues[i].finished_seq < needed[i] && head_ready(queues[i])) {
        start(queues[i].works.front());
        finish_head(i);
        moves = true;
      }
    }
    check(moves, "work waits for itself");
  }
  pass_waits();
}

}  // namespace vmm::fake
