// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no bytes and no peer break the protocol of shared memory: what is taken is exactly what
// could have been sent, what is not ends the connection with an error, and no descriptor stays
// open.
// Method: the first byte chooses. 0: the rest is a message. 1: a peer that has the secret follows
// the rest as a program of messages, some honest, some with bytes changed, into a session without a
// socket. 2: the same through a real connection with descriptors, into a channel that imports what
// it is offered. From 252 on: the rest is the reply of a server of the preload library's legacy
// IPC.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../modules/share/ipc_wire.hpp"
#include "../tools/program/standard.hpp"
#include "input.hpp"

import vmm.backend;
import vmm.host;
import vmm.share;

namespace {

using fuzz::insist, fuzz::reader;
using vmm::share_message, vmm::share_session;

void parse(reader in) {
  // Whole messages as they are; others are given the size, so that the parser sees past it.
  vmm::share_bytes bytes{};
  std::memcpy(bytes.data(), in.data, in.size < bytes.size() ? in.size : bytes.size());
  const std::span<const std::byte> whole(reinterpret_cast<const std::byte*>(in.data), in.size);
  for (const std::span<const std::byte> given : {whole, std::span<const std::byte>(bytes)}) {
    const auto message = vmm::decode_message(given);
    if (!message) continue;
    insist(given.size() == vmm::share_message_bytes, "a message of another size is taken");
    const vmm::share_bytes again = vmm::encode_message(*message);
    insist(std::memcmp(again.data(), given.data(), again.size()) == 0, "bytes do not come back");
    insist(vmm::descriptor_count_of(*message) <= vmm::share_parts_max, "too many descriptors");
    if (message->block.part_count != 0)
      insist(vmm::check_share_description(message->block).has_value(), "a block that is none");
  }
}

constexpr std::uint64_t part_bytes = 4096;

vmm::share_secret bytes_of(unsigned char seed) {
  vmm::share_secret made;
  for (std::size_t i = 0; i < made.bytes.size(); ++i)
    made.bytes[i] = static_cast<std::byte>(seed + i);
  return made;
}

vmm::share_description block_of(std::uint8_t shape) {
  vmm::share_description block;
  block.kind = (shape & 1U) != 0 ? vmm::share_kind::fabric : vmm::share_kind::posix_fd;
  block.where = vmm::host();
  block.granularity_bytes = part_bytes;
  block.part_count = 1 + (shape >> 1U) % 4;
  for (std::uint32_t i = 0; i < block.part_count; ++i) block.part_bytes[i] = part_bytes;
  block.size_bytes = block.part_count * part_bytes;
  return block;
}

// A message as an honest peer would send it now, if it may.
vmm::result<share_message> honest(share_session& peer, reader& in) {
  const std::uint8_t kind = in.byte();
  const std::uint64_t id = 1 + in.byte() % 8;
  vmm::share_description block = block_of(static_cast<std::uint8_t>(kind >> 3U));
  switch (kind % 7) {
    case 0:
    case 1: return peer.offer(block);
    case 2: block.id = id; return peer.update(block);
    case 3: return peer.withdraw(id);
    case 4: return peer.accept(id);
    case 5: return peer.refuse_offer(id, vmm::errc::out_of_memory);
    default: return peer.release(id);
  }
}

// Bytes changed as the input says: none, a few, or a message by hand.
void distort(vmm::share_bytes& bytes, reader& in) {
  for (std::uint8_t left = in.byte() % 4; left > 0; --left) {
    const std::size_t at = in.byte() | (in.byte() & 7U) << 8U;
    bytes[at % bytes.size()] ^= static_cast<std::byte>(in.byte());
  }
}

struct two_sessions {
  share_session peer{vmm::share_role::connecting, bytes_of(1), bytes_of(2).bytes};
  share_session victim{vmm::share_role::accepting, bytes_of(1), bytes_of(3).bytes};

