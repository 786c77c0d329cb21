// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "system.hpp"

module vmm.share;

import vmm.backend;
import vmm.std;
import vmm.support;

namespace vmm {
namespace {

constexpr std::uint32_t timeout_ms_max = 3'600'000;

error system_error(errc code, int failure, const char* detail) noexcept {
  check(code != errc::none && detail != nullptr, "something fails for no reason");
  return {code, call::none, failure, unix_os::errno_name(failure), detail};
}

error peer_gone(int failure) noexcept {
  return system_error(errc::unavailable, failure == 0 ? ECONNRESET : failure,
                      "the peer has closed the connection, or has ended: what was lent on it "
                      "counts as given back");
}

error timed_out() noexcept {
  return system_error(errc::unavailable, ETIMEDOUT, "the peer did nothing in the time it has");
}

// What a socket's errno says.
error socket_error(int failure) noexcept {
  check(failure != 0, "a socket fails for no reason");
  switch (failure) {
    case ETIMEDOUT: return timed_out();
    case EPIPE:
    case ECONNRESET: return peer_gone(failure);
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      return system_error(errc::out_of_host_memory, failure,
                          "the system has no descriptor or no memory left for the message");
    case EBADF:
      return system_error(errc::invalid_argument, failure,
                          "a handle has no descriptor that another process can be given");
    default: return system_error(errc::unavailable, failure, "the connection does not work");
  }
}

error place_error(unix_os::place_fault fault, int failure) noexcept {
  check(failure != 0, "a place is at fault and no error says so");
  switch (fault) {
    case unix_os::place_fault::bad_name:
      return system_error(errc::invalid_argument, failure,
                          "a socket's path ends in a name of at most 63 bytes; names without a "
                          "file are not used");
    case unix_os::place_fault::bad_directory:
      return system_error(errc::not_permitted, failure,
                          "the socket's directory is this user's, of mode 0700, and no symbolic "
                          "link");
    case unix_os::place_fault::no_directory:
      return system_error(errc::unavailable, failure,
                          "the socket's directory is not there: make it, of mode 0700");
    case unix_os::place_fault::exists:
      return system_error(errc::in_use, failure,
                          "a file with the socket's name exists: remove it if it is not in use");
    case unix_os::place_fault::not_a_socket:
      return system_error(errc::not_permitted, failure, "the path is not a socket of this user");
    case unix_os::place_fault::none: break;
  }
  return system_error(errc::unavailable, failure, "no process listens at the socket's path");
}

unix_os::deadline deadline_at(std::int64_t at_ns) noexcept { return {at_ns}; }

std::int64_t deadline_after(std::uint32_t timeout_ms) noexcept {
  return unix_os::deadline_in(std::min(timeout_ms, timeout_ms_max)).at_ns;
}

void close_handles(std::span<const shared_handle> handles) noexcept {
  for (const shared_handle& each : handles) {
    if (each.kind == share_kind::posix_fd && each.descriptor >= 0 &&
        each.descriptor <= std::numeric_limits<int>::max())
      unix_os::close(static_cast<int>(each.descriptor));
  }
}

share_event::what what_of(share_message_kind kind) noexcept {
  check(kind >= share_message_kind::offer && kind <= share_message_kind::release,
        "a greeting is taken for an event");
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

constexpr const char* no_list_memory = "no host memory is left for a list of shared blocks";
constexpr const char* too_many_loans = "more is lent than may be";

}  // namespace

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
  check(!other.is_open(), "a channel is open that was moved from");
}

share_channel& share_channel::operator=(share_channel&& other) noexcept {
  if (this == &other) return *this;
  close();
  check(loans_.empty() || !made_in_.is_here(), "a channel is replaced that has something lent");
  descriptor_ = std::exchange(other.descriptor_, -1);
  number_ = other.number_;
  made_in_ = other.made_in_;
  options_ = other.options_;
  session_ = other.session_;
  loans_ = std::move(other.loans_);
  waiting_ = std::move(other.waiting_);
  shown_ = other.shown_;
  other.session_.close();
  check(!other.is_open(), "a channel is open that was moved from");
  return *this;
}

void share_channel::close() noexcept {
  session_.close();
  check(descriptor_ >= 0 || !made_in_.is_here() || loans_.empty(),
        "I3: a closed channel has something lent");
  if (descriptor_ < 0) return;
  const int descriptor = std::exchange(descriptor_, -1);
  if (!made_in_.is_here()) return;  // the fork has closed this copy
  unix_os::forget_in_children(descriptor);
  unix_os::end_connection(descriptor);
  loans_.clear();
  waiting_.clear();
  check(!is_open(), "a channel was closed and is open");
}

// Closes the channel where the error says that the peer is not to be listened to any more.
error share_channel::fail(const error& why) noexcept {
  check(why.code != errc::none, "a channel fails without a reason");
  const bool ends = why.code == errc::not_permitted || why.code == errc::foreign_error ||
                    (why.code == errc::unavailable && why.native != ETIMEDOUT) ||
                    session_.is_closed();
  if (ends) close();
  check(!ends || descriptor_ < 0, "I5: a channel stays open to a peer that broke its word");
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
    return nonce ? refuse(errc::in_use, "the process has as many connections as it may: 512")
                 : nonce.error();
  }
  check(descriptor >= 0, "a channel is opened on nothing");
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
  if (made.failure == ETIMEDOUT) return timed_out();
  if (made.failure != 0) return place_error(made.fault, made.failure);
  return open(made.descriptor, share_role::connecting, options);
}

