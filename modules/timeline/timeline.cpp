// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.timeline;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr int destroy_attempts = 3;
// No stream's number.
constexpr stream_handle stream_gone = static_cast<stream_handle>(~std::uint64_t{0});

}  // namespace

ticket* ticket_home::acquire() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  ticket* point = with_event_;
  if (point != nullptr) {
    with_event_ = point->next_free;
    point->next_free = nullptr;
    check(point->event != event_handle::none, "a ticket that kept its event has none");
  } else {
    point = pool_.acquire();
    if (point == nullptr) return nullptr;
    point->event = event_handle::none;
  }
  check(point->reference_count.load(std::memory_order_relaxed) == 0,
        "tickets I1: a ticket is handed out while referred to");
  check(point->next_free == nullptr, "a ticket in use is still in a list");
  point->home = this;
  point->reference_count.store(1, std::memory_order_relaxed);
  point->has_passed.store(true, std::memory_order_relaxed);
  return point;
}

void ticket_home::recycle(ticket& point) noexcept {
  check(point.reference_count.load(std::memory_order_relaxed) == 0,
        "a ticket is recycled while referred to");
  check(point.home == this, "a ticket is recycled in another home");
  check(point.next_free == nullptr, "a ticket is recycled twice");
  if (!made_in_.is_here()) return;
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (point.event == event_handle::none) {
    pool_.release(point);
    return;
  }
  point.next_free = with_event_;
  with_event_ = &point;
}

event_handle ticket_home::take_event() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (with_event_ == nullptr) return event_handle::none;
  ticket* const point = with_event_;
  with_event_ = point->next_free;
  point->next_free = nullptr;
  check(point->reference_count.load(std::memory_order_relaxed) == 0,
        "tickets I1: the event of a ticket in use is taken");
  const event_handle event = std::exchange(point->event, event_handle::none);
  check(event != event_handle::none, "a ticket that kept its event has none");
  pool_.release(*point);
  return event;
}

void ticket_ref::reset() noexcept {
  ticket* const point = std::exchange(point_, nullptr);
  if (point == nullptr) return;
  // Before the reference ends: afterwards the ticket may be reused.
  check(point->home != nullptr, "a reference to a ticket without an owner");
  const std::uint32_t before = point->reference_count.fetch_sub(1, std::memory_order_acq_rel);
  check(before > 0, "a ticket loses a reference that it does not have");
  if (before == 1) point->home->recycle(*point);
}

timeline::~timeline() {
  for (int left = destroy_attempts; waiter_ && left > 0; --left) {
    if (driver_->destroy_stream(*waiter_)) break;
  }
  for (event_handle kept = home_.take_event(); kept != event_handle::none;
       kept = home_.take_event()) {
    // Errors are dropped: the owner is ending. A fault that strikes once is outlived.
    for (int left = destroy_attempts; left > 0 && !driver_->destroy_event(kept);) --left;
  }
}

