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

error broken(const char* detail) noexcept {
  return {errc::foreign_error, call::none, EPROTO, "EPROTO", detail};
}

constexpr const char* not_open = "the connection is not open: it has failed, or was closed";
constexpr const char* not_offered = "no such block was offered on this connection";

constexpr std::string_view proof_text = "vmm share proof 1";

}  // namespace

// ---- the secret ----------------------------------------------------------------------

void share_secret::wipe() noexcept { unix_os::wipe(bytes.data(), bytes.size()); }

result<share_secret> share_secret::make() noexcept {
  share_secret secret;
  const int failure = unix_os::random_bytes(secret.bytes.data(), secret.bytes.size());
  if (failure == 0) return secret;
  return error{errc::unavailable, call::none, failure, errno_name(failure),
               "the system gives no random bytes"};
}

result<share_secret> share_secret::from_file(const char* path) noexcept {
  share_secret secret;
  const unix_os::secret_file read =
      unix_os::read_secret(path, secret.bytes.data(), secret.bytes.size());
  if (read.failure != 0)
    return path_error(errc::unavailable, read.failure, path,
                      file_text(read.failure, "the file of the secret cannot be read"));
  if (!read.is_private)
    return path_error(
        errc::not_permitted, EACCES, path,
        "the secret is not in a regular file of this user that others may not use: chmod 600");
  if (read.has_size) return secret;
  constexpr const char* rule = "the file of a secret has exactly 32 bytes";
  const char* const full =
      detail_text().add(rule).add(", not ").add_number(read.size_bytes).keep(rule);
  return path_error(errc::invalid_argument, 0, path, full);
}

result<share_digest> sign_bytes(const share_secret& secret,
                                std::span<const std::byte> bytes) noexcept {
  share_digest digest{};
  const bool made = unix_os::hmac_sha256({secret.bytes.data(), secret.bytes.size()},
                                         {bytes.data(), bytes.size()}, digest.data());
  if (made) return digest;
  return refuse(errc::unavailable,
                "no HMAC-SHA-256 on this system: install OpenSSL's libcrypto, or a kernel with "
                "AF_ALG");
}

bool is_same_digest(const share_digest& a, const share_digest& b) noexcept {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= std::to_integer<unsigned>(a[i]) ^ std::to_integer<unsigned>(b[i]);
  }
  return difference == 0;
}

// ---- tables --------------------------------------------------------------------------

loan_state share_session::lent(std::uint64_t id) const noexcept {
  const loan* const found = id == 0 ? nullptr : find(lent_, id);
  check(found == nullptr || found->state != loan_state::none, "a loan has a number and no state");
  return found == nullptr ? loan_state::none : found->state;
}

loan_state share_session::borrowed(std::uint64_t id) const noexcept {
  const loan* const found = id == 0 ? nullptr : find(borrowed_, id);
  check(found == nullptr || found->state != loan_state::none, "a loan has a number and no state");
  return found == nullptr ? loan_state::none : found->state;
}

std::uint64_t share_session::borrowed_epoch(std::uint64_t id) const noexcept {
  const loan* const found = id == 0 ? nullptr : find(borrowed_, id);
  check(found == nullptr || found->epoch >= found->accepted_epoch, "an epoch decreases");
  return found == nullptr ? 0 : found->epoch;
}

std::uint64_t share_session::accepted_epoch(std::uint64_t id) const noexcept {
  const loan* const found = id == 0 ? nullptr : find(lent_, id);
  check(found == nullptr || found->accepted_epoch <= found->epoch,
        "a peer's epoch is ahead of the block's");
  return found == nullptr ? 0 : found->accepted_epoch;
}

status share_session::validate() const noexcept {
  for (const loan& each : lent_) {
    if (each.id > last_lent_ || (each.id == 0) != (each.state == loan_state::none))
      return refuse(errc::internal, "I4: a block is lent that was never offered");
    if (each.accepted_epoch > each.epoch)
      return refuse(errc::internal, "a peer uses an epoch that does not exist yet");
  }
  for (const loan& each : borrowed_) {
    if (each.id > last_borrowed_ || (each.id == 0) != (each.state == loan_state::none))
      return refuse(errc::internal, "I4: a block is borrowed that was never offered");
    if (each.accepted_epoch > each.epoch)
      return refuse(errc::internal, "an epoch in use does not exist yet");
  }
  return {};
}