result<share_channel> share_channel::adopt(int descriptor, share_role role,
                                           const share_options& options) noexcept {
  if (const int failure = unix_os::check_connected(descriptor); failure != 0) {
    unix_os::close(descriptor);
    return system_error(errc::invalid_argument, failure,
                        "not a connected Unix socket of type SOCK_SEQPACKET");
  }
  return open(descriptor, role, options);
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

// Both have said hello, or are about to; the side that connected proves first.
status share_channel::shake_hands() noexcept {
  check(!session_.is_open() && !session_.is_closed(), "two sides shake hands twice");
  const std::int64_t until_ns = deadline_after(options_.timeout_ms);
  const bool first = session_.role() == share_role::connecting;
  status done = take_greeting(until_ns);
  if (done && first) done = prove();
  if (done) done = take_greeting(until_ns);
  if (done && !first) done = prove();
  return done;
}

// ---- messages ------------------------------------------------------------------------

// Sends the message. The handles are closed, whatever comes of it.
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
      return drop(
          broken("descriptors were lost on their way: the peer sends what it may not, or "
                 "this process is at its limit on open files"));
  }
  const result<share_message> message = decode_message(bytes);
  if (!message) {
    session_.close();
    return drop(message.error());
  }
  if (came.descriptor_count != descriptor_count_of(*message))
    return drop(broken("a message comes with another number of descriptors than it says"));
  check(came.descriptor_count <= descriptors.size(),
        "more descriptors came than there is room for");
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

// The event that a message is; id 0 where it means nothing any more.
result<share_event> share_channel::event_of(incoming& came) noexcept {
  const result<share_session::meaning> meaning = session_.take(came.message);
  if (!meaning) return fail(meaning.error());
  share_event event;
  if (*meaning != share_session::meaning::told) return event;
  check(session_.is_open(), "something happens on a session that is not open");
  event.kind = what_of(came.message.kind);
  event.id = came.message.block.id;
  event.epoch = came.message.block.epoch;
  if (event.kind == share_event::what::refused) event.reason = reason_of(came.message.reason);
  if (event.kind == share_event::what::offered || event.kind == share_event::what::updated)
    event.block = std::move(came.block);
  if (session_.lent(event.id) == loan_state::none &&
      (event.kind == share_event::what::refused || event.kind == share_event::what::released))
    end_loan(event.id);
  check(event.id != 0, "something happens to a block without a number");
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
  check(waiting_.size() <= waiting_max, "more events wait than may");
  if (!waiting_.empty()) {
    share_event event = std::move(waiting_.front());
    waiting_.pop_front();
    check(event.id != 0, "an event waits that is about no block");
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
        "more blocks are shown than can be borrowed");
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
  check(waiting_.size() < waiting_max, "more events wait than may");
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
  check(waiting_.size() <= waiting_max, "more events wait than may");
  const std::int64_t until_ns = deadline_after(options_.timeout_ms);
  for (;;) {
    result<share_event> event = read_event(until_ns);
    if (!event) return event;
    if (wanted(*event)) return show(std::move(*event));
    if (waiting_.size() >= waiting_max)
      return fail(system_error(errc::foreign_error, EPROTO, "the peer sends without being read"));
    try {
      keep_waiting(std::move(*event));
    } catch (const std::bad_alloc&) {
      session_.close();
      return fail(refuse(errc::out_of_host_memory, no_list_memory));
    }
  }
}