  two_sessions() {
    insist(victim.take(peer.hello()) && peer.take(victim.hello()), "no greeting");
    insist(victim.take(peer.proof().value()) && peer.take(victim.proof().value()), "no proof");
  }
};

void play_session(reader in) {
  static const two_sessions opened;  // proofs are the dear part
  share_session peer = opened.peer;
  share_session victim = opened.victim;
  while (!in.empty() && !victim.is_closed()) {
    if (in.byte() % 4 == 0) {  // the victim's turn: it lends and replies
      const auto message = honest(victim, in);
      if (message) (void)peer.take(*message);
      continue;
    }
    const auto message = honest(peer, in);
    if (!message) continue;
    vmm::share_bytes bytes = vmm::encode_message(*message);
    distort(bytes, in);
    const auto came = vmm::decode_message(bytes);
    if (!came) return;  // the channel would be closed
    const auto taken = victim.take(*came);
    insist(taken.has_value() != victim.is_closed(),
           "an error leaves a session open, or none ends it");
    insist(victim.validate().has_value(), "the tables of a session are broken");
  }
}

// ---- a real connection ----

// A sealed memory file of a part's size, a larger one, one that may shrink, or no memory at all.
int descriptor_of(std::uint8_t kind) {
  if (kind % 4 == 3) return ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  insist(::ftruncate(file, kind % 4 == 1 ? 3 * part_bytes : part_bytes) == 0, "no memory file");
  if (kind % 4 != 2)
    insist(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0, "no seals");
  return file;
}

void send_raw(int end, const vmm::share_bytes& bytes, std::size_t size, std::size_t count,
              std::uint8_t kind) {
  constexpr std::size_t count_max = 8;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(count_max * sizeof(int))> control{};
  std::array<int, count_max> passed{};
  iovec part{const_cast<std::byte*>(bytes.data()), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  for (std::size_t i = 0; i < count; ++i) passed[i] = descriptor_of(kind);
  if (count != 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(head), passed.data(), count * sizeof(int));
  }
  (void)::sendmsg(end, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  for (std::size_t i = 0; i < count; ++i) ::close(passed[i]);
}

void hear(int end, share_session& peer) {
  vmm::share_bytes bytes{};
  insist(::recv(end, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
         "the victim says nothing");
  insist(peer.take(vmm::decode_message(bytes).value()).has_value(), "the victim lies");
}

struct connection {
  vmm::share_channel victim;
  share_session peer{vmm::share_role::connecting, bytes_of(1), bytes_of(2).bytes};
  int end = -1;

  connection() {
    std::array<int, 2> ends{};
    insist(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "no sockets");
    end = ends[0];
    std::thread accepting([&] {
      auto made = vmm::share_channel::adopt(ends[1], vmm::share_role::accepting,
                                            {.secret = bytes_of(1), .timeout_ms = 60'000});
      insist(made.has_value(), "an honest peer is refused");
      victim = std::move(*made);
    });
    send_raw(end, vmm::encode_message(peer.hello()), vmm::share_message_bytes, 0, 0);
    hear(end, peer);
    send_raw(end, vmm::encode_message(peer.proof().value()), vmm::share_message_bytes, 0, 0);
    hear(end, peer);
    accepting.join();
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() { ::close(end); }
};

// What a user of the channel does with an event.
void answer(vmm::share_channel& victim, vmm::host_driver& driver, vmm::share_event& event,
            vmm::imported_block& mine) {
  if (event.kind == vmm::share_event::what::offered) {
    auto made = vmm::imported_block::import_block(driver, event.block);
    if (!made) {
      (void)victim.refuse_offer(event.id, made.error().code);
      return;
    }
    if (made->map()) made->data_address().as<char>()[made->size_bytes() - 1] = 'f';
    mine = std::move(*made);
    (void)victim.accept(event.id);
  } else if (event.kind == vmm::share_event::what::updated && event.id == mine.id()) {
    if (mine.update(event.block)) (void)victim.accept(event.id);
  } else if (event.kind == vmm::share_event::what::withdrawn && event.id == mine.id()) {
    (void)victim.give_back(mine);
  }
}

void play_connection(reader in) {
  static vmm::host_driver driver =
      vmm::host_driver::open({.recommended_bytes = part_bytes}).value();
  connection both;
  vmm::imported_block mine;
  while (!in.empty() && both.victim.is_open()) {
    const auto message = honest(both.peer, in);
    if (!message) continue;
    vmm::share_bytes bytes = vmm::encode_message(*message);
    distort(bytes, in);
    const std::uint8_t how = in.byte();
    const std::size_t honest_count = vmm::descriptor_count_of(*message);
    send_raw(both.end, bytes, how % 16 == 15 ? bytes.size() - how : bytes.size(),
             how % 8 == 7 ? how / 8 % 8 : honest_count, in.byte());
    for (auto event = both.victim.next(0); event; event = both.victim.next(0))
      answer(both.victim, driver, *event, mine);
  }
  insist(mine.release().has_value(), "a block is not released");
  insist(driver.resource_counts().empty(), "the importer keeps something");
}

// ---- legacy IPC of the preload library ----

template <class Message>
void send_any(int end, const Message& what, std::size_t size, std::size_t count,
              std::uint8_t kind) {
  vmm::share_bytes bytes{};
  std::memcpy(bytes.data(), &what, sizeof what);
  send_raw(end, bytes, size, count, kind);
}

// A number that is right, near a power of two, or any.
std::uint64_t number_of(reader& in, std::uint64_t right) {
  const std::uint8_t how = in.byte();
  if (how < 128) return right;
  if (how < 192) return (std::uint64_t{1} << how % 64) - how % 2;
  if (how < 224) return ~std::uint64_t{0} - in.byte() * part_bytes;
  return std::uint64_t{in.byte()} << in.byte() % 64;
}

void play_server(reader in) {
  namespace ipc = vmm::ipc;
  std::array<int, 2> ends{};
  insist(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "no sockets");
  ipc::wire_handle handle{};
  handle.size_bytes = part_bytes;
  const std::uint64_t count = 1 + in.byte() % 4;
  ipc::wire_reply reply{number_of(in, count), number_of(in, 0), number_of(in, handle.size_bytes)};
  send_any(ends[1], reply, sizeof reply - in.byte() % 128 / 127, in.byte() % 64 / 63, 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t size = number_of(in, part_bytes);
    const std::uint8_t how = in.byte();
    send_any(ends[1], size, sizeof size - how % 32 / 31, how % 8 == 7 ? how / 8 % 8 : 1, how);
  }
  ::shutdown(ends[1], SHUT_WR);
  {
    ipc::received_block taken;
    const bool is_taken = ipc::fetch_from(ends[0], handle, ipc::os::deadline_in(1000), taken);
    std::uint64_t whole = 0;
    for (const ipc::shared_piece& each : taken.pieces) {
      insist(each.size_bytes <= ~whole, "a sum has wrapped");
      whole += each.size_bytes;
      insist(::fcntl(each.exported.get(), F_GETFD) == FD_CLOEXEC, "a piece has no descriptor");
    }
    insist(!is_taken || taken.pieces.size() == reply.handle_count, "a piece is missing");
    insist(!is_taken || taken.size_bytes == handle.size_bytes, "a block of another size is taken");
    const bool is_inside =
        taken.offset_bytes <= whole && taken.size_bytes <= whole - taken.offset_bytes;
    insist(!is_taken || is_inside, "a block lies outside of its memory");
  }
  for (const int each : ends) ::close(each);
}

// The lowest descriptor that is free.
int lowest_free() {
  const int found = ::dup(0);
  ::close(found);
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const reader rest{data + 1, size - 1};
  if (data[0] >= 252) {
    const int before = lowest_free();
    play_server(rest);
    insist(lowest_free() == before, "a descriptor stays open");
    return 0;
  }
  switch (data[0] % 3) {
    case 0: parse(rest); break;
    case 1: play_session(rest); break;
    default: {
      play_connection({rest.data, 0});  // opens what stays open
      const int before = lowest_free();
      play_connection(rest);
      insist(lowest_free() == before, "a descriptor stays open");
    }
  }
  return 0;
}