// ---- sending -------------------------------------------------------------------------

share_message share_session::make(share_message_kind kind) noexcept {
  check(!is_closed(), "I3: a session that has ended sends a message");
  share_message message;
  message.kind = kind;
  message.sequence = sent_count_++;
  check(sent_count_ != 0, "a count of messages overflows");
  return message;
}

share_message share_session::hello() noexcept {
  check(!has_proved_ && stage_ != stage::open, "a session that has ended sends its hello");
  check(sent_count_ == 0, "a session sends its hello twice");
  share_message message = make(share_message_kind::hello);
  message.digest = nonce_;
  return message;
}

// Over the side that proves, its nonce and the peer's.
result<share_digest> share_session::proof_of(share_role whose) const noexcept {
  check(!is_same_digest(nonce_, peer_nonce_), "I2: both sides have the same nonce");
  check(stage_ < stage::open, "I5: a session signs without its secret");
  std::array<std::byte, proof_text.size() + 1 + 2 * sizeof(share_digest)> text{};
  const share_digest& first = whose == role_ ? nonce_ : peer_nonce_;
  const share_digest& second = whose == role_ ? peer_nonce_ : nonce_;
  std::memcpy(text.data(), proof_text.data(), proof_text.size());
  text[proof_text.size()] = static_cast<std::byte>(whose);
  std::memcpy(text.data() + proof_text.size() + 1, first.data(), first.size());
  std::memcpy(text.data() + proof_text.size() + 1 + first.size(), second.data(), second.size());
  return sign_bytes(secret_, text);
}

result<share_message> share_session::proof() noexcept {
  check(!has_proved_ && sent_count_ > 0, "a session sends its proof twice, or before its hello");
  check(taken_count_ > 0, "a session sends its proof before the peer's hello");
  const result<share_digest> digest = proof_of(role_);
  if (!digest) return digest.error();
  share_message message = make(share_message_kind::proof);
  message.digest = *digest;
  has_proved_ = true;
  // The accepting side proves last, once it has seen the other's proof.
  if (role_ == share_role::accepting && stage_ == stage::proving) enter(stage::open);
  return message;
}

result<share_message> share_session::offer(share_description& block) noexcept {
  if (!is_open()) return refuse(errc::not_permitted, not_open);
  loan* const place = find(lent_, 0);
  if (place == nullptr)
    return refuse(errc::in_use, "64 blocks are lent on this connection: withdraw some");
  share_description numbered = block;
  numbered.id = last_lent_ + 1;
  numbered.epoch = 0;
  if (const status fits = check_share_description(numbered); !fits) return fits.error();
  check(place->state == loan_state::none && numbered.id > last_lent_, "I4: a number is used twice");
  last_lent_ = numbered.id;
  *place = {.id = numbered.id, .state = loan_state::offered};
  paranoid_check([this] { return validate().has_value(); }, "an offer breaks a table");
  block = numbered;
  share_message message = make(share_message_kind::offer);
  message.block = numbered;
  return message;
}

result<share_message> share_session::update(share_description& block) noexcept {
  if (!is_open()) return refuse(errc::not_permitted, not_open);
  loan* const found = block.id == 0 ? nullptr : find(lent_, block.id);
  if (found == nullptr || found->state != loan_state::accepted) {
    return refuse(errc::invalid_argument,
                  "only a block that the peer has accepted, and that was not withdrawn, is "
                  "updated");
  }
  if (const status fits = check_share_description(block); !fits) return fits.error();
  check(found->accepted_epoch <= found->epoch, "a peer's epoch is ahead of the block's");
  block.epoch = ++found->epoch;
  check(found->epoch > found->accepted_epoch, "an update is not newer than the state in use");
  paranoid_check([this] { return validate().has_value(); }, "an update breaks a table");
  share_message message = make(share_message_kind::update);
  message.block = block;
  return message;
}