// ---- exporting -----------------------------------------------------------------------

std::size_t share_channel::lent_count() const noexcept {
  check(loans_.size() <= share_loans_max, too_many_loans);
  return loans_.size();
}

void share_channel::end_loan(std::uint64_t id) noexcept {
  check(id != 0, "a loan ends that has no number");
  std::erase_if(loans_, [id](const loan& each) { return each.id == id; });
}

status share_channel::send_block(share_message& message, const exported_block& block) noexcept {
  check(message.block.id != 0, "a block is sent that has no number");
  std::array<shared_handle, share_parts_max> handles{};
  const std::size_t count = descriptor_count_of(message);
  if (count != 0) {
    if (const status made = block.export_handles(handles); !made) return made;
  }
  return transmit(message, std::span(handles).first(count));
}

result<std::uint64_t> share_channel::send(const exported_block& block) noexcept {
  if (const status ready = usable(); !ready) return ready.error();
  result<share_description> description = block.describe();
  if (!description) return description.error();
  try {
    loans_.reserve(loans_.size() + 1);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, no_list_memory);
  }
  const share_session before = session_;
  result<share_message> message = session_.offer(*description);
  if (!message) return message.error();
  const std::uint64_t id = description->id;
  check(session_.lent(id) == loan_state::offered, "a block is offered and not lent");
  check(id != 0, "a block is lent without a number");
  loans_.push_back({id, block.state_});
  check(loans_.size() <= share_loans_max, too_many_loans);
  if (const status sent = send_block(*message, block); !sent) {
    end_loan(id);
    if (descriptor_ >= 0) session_ = before;
    return sent.error();
  }
  return id;
}

result<std::uint64_t> share_channel::lend(const exported_block& block) noexcept {
  const result<std::uint64_t> id = send(block);
  if (!id) return id;
  constexpr std::array answers{share_event::what::accepted, share_event::what::refused,
                               share_event::what::released};
  const result<share_event> answer = wait_for(*id, answers);
  if (!answer) return answer.error();
  check(answer->id == *id, "the reply names another loan");
  if (answer->kind == share_event::what::accepted) return id;
  return refuse(answer->kind == share_event::what::refused ? answer->reason : errc::unavailable,
                "the peer does not take the block");
}

result<std::uint64_t> share_channel::update(std::uint64_t id) noexcept {
  if (const status ready = usable(); !ready) return ready.error();
  const auto found =
      std::find_if(loans_.begin(), loans_.end(), [id](const loan& each) { return each.id == id; });
  if (found == loans_.end()) return refuse(errc::invalid_argument, "no such block is lent here");
  check(found->block != nullptr, "a loan has no block");
  const exported_block block(found->block);
  result<share_description> description = block.describe();
  if (!description) return description.error();
  description->id = id;
  const share_session before = session_;
  result<share_message> message = session_.update(*description);
  if (!message) return message.error();
  check(session_.lent(id) == loan_state::accepted, "a block changes that the peer does not use");
  if (const status sent = send_block(*message, block); !sent) {
    if (descriptor_ >= 0) session_ = before;
    return sent.error();
  }
  check(description->epoch != 0, "an update has the epoch of the offer");
  return description->epoch;
}

status share_channel::withdraw(std::uint64_t id) noexcept {
  return say([&] { return session_.withdraw(id); });
}

