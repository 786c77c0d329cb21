// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.share:session - the protocol of one connection, without a socket.
//
// A session creates the messages of its side and accepts those of the peer. It decides which
// message is allowed in which state; sockets, descriptors and memory are elsewhere.
//
// I1  No block is offered, and no offer accepted, before both sides have proved that they have the
//     secret. The connecting side proves first.
// I2  A proof depends on the connection, the side and both nonces: none is valid twice.
// I3  A message that the peer may not send in this state ends the session.
// I4  The number of a block is never reused for another block of the connection.
// I5  A session that is open, or closed, has erased its secret.
//
// At most share_loans_max blocks are lent and as many borrowed at a time.
//
// Thread safety: one thread at a time. Cost: constant for each message, O(loans) to find one; a
// proof is one HMAC.
export module vmm.share:session;

import vmm.backend;
import vmm.std;
import :wire;

namespace vmm {

/// The most blocks that may be lent on one channel at a time.
export inline constexpr std::size_t share_loans_max = 64;

/// The secret of two processes: 32 bytes that cannot be guessed.
export struct share_secret {
  std::array<std::byte, 32> bytes{};

  /// The destructor of a copy erases its bytes.
  ~share_secret() { wipe(); }
  /// Effects: sets all bytes to 0; a compiler cannot remove the stores. Cost: O(1).
  void wipe() noexcept;
  /// From the system's random bytes. Errors: unavailable.
  [[nodiscard]] static result<share_secret> make() noexcept;
  /// Reads a file of 32 bytes that this user owns, that no other user may read, and that is not a
  /// symbolic link.
  /// Errors: not_permitted (its owner or mode), invalid_argument (its size), unavailable.
  [[nodiscard]] static result<share_secret> from_file(const char* path) noexcept;
};

/// HMAC-SHA-256 by libcrypto, loaded when it is first needed, or by the kernel. Errors: unavailable
/// where the system has neither.
export [[nodiscard]] result<share_digest> sign_bytes(const share_secret& secret,
                                                     std::span<const std::byte> bytes) noexcept;
/// Whether two digests are the same, in a time that does not depend on where they differ.
export [[nodiscard]] bool is_same_digest(const share_digest& a, const share_digest& b) noexcept;

/// The side of a connection. The connecting side proves first.
export enum class share_role : std::uint8_t { connecting, accepting };

/// The state of a block that is lent or borrowed.
export enum class loan_state : std::uint8_t {
  none,       // not lent on this connection, or given back
  offered,    // the importer has not replied
  accepted,   // in use at the epoch that the importer named last
  withdrawn,  // withdrawn; the importer may still use it
};

/// One connection's protocol.
export class share_session {
 public:
  /// Requires: the nonce is new. Effects: a session before its first message. Cost: O(1).
  share_session(share_role role, const share_secret& secret, const share_digest& nonce) noexcept
      : role_(role), secret_(secret), nonce_(nonce) {}

  /// Effects: none; whether both sides have proved themselves and neither has ended. Cost: O(1).
  [[nodiscard]] bool is_open() const noexcept { return stage_ == stage::open; }
  /// Effects: none. Cost: O(1).
  [[nodiscard]] bool is_closed() const noexcept { return stage_ == stage::closed; }
  /// Effects: none. Cost: O(1).
  [[nodiscard]] share_role role() const noexcept { return role_; }

  // ---- messages that this side sends; each is sent before the next is made ----