result<share_message> share_session::withdraw(std::uint64_t id) noexcept {
  if (!is_open()) return refuse(errc::not_permitted, not_open);
  loan* const found = id == 0 ? nullptr : find(lent_, id);
  if (found == nullptr || found->state == loan_state::withdrawn) {
    return refuse(errc::invalid_argument,
                  "no lent block has this number, or it was withdrawn before");
  }
  check(found->id == id, "the withdrawn block is not the requested one");
  found->state = loan_state::withdrawn;
  paranoid_check([this] { return validate().has_value(); }, "withdrawing a block breaks a table");
  share_message message = make(share_message_kind::withdraw);
  message.block.id = id;
  return message;
}

result<share_message> share_session::accept(const block_epoch& seen) noexcept {
  const auto [id, epoch] = seen;
  if (!is_open()) return refuse(errc::not_permitted, not_open);
  loan* const found = id == 0 ? nullptr : find(borrowed_, id);
  if (found == nullptr) return refuse(errc::invalid_argument, not_offered);
  if (epoch > found->epoch || epoch < found->accepted_epoch)
    return refuse(errc::invalid_argument, "the block has no such epoch, or has passed it");
  if (found->state == loan_state::offered) found->state = loan_state::accepted;
  found->is_used = true;
  check(found->accepted_epoch <= found->epoch, "an epoch is accepted before it was received");
  found->accepted_epoch = epoch;
  paranoid_check([this] { return validate().has_value(); }, "accepting a block breaks a table");
  share_message message = make(share_message_kind::accept);
  message.block.id = id;
  message.block.epoch = epoch;
  return message;
}

result<share_message> share_session::refuse_offer(std::uint64_t id, errc reason) noexcept {
  if (!is_open()) return refuse(errc::not_permitted, not_open);
  loan* const found = id == 0 ? nullptr : find(borrowed_, id);
  if (found == nullptr) return refuse(errc::invalid_argument, not_offered);
  if (found->is_used)
    return refuse(errc::invalid_argument, "the block is in use here: give it back");
  check(found->id == id && id <= last_borrowed_, "the returned block is not the requested one");
  *found = {};
  paranoid_check([this] { return validate().has_value(); }, "refusing a block breaks a table");
  share_message message = make(share_message_kind::refuse);
  message.block.id = id;
  message.reason = static_cast<std::uint8_t>(reason);
  return message;
}

result<share_message> share_session::release(std::uint64_t id) noexcept {
  if (!is_open()) return refuse(errc::not_permitted, not_open);
  loan* const found = id == 0 ? nullptr : find(borrowed_, id);
  if (found == nullptr) return refuse(errc::invalid_argument, not_offered);
  check(found->id == id && id <= last_borrowed_, "the returned block is not the requested one");
  *found = {};
  paranoid_check([this] { return validate().has_value(); }, "giving a block back breaks a table");
  share_message message = make(share_message_kind::release);
  message.block.id = id;
  return message;
}

// ---- taking --------------------------------------------------------------------------

error share_session::ends(const error& why) noexcept {
  check(why.code != errc::none, "a session ends for no reason");
  enter(stage::closed);
  return why;
}

result<share_session::meaning> share_session::take(const share_message& message) noexcept {
  if (is_closed()) return broken("a message comes on a connection that has ended");
  if (message.sequence != taken_count_) return ends(broken("a message is missing, or comes twice"));
  ++taken_count_;
  check(taken_count_ != 0, "a count of messages overflows");
  paranoid_check([this] { return validate().has_value(); }, "a message meets a broken table");
  switch (message.kind) {
    case share_message_kind::hello: return greet(message);
    case share_message_kind::proof: return prove(message);
    case share_message_kind::offer:
    case share_message_kind::update:
    case share_message_kind::withdraw: return take_from_exporter(message);
    case share_message_kind::accept:
    case share_message_kind::refuse:
    case share_message_kind::release: return take_from_importer(message);
  }
  return ends(broken("a message of no kind"));
}

