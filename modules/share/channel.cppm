// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.share:channel - connections over which blocks are lent: sockets, descriptors, leases.
//
// I1  A channel is open only if the peer is the expected user, which is checked before any byte
//     from it is read, and has the secret.
// I2  A message is accepted with exactly its descriptors, each closed by exec. Other descriptors
//     are closed, and the connection with them.
// I3  The connection is the lease: when it ends, by a call or with a process, every block lent on
//     it counts as returned. A forked child closes its copy at once.
// I4  No call waits longer than share_options::timeout_ms for the peer.
// I5  After not_permitted and foreign_error the channel is closed; after a timeout it is unchanged.
//
// In a forked child every call returns not_permitted.
//
// Thread safety: a channel is for one thread at a time. Cost: two system calls for a message, a
// driver call for each handle of a block; no thread, no heap except lists of blocks.
export module vmm.share:channel;

import vmm.backend;
import vmm.base;
import vmm.std;
import :memory;
import :session;
import :wire;

namespace vmm {

/// The phase of a connection's work, for tests and tools.
export enum class share_step : std::uint8_t {
  connected,  // the peer's user was checked
  sending,
  sent,
  receiving,
  received,
};

/// Called at every step. For tests that end a process there, and for logs.
export struct share_watch {
  void (*hook)(void* context, share_step step, share_message_kind kind) = nullptr;
  void* context = nullptr;
};

/// Ends this thread's waits for peers, and for an owner of memory, while it lives. The innermost
/// one counts.
export class share_interruption {
 public:
  /// Waits call `is_over` at least ten times a second. If it returns true, the call fails with
  /// unavailable and EINTR, and has the effects of a timeout.
  share_interruption(bool (*is_over)(void* context), void* context) noexcept;
  ~share_interruption();
  share_interruption(const share_interruption&) = delete;
  share_interruption& operator=(const share_interruption&) = delete;

 private:
  bool (*before_)(void* context) = nullptr;
  void* before_context_ = nullptr;
};

/// A channel's check of its peer, and its timeout.
export struct share_options {
  share_secret secret{};                    ///< the same on both sides
  std::uint32_t timeout_ms = 1000;          ///< of each wait for the peer; at most an hour
  std::optional<std::uint32_t> peer_uid{};  ///< none: this process's own user
  share_watch watch{};
};

/// An event of the peer.
export struct share_event {
  enum class what : std::uint8_t {
    offered,    // a block is offered: import it and accept(), or refuse()
    updated,    // a block that is imported here has changed: imported_block::update() and accept()
    withdrawn,  // the exporter withdraws a block imported here: release it and give_back()
    accepted,   // the peer uses a block that was lent, at `epoch`
    refused,    // the peer refuses a block, for `reason`
    released,   // the peer has given a block back
  };
  what kind = what::offered;
  std::uint64_t id = 0;
  std::uint64_t epoch = 0;
  errc reason = errc::none;
  received_block block;  ///< of offered and updated
};

/// One connection to one peer. Both sides may lend.
export class share_channel {
 public:
  share_channel() = default;
  /// Connects to a share_listener's path. Errors: not_permitted (the directory, its owner or mode;
  /// the peer's user or secret), invalid_argument (the path), unavailable (no process listens, the
  /// peer ended, or ETIMEDOUT).
  [[nodiscard]] static result<share_channel> connect(std::string_view path,
                                                     const share_options& options) noexcept;
  /// Takes over a connected Unix socket of type SOCK_SEQPACKET, such as one end of a socketpair.
  /// On failure the descriptor stays the caller's; a connection that sent its greeting has ended.
  /// One end connects, the other accepts. Errors: invalid_argument (no such socket), as connect.
  [[nodiscard]] static result<share_channel> adopt(int descriptor, share_role role,
                                                   const share_options& options) noexcept;
  share_channel(share_channel&& other) noexcept;
  share_channel& operator=(share_channel&& other) noexcept;
  share_channel(const share_channel&) = delete;
  share_channel& operator=(const share_channel&) = delete;
  /// Ends the connection: blocks lent on it count as returned.
  ~share_channel() { close(); }