status share_channel::take_back(std::uint64_t id) noexcept {
  if (const status ready = usable(); !ready) return ready;
  constexpr std::array answers{share_event::what::released, share_event::what::refused};
  const bool has_come_back = std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& each) {
    return each.id == id && (each.kind == answers[0] || each.kind == answers[1]);
  });
  if (!has_come_back && session_.lent(id) != loan_state::withdrawn) {
    if (const status asked = withdraw(id); !asked) return asked;
  }
  const result<share_event> answer = wait_for(id, answers);
  check(!answer || session_.lent(id) == loan_state::none, "a block came back and is lent");
  return answer ? status{} : status{answer.error()};
}

// ---- importing -----------------------------------------------------------------------

status share_channel::accept(std::uint64_t id) noexcept {
  if (const status ready = usable(); !ready) return ready;
  const auto seen = std::find_if(shown_.begin(), shown_.end(),
                                 [id](const shown_block& each) { return each.id == id; });
  if (id == 0 || seen == shown_.end())
    return refuse(errc::invalid_argument, "no such block was offered on this connection");
  return say([&] { return session_.accept(*seen); });
}

status share_channel::refuse_offer(std::uint64_t id, errc reason) noexcept {
  return say([&] { return session_.refuse_offer(id, reason); });
}

result<imported_block> share_channel::borrow(driver_ref driver,
                                             const import_options& options) noexcept {
  if (const status ready = usable(); !ready) return ready.error();
  constexpr std::array offers{share_event::what::offered};
  result<share_event> offer = wait_for(0, offers);
  if (!offer) return offer.error();
  result<imported_block> made = imported_block::import_block(driver, offer->block, options);
  status done = made ? status{} : status{made.error()};
  if (done) {
    if (const result<address> mapped = made->map(); !mapped) done = mapped.error();
  }
  if (!done) {
    (void)refuse_offer(offer->id, done.error().code);
    return done.error();
  }
  check(made->id() == offer->id && made->data_address(), "another block is borrowed than offered");
  if (const status told = accept(offer->id); !told) return told.error();
  return made;
}

status share_channel::give_back(imported_block& block) noexcept {
  if (!made_in_.is_here()) return refuse_forked();
  const std::uint64_t id = block.id();
  if (block.channel_ != 0 && block.channel_ != number_)
    return refuse(errc::invalid_argument, "the block came by another connection");
  if (const status released = block.release(); !released) return released;
  check(block.empty(), "a block is given back and has memory");
  return say([&] { return session_.release(id); });
}

// ---- listening -----------------------------------------------------------------------

result<share_listener> share_listener::open(std::string_view path) noexcept {
  share_listener made;
  try {
    made.path_ = path;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a path");
  }
  const unix_os::listening socket = unix_os::listen_at(path.data(), path.size());
  if (socket.failure != 0) return place_error(socket.fault, socket.failure);
  if (!unix_os::close_in_children(socket.descriptor)) {
    unix_os::stop_listening(socket, path.data(), path.size());
    return refuse(errc::in_use, "the process has as many connections as it may: 512");
  }
  check(socket.descriptor >= 0 && socket.directory >= 0, "a listener has no socket");
  check(socket.inode != 0, "a listener's socket has no name");
  made.descriptor_ = socket.descriptor;
  made.directory_ = socket.directory;
  made.inode_ = socket.inode;
  return made;
}