result<share_session::meaning> share_session::greet(const share_message& message) noexcept {
  check(message.kind == share_message_kind::hello,
        "a message other than a hello is handled as one");
  check(stage_ != stage::greeting || taken_count_ == 1, "a peer's hello is not its first message");
  if (stage_ != stage::greeting) return ends(broken("the peer sends its hello twice"));
  // A reflected nonce would let the peer reuse this side's signature as its proof.
  if (is_same_digest(message.digest, nonce_))
    return ends(broken("the peer sends this side's own nonce"));
  peer_nonce_ = message.digest;
  stage_ = stage::proving;
  return meaning::greeted;
}

result<share_session::meaning> share_session::prove(const share_message& message) noexcept {
  check(message.kind == share_message_kind::proof,
        "a message other than a proof is handled as one");
  if (stage_ != stage::proving) return ends(broken("the peer sends its proof out of order"));
  const bool first = role_ == share_role::accepting;
  if (first == has_proved_) return ends(broken("the peer sends its proof out of order"));
  const result<share_digest> wanted =
      proof_of(first ? share_role::connecting : share_role::accepting);
  if (!wanted) return ends(wanted.error());
  if (!is_same_digest(*wanted, message.digest)) {
    return ends(error{errc::not_permitted, call::none, EACCES, "EACCES",
                      first ? "the peer has another secret: both sides need the same one"
                            : "the peer has another secret, or connects too: of the two ends one "
                              "accepts and the other connects"});
  }
  if (!first) enter(stage::open);
  check(stage_ != stage::open || has_proved_,
        "I1: a session is open before both sides have proved themselves");
  return meaning::proved;
}

result<share_session::meaning> share_session::take_from_exporter(
    const share_message& message) noexcept {
  if (!is_open())
    return ends(broken("a block is offered before both sides have proved themselves"));
  const std::uint64_t id = message.block.id;
  loan* const found = find(borrowed_, id);
  if (message.kind == share_message_kind::offer) {
    if (id != last_borrowed_ + 1 || message.block.epoch != 0)
      return ends(broken("a block is offered with a number that is not the next one"));
    loan* const place = find(borrowed_, 0);
    if (place == nullptr) return ends(broken("too many blocks are offered on a connection"));
    check(place->state == loan_state::none && found == nullptr, "I4: a number is used twice");
    last_borrowed_ = id;
    *place = {.id = id, .state = loan_state::offered};
    return meaning::reported;
  }
  if (id > last_borrowed_) return ends(broken("a message is about a block that was never offered"));
  if (found == nullptr) return meaning::ignored;  // given back while the message was on its way
  if (message.kind == share_message_kind::withdraw) {
    if (found->state == loan_state::withdrawn) return ends(broken("a block is withdrawn twice"));
    found->state = loan_state::withdrawn;
    return meaning::reported;
  }
  if (found->state != loan_state::accepted || message.block.epoch != found->epoch + 1)
    return ends(broken("a block is updated out of order"));
  found->epoch = message.block.epoch;
  check(found->epoch > found->accepted_epoch, "an update is not newer than the state in use");
  return meaning::reported;
}

result<share_session::meaning> share_session::take_from_importer(
    const share_message& message) noexcept {
  if (!is_open()) return ends(broken("a reply about a block precedes the proofs of both sides"));
  loan* const found = find(lent_, message.block.id);
  if (found == nullptr)
    return ends(broken("the peer replies about a block that is not lent to it"));
  switch (message.kind) {
    case share_message_kind::accept:
      if (message.block.epoch > found->epoch || message.block.epoch < found->accepted_epoch)
        return ends(broken("the peer accepts an epoch that does not exist yet"));
      found->accepted_epoch = message.block.epoch;
      check(found->accepted_epoch <= found->epoch, "a peer's epoch is ahead of the block's");
      if (found->state == loan_state::offered) found->state = loan_state::accepted;
      found->is_used = true;
      return meaning::reported;
    case share_message_kind::refuse:
      if (found->is_used) return ends(broken("the peer refuses what it has accepted"));
      *found = {};
      return meaning::reported;
    default: *found = {}; return meaning::reported;
  }
}

}  // namespace vmm
