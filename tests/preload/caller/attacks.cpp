// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes that attack the exchange of legacy IPC. They use the library's own messages, so that
// each of their messages is wrong in one field only.
#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "../../../modules/share/ipc_wire.hpp"
#include "driver.h"
#include "two_processes.h"
#include "words.h"

namespace caller {
namespace {

namespace wire = vmm::ipc;

constexpr uid_t stranger = 65534;
constexpr std::size_t block_bytes = 3 * mebibyte;

wire::wire_handle wire_of(const ipc_handle& from) {
  wire::wire_handle handle{};
  std::memcpy(&handle, &from, sizeof handle);
  return handle;
}

wire::place_name socket_of(const wire::wire_handle& handle) {
  for (std::size_t i = 0; i < wire::folder_count; ++i) {
    const wire::place_name name = wire::socket_in(wire::folder_at(i, geteuid()), handle.token);
    struct stat about{};
    if (stat(name.text.data(), &about) == 0) return name;
  }
  must(false, "the socket of a process that shares");
  return {};
}

wire::descriptor connect_to(const wire::wire_handle& handle) {
  const wire::place_name name = socket_of(handle);
  const auto made =
      wire::os::connect_at(name.text.data(), name.size, wire::os::deadline_in(wire::exchange_ms));
  must(made.failure == 0, "a connection");
  return wire::descriptor(made.descriptor);
}

int count_descriptors() {
  int count = 0;
  for (int number = 0; number < 1024; ++number) count += fcntl(number, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A child that shares one block, prints its handle, and ends on command.
pid_t start_owner(both_ways& pipes, const driver& cu) {
  return start_child(pipes, [&](int from, int to) {
    start(cu);
    say(to, handle_of(cu, make(cu, block_bytes, 0x5a)));
    (void)hear<int>(from);
  });
}

// What an impostor changes of the owner's reply.
struct lie {
  std::string_view name;
  wire::wire_reply reply{};
  std::uint64_t piece_bytes = 0;  // of each piece, where it is not 0
  std::size_t descriptor_count = 1;
  bool is_stranger = false;
};

std::vector<lie> all_lies(const wire::received_block& honest) {
  const wire::wire_reply right{honest.pieces.size(), honest.offset_bytes, honest.size_bytes};
  constexpr std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  const auto& [count, offset_bytes, size_bytes] = right;
  return {
      {"nothing", right},
      {.name = "user", .reply = right, .is_stranger = true},
      {"offset", {count, last - block_bytes + 1, size_bytes}},
      {"size", {count, offset_bytes, honest.whole_bytes}},
      {.name = "sum", .reply = {2, offset_bytes, size_bytes}, .piece_bytes = last - mebibyte + 1},
      {"count", {last, offset_bytes, size_bytes}},
      {.name = "two", .reply = right, .descriptor_count = 2},
      {.name = "many", .reply = right, .descriptor_count = 200},
      {.name = "none", .reply = right, .descriptor_count = 0}};
}

// Serves one opener. Returns whether it named a block.
bool answer_as(const lie& what, int listening, const wire::received_block& honest) {
  const wire::descriptor peer(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  must(static_cast<bool>(peer), "an opener");
  const wire::os::deadline until = wire::os::deadline_in(wire::exchange_ms);
  wire::wire_handle wanted{};
  const bool has_asked =
      wire::receive(peer.get(), &wanted, sizeof wanted, nullptr, until) == wire::taken::whole;
  (void)wire::send(peer.get(), &what.reply, sizeof what.reply, -1, until);
  for (std::size_t i = 0; i < honest.pieces.size() || i < what.reply.handle_count; ++i) {
    const wire::shared_piece& piece = honest.pieces[i % honest.pieces.size()];
    const std::uint64_t size = what.piece_bytes != 0 ? what.piece_bytes : piece.size_bytes;
    std::array<int, 253> passed{};
    passed.fill(piece.exported.get());
    if (wire::os::send_message(peer.get(), {reinterpret_cast<const std::byte*>(&size), sizeof size},
                               {passed.data(), what.descriptor_count}, until) != 0)
      break;  // the opener has seen enough
  }
  return has_asked;
}

// Listens at the owner's name, which has ended, and lies once.
void impersonate(const lie& what, const wire::wire_handle& handle, const wire::place_name& name,
                 const wire::received_block& honest, int from, int to) {
  (void)unlink(name.text.data());
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  std::memcpy(place.sun_path, name.text.data(), name.size);
  const int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  must(bind(listening, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0, "the name");
  must(!what.is_stranger || seteuid(stranger) == 0, "another user");
  must(listen(listening, 4) == 0, "a socket");  // from here the kernel says whose it is
  say(to, handle);
  say(to, answer_as(what, listening, honest) ? 1 : 0);
  (void)hear<int>(from);
}

}  // namespace

// A process that has ended, another one at its socket's name, and a third that opens.
void ipc_impostor(const arguments& all) {
  must(all.size() == 1, "the name of a lie");
  const driver cu = load();
  both_ways with_owner{};
  const pid_t owner = start_owner(with_owner, cu);
  const auto handle = hear<ipc_handle>(with_owner.to_parent[0]);
  const wire::wire_handle wanted = wire_of(handle);
  const wire::place_name name = socket_of(wanted);
  wire::received_block honest;
  must(wire::fetch_from(connect_to(wanted).get(), wanted, wire::os::deadline_in(10'000), honest),
       "the block");
  say(with_owner.to_child[1], 1);
  (void)code_of(owner);
  for (const lie& each : all_lies(honest)) {
    if (each.name != all[0]) continue;
    both_ways with_impostor{};
    const pid_t impostor = start_child(with_impostor, [&](int from, int to) {
      impersonate(each, wanted, name, honest, from, to);
    });
    (void)hear<wire::wire_handle>(with_impostor.to_parent[0]);
    start(cu);
    const int before = count_descriptors();
    device_pointer at = 0;
    const result_code answer = cu.ipc_open(&at, handle, 1);
    const int more = count_descriptors() - before;
    std::printf("open %d, more descriptors %d", answer, more);
    std::printf(", requested %d\n", hear<int>(with_impostor.to_parent[0]));
    say(with_impostor.to_child[1], 1);
    (void)code_of(impostor);
    (void)unlink(name.text.data());
    return;
  }
  must(false, "a lie of that name");
}

// Many connections without a request, and some with requests and no reads, stop no other.
void ipc_silent(const arguments&) {
  const driver cu = load();
  both_ways pipes{};
  const pid_t owner = start_owner(pipes, cu);
  const auto handle = hear<ipc_handle>(pipes.to_parent[0]);
  const wire::wire_handle wanted = wire_of(handle);
  start(cu);
  std::vector<wire::descriptor> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect_to(wanted));
  for (std::size_t i = 0; i < silent.size(); i += 4)
    (void)wire::send(silent[i].get(), &wanted, sizeof wanted, -1, wire::os::deadline_in(0));
  device_pointer at = 0;
  std::printf("open %d", cu.ipc_open(&at, handle, 1));
  std::printf(", close %d\n", cu.ipc_close(at));
  say(pipes.to_child[1], 1);
  end_child(owner);
}

// A process of another user that gets as far as the socket is not listened to.
void ipc_stranger(const arguments&) {
  const driver cu = load();
  both_ways pipes{};
  const pid_t owner = start_owner(pipes, cu);
  const wire::wire_handle wanted = wire_of(hear<ipc_handle>(pipes.to_parent[0]));
  const wire::place_name name = socket_of(wanted);
  must(seteuid(stranger) == 0, "another user");
  struct stat about{};
  std::printf("sees the socket %d\n", stat(name.text.data(), &about) == 0 ? 1 : 0);
  (void)setfsuid(0);  // as if the folder were open
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  std::memcpy(place.sun_path, name.text.data(), name.size);
  const wire::descriptor peer(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  must(connect(peer.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0,
       "a connection");
  (void)wire::send(peer.get(), &wanted, sizeof wanted, -1, wire::os::deadline_in(10'000));
  wire::wire_reply reply{};
  const wire::taken came =
      wire::receive(peer.get(), &reply, sizeof reply, nullptr, wire::os::deadline_in(10'000));
  std::printf("gets a reply %d\n", came == wire::taken::whole ? 1 : 0);
  must(seteuid(0) == 0, "the first user");
  say(pipes.to_child[1], 1);
  end_child(owner);
}

}  // namespace caller