// Perhaps without an event, and marked as passed.
result<ticket_ref> timeline::blank_ticket(stream_handle stream, std::uint64_t identity) noexcept {
  ticket* const raw = home_.acquire();
  if (raw == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for a ticket");
  raw->stream = stream;
  raw->identity = identity;
  raw->generation = generation_.load(std::memory_order_acquire);
  raw->is_late.store(false, std::memory_order_relaxed);
  check(raw->reference_count.load(std::memory_order_relaxed) == 1,
        "a ticket is recorded while others refer to it");
  return ticket_ref{raw};
}

status timeline::record_into(ticket& point, bool of_all) noexcept {
  if (point.event == event_handle::none) {
    const result<event_handle> event = driver_->create_event();
    if (!event) return event.error();
    check(*event != event_handle::none, "a driver that creates an event gives a handle");
    point.event = *event;
  }
  return of_all ? driver_->record_all(point.event)
                : driver_->record_event(point.event, point.stream);
}

result<ticket_ref> timeline::record(stream_handle stream) {
  result<ticket_ref> point = prepare(stream);
  if (!point || point->get() == nullptr) return point;
  if (status recorded = record_into(*point->get(), false); !recorded) return recorded.error();
  point->get()->has_passed.store(false, std::memory_order_release);
  return point;
}

result<ticket_ref> timeline::prepare(stream_handle stream) {
  if (!driver_->feature_set().streams) return ticket_ref{};
  if (status named = check_stream(driver_->feature_set(), stream); !named) return named.error();
  return blank_ticket(stream, identity_of(stream));
}

void timeline::cover(const ticket_ref& point) noexcept {
  if (point.get() == nullptr) return;
  ticket& made = *point.get();
  check(made.has_passed.load(std::memory_order_relaxed), "a ticket is covered twice");
  const status covered = record_into(made, false);
  if (!covered && (driver_->synchronize_stream(made.stream) || driver_->synchronize_all())) return;
  made.is_late.store(!covered, std::memory_order_release);
  made.has_passed.store(false, std::memory_order_release);
}

// An event of the stream, or of all work, covers the work that the ticket stands for. A stream that
// is captured meanwhile is not passed to the driver.
status timeline::record_late(ticket& point) {
  if (!point.is_late.load(std::memory_order_acquire)) return {};
  const sync::lock_guard<sync::mutex> lock(late_mutex_);
  if (!point.is_late.load(std::memory_order_acquire)) return {};
  check(point.stream != stream_gone, "a forgotten stream's ticket is late");
  const bool is_named = may_name(point.stream);
  if (is_named && can_capture(driver_->feature_set(), point.stream)) {
    const result<capture_info> seen = driver_->query_capture(point.stream);
    if (!seen) return seen.error();
    if (seen->state != capture_state::none)
      return refuse(errc::in_use, "a stream to wait for is being captured");
  }
  const status recorded = record_into(point, !is_named);
  if (recorded) point.is_late.store(false, std::memory_order_release);
  return recorded;
}

result<ticket_ref> timeline::record_unnamed(stream_handle stream, std::uint64_t identity,
                                            bool is_named) {
  if (status named = check_stream(driver_->feature_set(), stream); !named) return named.error();
  if (is_named || may_name(stream)) {
    result<ticket_ref> own = record(stream);
    const bool is_refused = !own && own.error().code == errc::invalid_argument;
    if (!is_refused) return own;
    if (!can_record_all()) {
      const result<ticket_ref> all = cover_all();
      return all || all.error().code != errc::not_supported ? all : own;
    }
  }
  return record_all_for(stream, identity);
}

result<ticket_ref> timeline::cover_all() {
  if (can_record_all()) return record_all();
  const status waited = driver_->synchronize_all();
  check(driver_->feature_set().streams, "a driver without streams has work to wait for");
  return waited ? result<ticket_ref>{ticket_ref{}} : result<ticket_ref>{waited.error()};
}

result<ticket_ref> timeline::record_all() { return record_all_for(stream_gone, 0); }

result<ticket_ref> timeline::record_all_for(stream_handle stream, std::uint64_t identity) {
  if (!driver_->feature_set().streams) return ticket_ref{};
  check(can_record_all(), "all work is recorded on a driver that has no event for that");
  result<ticket_ref> point = blank_ticket(stream, identity);
  if (!point) return point;
  if (status recorded = record_into(*point->get(), true); !recorded) return recorded.error();
  point->get()->has_passed.store(false, std::memory_order_release);
  return point;
}

result<ticket_ref> timeline::record_behind(std::span<const ticket_ref> points) {
  if (!driver_->feature_set().streams) return ticket_ref{};
  if (!waiter_) {
    const result<stream_handle> made = driver_->create_stream();
    if (!made) return made.error();
    waiter_ = *made;
  }
  for (const ticket_ref& point : points) {
    if (status ordered = order(*waiter_, point); !ordered) return ordered.error();
  }
  result<ticket_ref> all = record(*waiter_);
  if (all) orphan(*all);
  return all;
}

result<bool> timeline::passed(const ticket_ref& point) {
  if (point.known_passed()) return true;
  if (!record_late(*point.get())) return false;
  check(point.get()->event != event_handle::none,
        "tickets I2: a ticket without an event has not passed");
  const result<bool> finished = driver_->query_event(point.get()->event);
  if (finished && *finished) point.get()->has_passed.store(true, std::memory_order_release);
  return finished;
}

result<bool> timeline::finish(stream_handle stream) {
  const result<ticket_ref> point = record_unnamed(stream, 0, true);
  if (point) {
    const status waited = wait(*point);
    return waited ? result<bool>{true} : result<bool>{waited.error()};
  }
  if (point.error().code != errc::invalid_argument) return point.error();
  const status finished = driver_->synchronize_stream(stream);
  if (finished) return true;
  check(finished.error().code != errc::none, "a call fails without an error");
  if (finished.error().code == errc::invalid_argument) return false;
  return finished.error();
}

status timeline::order(stream_handle stream, const ticket_ref& point) {
  if (status named = check_stream(driver_->feature_set(), stream); !named) return named;
  if (point.known_passed()) return {};
  const bool is_same = point.get()->identity != 0 && is_of(stream, *point.get());
  if (is_same && point.get()->identity == identity_of(stream)) return {};
  if (status recorded = record_late(*point.get()); !recorded) return recorded;
  const result<bool> finished = passed(point);
  if (!finished) return finished.error();
  return *finished ? status{} : driver_->wait_event(stream, point.get()->event);
}

status timeline::order_unnamed(stream_handle stream, std::uint64_t identity,
                               const ticket_ref& point) {
  check(stream != stream_gone, "a forgotten stream is ordered");
  if (may_name(stream)) {
    const status ordered = order(stream, point);
    if (ordered || ordered.error().code != errc::invalid_argument) return ordered;
  }
  if (point.known_passed()) return {};
  const bool is_same = identity != 0 && point.get()->identity == identity;
  if (is_same && is_of(stream, *point.get())) return {};
  check(check_stream(driver_->feature_set(), stream).has_value(),
        "an allocator's own stream is another one in each thread");
  return wait(point);
}

// Whether the stream's later work is behind the point anyhow.
bool timeline::is_of(stream_handle stream, const ticket& point) const noexcept {
  const std::uint64_t generation = generation_.load(std::memory_order_acquire);
  check(point.generation <= generation, "a ticket is of a later generation");
  return point.generation == generation && point.stream == stream;
}

std::uint64_t timeline::identity_of(stream_handle stream) const noexcept {
  constexpr std::uint64_t by_handle = ~std::uint64_t{0};
  const features& can = driver_->feature_set();
  const bool is_created = static_cast<std::uint64_t>(stream) >= can.first_created_stream();
  if (streams_forgotten_ || !can.stream_identity || !is_created) return by_handle;
  return driver_->stream_identity(stream);
}

void timeline::orphan(const ticket_ref& point) noexcept {
  if (point.get() == nullptr) return;
  check(point.get()->event != event_handle::none, "a ticket without an event loses its stream");
  point.get()->stream = stream_gone;
}

status timeline::wait(const ticket_ref& point) {
  if (point.known_passed()) return {};
  const bool has_event = record_late(*point.get()).has_value();
  check(!has_event || point.get()->event != event_handle::none,
        "a ticket without an event is waited for");
  const status waited =
      has_event ? driver_->synchronize_event(point.get()->event) : driver_->synchronize_all();
  if (!waited) return waited;
  point.get()->has_passed.store(true, std::memory_order_release);
  return {};
}

}  // namespace vmm