  // ---- exporting ----

  /// Offers the block. Effects: it is lent until the peer refuses or releases it, or the connection
  /// ends. Returns its number here. Errors: in_use (share_loans_max are lent), invalid_argument (a
  /// fake driver's handles have no descriptors), as exported_block::describe, unavailable.
  [[nodiscard]] result<std::uint64_t> send(const exported_block& block) noexcept;
  /// send() and await_reply(). Errors: theirs.
  [[nodiscard]] result<std::uint64_t> lend(const exported_block& block) noexcept;
  /// Waits for the reply to send(); withdraws the offer if none comes in time. Returns the number.
  /// Errors: unavailable; the reason of a refusal.
  [[nodiscard]] result<std::uint64_t> await_reply(std::uint64_t id) noexcept;
  /// Notifies the importer that a followed block has changed. Requires: the peer has accepted it.
  /// Effects: returns the new epoch. Errors: as send.
  [[nodiscard]] result<std::uint64_t> update(std::uint64_t id) noexcept;
  /// Withdraws a block. The importer may use it until it has released it.
  [[nodiscard]] status withdraw(std::uint64_t id) noexcept;
  /// withdraw(), unless already called, and waits until the block is released. After a timeout,
  /// call it again to continue.
  [[nodiscard]] status take_back(std::uint64_t id) noexcept;
  [[nodiscard]] loan_state lent(std::uint64_t id) const noexcept { return session_.lent(id); }
  [[nodiscard]] std::uint64_t accepted_epoch(std::uint64_t id) const noexcept {
    return session_.accepted_epoch(id);
  }

  // ---- importing ----

  /// Notifies the exporter that the block is in use at the state of the last event received.
  [[nodiscard]] status accept(std::uint64_t id) noexcept;
  /// Errors: invalid_argument (not offered, or accepted before: return such a block with
  /// give_back).
  [[nodiscard]] status refuse_offer(std::uint64_t id, errc reason) noexcept;
  /// Waits for an offer, imports it, maps it and accepts it; refuses it on failure.
  /// Errors: as next, import_block and map.
  [[nodiscard]] result<imported_block> borrow(driver_ref driver,
                                              const import_options& options = {}) noexcept;
  /// Releases the block and notifies the exporter. Requires: as imported_block::release. Errors: as
  /// there; invalid_argument (it came by another channel), unavailable (the connection has ended;
  /// the block is released).
  [[nodiscard]] status give_back(imported_block& block) noexcept;

  // ---- both ----

  /// Waits for the next event of the peer. Errors: unavailable (with ETIMEDOUT after timeout_ms;
  /// else the connection has ended), foreign_error (the peer broke the protocol).
  [[nodiscard]] result<share_event> next() noexcept { return next(options_.timeout_ms); }
  [[nodiscard]] result<share_event> next(std::uint32_t timeout_ms) noexcept;

  /// Effects: none; false once the connection has ended, here or there. Cost: O(1).
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0 && session_.is_open(); }
  /// For poll(): readable when next() would return at once. Do not read from it. -1 if closed.
  [[nodiscard]] int native() const noexcept { return descriptor_; }
  /// The blocks that are lent on this connection.
  [[nodiscard]] std::size_t lent_count() const noexcept;
  void close() noexcept;

 private:
  friend class share_listener;
  static constexpr std::size_t waiting_max = 2 * share_loans_max;

  struct loan {
    std::uint64_t id = 0;
    std::shared_ptr<export_state> block;
  };
  using shown_block = share_session::block_epoch;  // of the peer's, as last returned by next()
  struct incoming {
    share_message message{};
    received_block block;
  };

  share_channel(int descriptor, share_role role, const share_options& options,
                const share_digest& nonce) noexcept
      : descriptor_(descriptor),
        number_(next_number()),
        options_(options),
        session_(role, options.secret, nonce) {
    check(descriptor >= 0, "a channel is created without a socket");
  }