share_listener::share_listener(share_listener&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      directory_(std::exchange(other.directory_, -1)),
      newcomers_(std::move(other.newcomers_)),
      inode_(other.inode_),
      made_in_(other.made_in_),
      path_(std::move(other.path_)) {
  check((descriptor_ >= 0) == (directory_ >= 0), "a listener has a socket and no place");
}

share_listener& share_listener::operator=(share_listener&& other) noexcept {
  if (this == &other) return *this;
  close();
  check(descriptor_ < 0 && directory_ < 0, "a listener is replaced and still listens");
  descriptor_ = std::exchange(other.descriptor_, -1);
  directory_ = std::exchange(other.directory_, -1);
  newcomers_ = std::move(other.newcomers_);
  inode_ = other.inode_;
  made_in_ = other.made_in_;
  path_ = std::move(other.path_);
  return *this;
}

// Takes the connections that wait at the socket.
status share_listener::admit(const share_options& options) noexcept {
  for (std::size_t left = newcomers_max; left > 0; --left) {
    const unix_os::opened came = unix_os::accept_now(descriptor_);
    if (came.failure == ETIMEDOUT) return {};
    if (came.failure != 0) return socket_error(came.failure);
    result<share_channel> made =
        share_channel::begin(came.descriptor, share_role::accepting, options);
    if (!made) return made.error();
    try {
      if (newcomers_.size() == newcomers_max) newcomers_.erase(newcomers_.begin());
      newcomers_.push_back({std::move(*made), deadline_after(options.timeout_ms)});
    } catch (const std::bad_alloc&) {
      return refuse(errc::out_of_host_memory, no_list_memory);
    }
  }
  check(newcomers_.size() <= newcomers_max, "more connections wait than may");
  return {};
}

// Takes what a connection has sent. True once its peer has proved itself.
result<bool> share_listener::listen_to(newcomer& one) noexcept {
  constexpr std::int64_t at_once = 0;
  const status taken = one.channel.take_greeting(at_once);
  if (!taken && taken.error().native == ETIMEDOUT) return false;
  if (!taken) return taken.error();
  if (!std::exchange(one.has_greeted, true)) return false;
  if (const status proved = one.channel.prove(); !proved) return proved.error();
  check(one.channel.is_open(), "I1: two sides shook hands and the session is not open");
  return true;
}

void share_listener::drop_late(std::int64_t now_ns) noexcept {
  std::erase_if(newcomers_, [&](const newcomer& each) { return each.deadline_ns <= now_ns; });
  check(newcomers_.size() <= newcomers_max, "more connections wait than may");
}

result<share_channel> share_listener::accept(const share_options& options) noexcept {
  if (!made_in_.is_here()) return refuse_forked();
  if (descriptor_ < 0) return refuse(errc::invalid_argument, "the listener is closed");
  const std::int64_t until_ns = deadline_after(options.timeout_ms);
  for (std::int64_t now_ns = deadline_after(0);; now_ns = deadline_after(0)) {
    drop_late(now_ns);
    std::array<int, unix_os::waits_max> waits{descriptor_};
    std::array<bool, unix_os::waits_max> ready{};
    std::int64_t next_ns = until_ns;
    for (std::size_t i = 0; i < newcomers_.size(); ++i) {
      waits[i + 1] = newcomers_[i].channel.native();
      next_ns = std::min(next_ns, newcomers_[i].deadline_ns);
    }
    const std::size_t count = newcomers_.size() + 1;
    check(count <= waits.size() && next_ns <= until_ns, "a wait is for too many, or too long");
    const bool any = unix_os::wait_for_any(waits.data(), count, ready.data(), deadline_at(next_ns));
    if (!any && now_ns >= until_ns) return timed_out();
    for (std::size_t i = count - 1; i > 0; --i) {
      if (!ready[i]) continue;
      const auto place = newcomers_.begin() + static_cast<std::ptrdiff_t>(i - 1);
      const result<bool> proved = listen_to(*place);
      if (proved && !*proved) continue;
      newcomer done = std::move(*place);
      newcomers_.erase(place);
      if (!proved) return proved.error();
      return std::move(done.channel);
    }
    if (!ready[0]) continue;
    if (const status admitted = admit(options); !admitted) return admitted.error();
  }
}

void share_listener::close() noexcept {
  newcomers_.clear();
  if (descriptor_ < 0) return;
  const unix_os::listening ended{std::exchange(descriptor_, -1), std::exchange(directory_, -1),
                                 inode_, 0, unix_os::place_fault::none};
  if (!made_in_.is_here()) return unix_os::close(ended.directory);
  check(ended.directory >= 0 && !path_.empty(), "a listener has no place");
  unix_os::forget_in_children(ended.descriptor);
  unix_os::stop_listening(ended, path_.data(), path_.size());
}

}  // namespace vmm
