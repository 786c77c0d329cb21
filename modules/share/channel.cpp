// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "system.hpp"

module vmm.share;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;

namespace vmm {
namespace {

void close_handles(std::span<const shared_handle> handles) noexcept {
  for (const shared_handle& each : handles) {
    if (each.kind == share_kind::posix_fd && each.descriptor >= 0 &&
        each.descriptor <= std::numeric_limits<int>::max())
      unix_os::close(static_cast<int>(each.descriptor));
  }
}

share_event::what what_of(share_message_kind kind) noexcept {
  check(kind >= share_message_kind::offer && kind <= share_message_kind::release,
        "a greeting is handled as an event");
  switch (kind) {
    case share_message_kind::offer: return share_event::what::offered;
    case share_message_kind::update: return share_event::what::updated;
    case share_message_kind::withdraw: return share_event::what::withdrawn;
    case share_message_kind::accept: return share_event::what::accepted;
    case share_message_kind::refuse: return share_event::what::refused;
    default: return share_event::what::released;
  }
}

errc reason_of(std::uint8_t value) noexcept {
  static_assert(static_cast<std::uint8_t>(errc::none) == 0);
  const bool known = value != 0 && value <= static_cast<std::uint8_t>(errc::internal);
  const errc reason = known ? static_cast<errc>(value) : errc::foreign_error;
  check(reason != errc::none, "a block is refused for no reason");
  return reason;
}

}  // namespace

share_interruption::share_interruption(bool (*is_over)(void* context), void* context) noexcept {
  const unix_os::interruption before = unix_os::interrupt_by({is_over, context});
  before_ = before.is_over;
  before_context_ = before.context;
}
share_interruption::~share_interruption() { unix_os::interrupt_by({before_, before_context_}); }

// ---- opening and closing -------------------------------------------------------------

share_channel::share_channel(share_channel&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      number_(other.number_),
      made_in_(other.made_in_),
      options_(other.options_),
      session_(other.session_),
      loans_(std::move(other.loans_)),
      waiting_(std::move(other.waiting_)),
      shown_(other.shown_) {
  other.session_.close();
  check(!other.is_open(), "a channel that was moved from is open");
}

share_channel& share_channel::operator=(share_channel&& other) noexcept {
  if (this == &other) return *this;
  close();
  check(loans_.empty() || !made_in_.is_here(), "a channel with lent blocks is replaced");
  descriptor_ = std::exchange(other.descriptor_, -1);
  number_ = other.number_;
  made_in_ = other.made_in_;
  options_ = other.options_;
  session_ = other.session_;
  loans_ = std::move(other.loans_);
  waiting_ = std::move(other.waiting_);
  shown_ = other.shown_;
  other.session_.close();
  check(!other.is_open(), "a channel that was moved from is open");
  return *this;
}

void share_channel::close() noexcept {
  session_.close();
  check(descriptor_ >= 0 || !made_in_.is_here() || loans_.empty(),
        "I3: a closed channel has lent blocks");
  if (descriptor_ < 0) return;
  const int descriptor = std::exchange(descriptor_, -1);
  if (!made_in_.is_here()) return;  // the fork has closed this copy
  unix_os::forget_in_children(descriptor);
  unix_os::end_connection(descriptor);
  loans_.clear();
  waiting_.clear();
  check(!is_open(), "a closed channel is open");
}

// Closes the channel after an error that ends the connection.
error share_channel::fail(const error& why) noexcept {
  check(why.code != errc::none, "a channel fails without a reason");
  const bool ends =
      why.code == errc::not_permitted || why.code == errc::foreign_error ||
      (why.code == errc::unavailable && why.native != ETIMEDOUT && why.native != EINTR) ||
      session_.is_closed();
  if (ends) close();
  check(!ends || descriptor_ < 0, "I5: a channel stays open after the peer broke the protocol");
  return why;
}

status share_channel::usable() const noexcept {
  if (!made_in_.is_here()) return refuse_forked();
  if (is_open()) return {};
  return peer_gone(0);
}

std::uint64_t share_channel::next_number() noexcept {
  static std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

result<share_channel> share_channel::begin(int descriptor, share_role role,
                                           const share_options& options) noexcept {
  const result<share_secret> nonce = share_secret::make();
  if (!nonce || !unix_os::close_in_children(descriptor)) {
    unix_os::close(descriptor);
    return nonce ? refuse(errc::in_use, "the process has 512 connections, the limit")
                 : nonce.error();
  }
  check(descriptor >= 0, "a channel is opened without a socket");
  share_channel made(descriptor, role, options, nonce->bytes);
  if (const status peer = made.check_peer(); !peer) return peer.error();
  made.options_.secret.wipe();  // the session has its own copy while it needs it
  made.watch(share_step::connected, share_message_kind::hello);
  if (const status greeted = made.transmit(made.session_.hello(), {}); !greeted)
    return greeted.error();
  return made;
}

result<share_channel> share_channel::open(int descriptor, share_role role,
                                          const share_options& options) noexcept {
  result<share_channel> made = begin(descriptor, role, options);
  if (!made) return made;
  if (const status shaken = made->shake_hands(); !shaken) return shaken.error();
  check(made->is_open(), "I1: two sides shook hands and the session is not open");
  return made;
}

result<share_channel> share_channel::connect(std::string_view path,
                                             const share_options& options) noexcept {
  const unix_os::connected made = unix_os::connect_at(
      path.data(), path.size(), deadline_at(deadline_after(options.timeout_ms)));
  if (made.failure != 0) return place_error({path, made.fault, made.failure, made.mode});
  return open(made.descriptor, share_role::connecting, options);
}

result<share_channel> share_channel::adopt(int descriptor, share_role role,
                                           const share_options& options) noexcept {
  if (const int failure = unix_os::check_connected(descriptor); failure != 0)
    return system_error(errc::invalid_argument, failure,
                        "not a connected Unix socket of type SOCK_SEQPACKET");
  const unix_os::opened own = unix_os::duplicate(descriptor);
  if (own.failure != 0) return socket_error(own.failure);
  result<share_channel> made = open(own.descriptor, role, options);
  if (made) unix_os::close(descriptor);
  return made;
}

status share_channel::check_peer() noexcept {
  check(descriptor_ >= 0, "a closed channel has no peer");
  const unix_os::peer peer = unix_os::peer_of(descriptor_);
  if (peer.failure != 0) return fail(socket_error(peer.failure));
  if (peer.uid == options_.peer_uid.value_or(unix_os::own_uid())) return {};
  return fail(system_error(errc::not_permitted, EACCES, "the peer is another user's process"));
}

status share_channel::take_greeting(std::int64_t deadline_ns) noexcept {
  check(!session_.is_open(), "a greeting comes to a session that is open");
  check(descriptor_ >= 0, "a greeting is awaited on a closed channel");
  result<incoming> came = receive(deadline_ns);
  if (!came) return came.error();
  const result<share_session::meaning> taken = session_.take(came->message);
  return taken ? status{} : status{fail(taken.error())};
}

status share_channel::prove() noexcept {
  check(!session_.is_open(), "a session proves itself that is open");
  const result<share_message> proof = session_.proof();
  return proof ? transmit(*proof, {}) : status{fail(proof.error())};
}

// Both sides have sent their greeting, or will; the side that connected sends its proof first.
status share_channel::shake_hands() noexcept {
  check(!session_.is_open() && !session_.is_closed(), "two sides shake hands twice");
  const std::int64_t until_ns = deadline_after(options_.timeout_ms);
  const bool first = session_.role() == share_role::connecting;
  status done = take_greeting(until_ns);
  if (done && first) done = prove();
  if (!done) return done;
  done = take_greeting(until_ns);
  if (first) return done;
  if (done) return prove();
  const error& why = done.error();
  if (why.code != errc::unavailable || why.native == EINTR) return done;
  return system_error(
      why.code, static_cast<int>(why.native),
      "the peer sent its greeting and no proof: of the two ends one accepts and the "
      "other connects");
}

// ---- messages ------------------------------------------------------------------------

// Sends the message. The handles are closed, also on failure.
status share_channel::transmit(const share_message& message,
                               std::span<const shared_handle> handles) noexcept {
  std::array<int, share_parts_max> passed{};
  std::size_t count = 0;
  bool all_real = true;
  if (descriptor_count_of(message) != 0) {
    for (const shared_handle& each : handles) {
      all_real &= each.descriptor >= 0 && each.descriptor <= std::numeric_limits<int>::max();
      passed[count++] = all_real ? static_cast<int>(each.descriptor) : -1;
    }
  }
  check(count == descriptor_count_of(message), "a message goes without its descriptors");
  check(count == handles.size(), "handles are given that do not go with the message");
  check(descriptor_ >= 0, "a message is sent on a closed channel");
  const share_bytes bytes = encode_message(message);
  watch(share_step::sending, message.kind);
  const int failure =
      all_real
          ? unix_os::send_message(descriptor_, {bytes.data(), bytes.size()}, {passed.data(), count},
                                  deadline_at(deadline_after(options_.timeout_ms)))
          : EBADF;
  close_handles(handles);
  if (failure == 0) {
    watch(share_step::sent, message.kind);
    return {};
  }
  return fail(socket_error(failure));
}

result<share_channel::incoming> share_channel::receive(std::int64_t deadline_ns) noexcept {
  check(descriptor_ >= 0, "a message is awaited on a closed channel");
  share_bytes bytes{};
  std::array<int, unix_os::descriptors_max> descriptors{};
  watch(share_step::receiving, share_message_kind::hello);
  const unix_os::received came = unix_os::receive_message(
      descriptor_, bytes.data(), bytes.size(), descriptors.data(), deadline_at(deadline_ns));
  const auto drop = [&](const error& why) -> error {
    for (std::size_t i = 0; i < came.descriptor_count; ++i) unix_os::close(descriptors[i]);
    return fail(why);
  };
  const auto broken = [](const char* detail) {
    return system_error(errc::foreign_error, EPROTO, detail);
  };
  switch (came.fault) {
    case unix_os::receive_fault::none: break;
    case unix_os::receive_fault::failed: return drop(socket_error(came.failure));
    case unix_os::receive_fault::ended: return drop(peer_gone(came.failure));
    case unix_os::receive_fault::wrong_size:
      return drop(broken("the peer sends a message of another size"));
    case unix_os::receive_fault::cut_descriptors:
      if (const char* const limit = limit_text(came.failure); limit != nullptr)
        return drop(system_error(
            errc::unavailable, came.failure,
            detail_text().add("descriptors of a message were lost: ").add(limit).keep(limit)));
      return drop(broken("descriptors of a message were lost: the peer broke the protocol"));
  }
  const result<share_message> message = decode_message(bytes);
  if (!message) {
    session_.close();
    return drop(message.error());
  }
  if (came.descriptor_count != descriptor_count_of(*message))
    return drop(broken("a message's number of descriptors differs from its header"));
  check(came.descriptor_count <= descriptors.size(), "too many descriptors were received");
  incoming taken;
  taken.message = *message;
  taken.block.block_ = message->block;
  taken.block.channel_ = number_;
  for (std::size_t i = 0; i < came.descriptor_count; ++i)
    taken.block.descriptors_[i] = descriptors[i];
  taken.block.descriptor_count_ = came.descriptor_count;
  check(came.descriptor_count <= share_parts_max, "I2: more descriptors came than a block has");
  taken.block.owns_ = true;
  watch(share_step::received, message->kind);
  return taken;
}

// The event of a message; id 0 if it is out of date.
result<share_event> share_channel::event_of(incoming& came) noexcept {
  const result<share_session::meaning> meaning = session_.take(came.message);
  if (!meaning) return fail(meaning.error());
  share_event event;
  if (*meaning != share_session::meaning::reported) return event;
  check(session_.is_open(), "an event on a session that is not open");
  event.kind = what_of(came.message.kind);
  event.id = came.message.block.id;
  event.epoch = came.message.block.epoch;
  if (event.kind == share_event::what::refused) event.reason = reason_of(came.message.reason);
  if (event.kind == share_event::what::offered || event.kind == share_event::what::updated)
    event.block = std::move(came.block);
  if (session_.lent(event.id) == loan_state::none &&
      (event.kind == share_event::what::refused || event.kind == share_event::what::released))
    end_loan(event.id);
  check(event.id != 0, "an event of a block without a number");
  return event;
}

result<share_event> share_channel::read_event(std::int64_t deadline_ns) noexcept {
  for (;;) {
    result<incoming> came = receive(deadline_ns);
    if (!came) return came.error();
    result<share_event> event = event_of(*came);
    if (!event || event->id != 0) return event;
  }
}

result<share_event> share_channel::next(std::uint32_t timeout_ms) noexcept {
  if (!made_in_.is_here()) return refuse_forked();
  check(waiting_.size() <= waiting_max, "too many events wait");
  if (!waiting_.empty()) {
    share_event event = std::move(waiting_.front());
    waiting_.pop_front();
    check(event.id != 0, "a waiting event names no block");
    return show(std::move(event));
  }
  if (const status ready = usable(); !ready) return ready.error();
  result<share_event> event = read_event(deadline_after(timeout_ms));
  if (!event) return event;
  return show(std::move(*event));
}

// What is handed out of a block is what accept() is about.
share_event share_channel::show(share_event&& event) noexcept {
  if (event.kind != share_event::what::offered && event.kind != share_event::what::updated)
    return std::move(event);
  const auto has_place = [&](const shown_block& each) {
    return each.id == event.id || session_.borrowed(each.id) == loan_state::none;
  };
  auto place = std::find_if(shown_.begin(), shown_.end(),
                            [&](const shown_block& each) { return each.id == event.id; });
  if (place == shown_.end()) place = std::find_if(shown_.begin(), shown_.end(), has_place);
  check(place != shown_.end() || session_.borrowed(event.id) == loan_state::none,
        "more blocks are listed than can be borrowed");
  if (place != shown_.end()) *place = {event.id, event.epoch};
  return std::move(event);
}

// Of a block's updates only the last counts: a peer that sends many fills nothing.
void share_channel::keep_waiting(share_event&& event) {
  if (event.kind == share_event::what::updated) {
    std::erase_if(waiting_, [&](const share_event& each) {
      return each.id == event.id && each.kind == share_event::what::updated;
    });
  }
  check(waiting_.size() < waiting_max, "too many events wait");
  waiting_.push_back(std::move(event));
}

// The event of one of these kinds about this block (0: any); what comes before it waits for next().
result<share_event> share_channel::wait_for(std::uint64_t id,
                                            std::span<const share_event::what> kinds) noexcept {
  check(!kinds.empty(), "a wait is for no event");
  const auto wanted = [&](const share_event& event) {
    return (id == 0 || event.id == id) &&
           std::find(kinds.begin(), kinds.end(), event.kind) != kinds.end();
  };
  const auto earlier = std::find_if(waiting_.begin(), waiting_.end(), wanted);
  if (earlier != waiting_.end()) {
    share_event event = std::move(*earlier);
    waiting_.erase(earlier);
    return show(std::move(event));
  }
  check(waiting_.size() <= waiting_max, "too many events wait");
  const std::int64_t until_ns = deadline_after(options_.timeout_ms);
  for (;;) {
    result<share_event> event = read_event(until_ns);
    if (!event) return event;
    if (wanted(*event)) return show(std::move(*event));
    if (waiting_.size() >= waiting_max)
      return fail(system_error(errc::foreign_error, EPROTO,
                               "the peer's events are not read: too many wait"));
    try {
      keep_waiting(std::move(*event));
    } catch (const std::bad_alloc&) {
      session_.close();
      return fail(refuse(errc::out_of_host_memory, no_list_memory));
    }
  }
}

}  // namespace vmm