  // A channel that has only sent its greeting, if this side accepts.
  [[nodiscard]] static result<share_channel> begin(int descriptor, share_role role,
                                                   const share_options& options) noexcept;
  [[nodiscard]] static result<share_channel> open(int descriptor, share_role role,
                                                  const share_options& options) noexcept;
  [[nodiscard]] static std::uint64_t next_number() noexcept;
  [[nodiscard]] status check_peer() noexcept;
  [[nodiscard]] status shake_hands() noexcept;
  [[nodiscard]] status take_greeting(std::int64_t deadline_ns) noexcept;
  [[nodiscard]] status prove() noexcept;
  [[nodiscard]] status usable() const noexcept;
  [[nodiscard]] error fail(const error& why) noexcept;
  [[nodiscard]] status transmit(const share_message& message,
                                std::span<const shared_handle> handles) noexcept;
  // Sends the message that `make` creates; on failure the session is as before.
  template <class Make>
  [[nodiscard]] status say(Make&& make) noexcept {
    if (const status ready = usable(); !ready) return ready;
    const share_session before = session_;
    const result<share_message> message = make();
    if (!message) return message.error();
    const status sent = transmit(*message, {});
    if (!sent && descriptor_ >= 0) session_ = before;
    return sent;
  }
  [[nodiscard]] result<incoming> receive(std::int64_t deadline_ns) noexcept;
  [[nodiscard]] result<share_event> event_of(incoming& came) noexcept;
  [[nodiscard]] result<share_event> read_event(std::int64_t deadline_ns) noexcept;
  [[nodiscard]] result<share_event> wait_for(std::uint64_t id,
                                             std::span<const share_event::what> kinds) noexcept;
  [[nodiscard]] status send_block(share_message& message, const exported_block& block) noexcept;
  void end_loan(std::uint64_t id) noexcept;
  void keep_waiting(share_event&& event);
  share_event show(share_event&& event) noexcept;
  void watch(share_step step, share_message_kind kind) const noexcept {
    if (options_.watch.hook != nullptr) options_.watch.hook(options_.watch.context, step, kind);
  }

  int descriptor_ = -1;
  std::uint64_t number_ = 0;  // of this process; no other channel has it
  process_mark made_in_;
  share_options options_{};
  share_session session_{share_role::connecting, {}, {}};
  std::vector<loan> loans_;
  std::deque<share_event> waiting_;
  std::array<shown_block, share_loans_max> shown_{};
};

/// A socket at a path, which processes connect to.
export class share_listener {
 public:
  share_listener() = default;
  /// Makes the socket. Requires: its directory is this user's, of mode 0700 and no symbolic link;
  /// nothing has the name. Errors: not_permitted (the directory), in_use (the name is taken),
  /// invalid_argument (the name), unavailable.
  [[nodiscard]] static result<share_listener> open(std::string_view path) noexcept;
  share_listener(share_listener&& other) noexcept;
  share_listener& operator=(share_listener&& other) noexcept;
  share_listener(const share_listener&) = delete;
  share_listener& operator=(const share_listener&) = delete;
  ~share_listener() { close(); }

  /// Waits for a connection and for the peer's proof. Connections without a proof do not delay
  /// others: they wait concurrently, over several calls if need be, until one has its proof or they
  /// time out. Errors: unavailable (with ETIMEDOUT after the timeout), not_permitted and
  /// foreign_error (a peer that may not connect; call again).
  [[nodiscard]] result<share_channel> accept(const share_options& options) noexcept;
  /// For poll(). -1 if closed.
  [[nodiscard]] int native() const noexcept { return descriptor_; }
  /// Removes the name. Connections stay.
  void close() noexcept;

 private:
  // A connection without a proof yet.
  struct newcomer {
    share_channel channel;
    std::int64_t deadline_ns = 0;
    bool has_greeted = false;
  };
  static constexpr std::size_t newcomers_max = 32;

  [[nodiscard]] status admit(const share_options& options) noexcept;
  [[nodiscard]] result<bool> listen_to(newcomer& one) noexcept;
  void drop_late(std::int64_t now_ns) noexcept;

  int descriptor_ = -1;
  int directory_ = -1;
  std::vector<newcomer> newcomers_{};
  std::uint64_t inode_ = 0;
  process_mark made_in_;
  std::string path_;
};

}  // namespace vmm