  /// Requires: no message was sent. Effects: the first message, with the nonce. Cost: O(1).
  [[nodiscard]] share_message hello() noexcept;
  /// Requires: the peer's hello was accepted. Errors: those of sign_bytes.
  [[nodiscard]] result<share_message> proof() noexcept;
  /// Gives the description its number. Errors: not_permitted (not open), in_use (share_loans_max
  /// are lent), those of check_share_description.
  [[nodiscard]] result<share_message> offer(share_description& block) noexcept;
  /// The block as it is now, at the next epoch. Errors: invalid_argument (not lent, or not
  /// accepted), as offer.
  [[nodiscard]] result<share_message> update(share_description& block) noexcept;
  [[nodiscard]] result<share_message> withdraw(std::uint64_t id) noexcept;
  /// A block as it was at one epoch.
  struct block_epoch {
    std::uint64_t id = 0;
    std::uint64_t epoch = 0;
  };
  /// The block is in use in that state. Errors: invalid_argument (not offered to this side; an
  /// epoch that does not exist, or older than one that was accepted).
  [[nodiscard]] result<share_message> accept(const block_epoch& seen) noexcept;
  /// The same for its newest epoch.
  [[nodiscard]] result<share_message> accept(std::uint64_t id) noexcept {
    return accept(block_epoch{id, borrowed_epoch(id)});
  }
  /// Errors: invalid_argument (not offered to this side, or accepted before: return it instead).
  [[nodiscard]] result<share_message> refuse_offer(std::uint64_t id, errc reason) noexcept;
  [[nodiscard]] result<share_message> release(std::uint64_t id) noexcept;

  // ---- messages of the peer ------

  /// The meaning of a message for this side. `ignored`: it crossed one of this side's.
  enum class meaning : std::uint8_t { greeted, proved, reported, ignored };
  /// Errors: not_permitted (a wrong proof), foreign_error (a message that is not allowed in this
  /// state); the session is then closed.
  [[nodiscard]] result<meaning> take(const share_message& message) noexcept;

  /// Closes the session: it neither accepts nor creates messages.
  void close() noexcept { enter(stage::closed); }

  /// Effects: none; returns the state of a block of this side. Cost: O(loans).
  [[nodiscard]] loan_state lent(std::uint64_t id) const noexcept;
  /// Effects: none; returns the state of a block of the peer. Cost: O(loans).
  [[nodiscard]] loan_state borrowed(std::uint64_t id) const noexcept;
  /// Effects: none; the epoch that the peer named last for a block of its own. Cost: O(loans).
  [[nodiscard]] std::uint64_t borrowed_epoch(std::uint64_t id) const noexcept;
  /// The epoch that the importer uses, of a block that it has accepted.
  [[nodiscard]] std::uint64_t accepted_epoch(std::uint64_t id) const noexcept;
  /// Checks I4. Errors: internal.
  [[nodiscard]] status validate() const noexcept;

 private:
  enum class stage : std::uint8_t { greeting, proving, open, closed };
  struct loan {
    std::uint64_t id = 0;  // 0: the place is free
    std::uint64_t epoch = 0;
    std::uint64_t accepted_epoch = 0;
    loan_state state = loan_state::none;
    bool is_used = false;  // the importer has accepted it
  };
  using loan_table = std::array<loan, share_loans_max>;

  // The loan of this number, of 0 a free place; or null.
  template <class Table>
  [[nodiscard]] static auto* find(Table& loans, std::uint64_t id) noexcept {
    const auto found =
        std::find_if(loans.begin(), loans.end(), [id](const loan& each) { return each.id == id; });
    return found == loans.end() ? nullptr : &*found;
  }
  // I5.
  void enter(stage next) noexcept {
    stage_ = next;
    if (next == stage::open || next == stage::closed) secret_.wipe();
  }
  [[nodiscard]] share_message make(share_message_kind kind) noexcept;
  [[nodiscard]] result<share_digest> proof_of(share_role whose) const noexcept;
  [[nodiscard]] error ends(const error& why) noexcept;
  [[nodiscard]] result<meaning> greet(const share_message& message) noexcept;
  [[nodiscard]] result<meaning> prove(const share_message& message) noexcept;
  [[nodiscard]] result<meaning> take_from_exporter(const share_message& message) noexcept;
  [[nodiscard]] result<meaning> take_from_importer(const share_message& message) noexcept;

  share_role role_;
  stage stage_ = stage::greeting;
  bool has_proved_ = false;  // this side
  share_secret secret_;
  share_digest nonce_;
  share_digest peer_nonce_{};
  std::uint64_t sent_count_ = 0;
  std::uint64_t taken_count_ = 0;
  std::uint64_t last_lent_ = 0;
  std::uint64_t last_borrowed_ = 0;
  loan_table lent_{};
  loan_table borrowed_{};
};

}  // namespace vmm
