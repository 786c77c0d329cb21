// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "ipc_server.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

namespace vmm::ipc {
namespace {

constexpr std::size_t clients_max = 64;
constexpr std::size_t leases_max = 256;

std::int64_t now_ns() noexcept { return os::deadline_in(0).at_ns; }

// One process that opens a block.
struct client {
  int socket = -1;
  os::deadline until{};
  bool is_asking = true;
  std::uint64_t number = 0;
  std::uint64_t next = 0;  // piece
  std::uint64_t count = 0;
};

// One process that counts down counters of this one.
struct lease {
  int socket = -1;
  int process = -1;         // of process_of()
  std::uint64_t inode = 0;  // of the socket
  os::deadline until{};
  std::vector<std::uint64_t> counters;

  [[nodiscard]] bool is_used() const noexcept { return !counters.empty(); }
  [[nodiscard]] bool has_ended() const noexcept { return is_used() && socket < 0 && process < 0; }
};

bool is_lease(const wire_handle& message, std::uint64_t token) noexcept {
  return message.token == token && std::memcmp(message.magic, lease_magic, sizeof lease_magic) == 0;
}

class serving {
 public:
  serving(int listening, std::uint64_t token, const block_source& blocks) noexcept
      : listening_(listening), token_(token), blocks_(blocks) {}

  [[noreturn]] void run() noexcept {
    while (true) {
      std::array<pollfd, clients_max + 1 + leases_max> watched{};
      watched[clients_max] = {listening_, POLLIN, 0};
      for (std::size_t i = 0; i < leases_max; ++i) {
        const lease& each = leases_[i];
        watched[clients_max + 1 + i] = {each.socket < 0 ? each.process : each.socket, POLLIN, 0};
      }
      for (std::size_t i = 0; i < clients_max; ++i) {
        const short events = clients_[i].is_asking ? POLLIN : POLLOUT;
        watched[i] = {clients_[i].socket, events, 0};
      }
      if (poll(watched.data(), watched.size(), wait_ms()) < 0 && errno != EINTR) pause();
      for (std::size_t i = 0; i < clients_max; ++i) {
        client& each = clients_[i];
        if (each.socket < 0) continue;
        const bool stays = watched[i].revents == 0 || go_on(each);
        if (!stays || each.until.at_ns <= now_ns()) end(each);
      }
      for (std::size_t i = 0; i < leases_max; ++i) {
        if (watched[clients_max + 1 + i].revents != 0) go_on(leases_[i]);
        if (leases_[i].has_ended() && leases_[i].until.at_ns <= now_ns()) take_back(leases_[i]);
      }
      if ((watched[clients_max].revents & POLLIN) != 0) accept_one();
    }
  }

 private:
  [[nodiscard]] int wait_ms() const noexcept {
    std::int64_t first_ns = -1;
    const auto consider = [&](bool is_waiting, os::deadline until) {
      if (is_waiting && (first_ns < 0 || until.at_ns < first_ns)) first_ns = until.at_ns;
    };
    for (const client& each : clients_) consider(each.socket >= 0, each.until);
    for (const lease& each : leases_) consider(each.has_ended(), each.until);
    if (first_ns < 0) return -1;
    const std::int64_t rest_ns = std::max<std::int64_t>(first_ns - now_ns(), 0);
    return static_cast<int>((rest_ns + 999'999) / 1'000'000);
  }
  static void pause() noexcept {
    const timespec time{0, 10'000'000};
    (void)nanosleep(&time, nullptr);
  }

  static void end(client& gone) noexcept {
    if (gone.socket >= 0) end_socket(gone.socket);
    gone = {};
  }
  static void end_socket(int socket) noexcept {
    os::forget_in_children(socket);
    os::end_connection(socket);
  }
  // A free place, or that of the oldest client without a request.
  client& make_place() noexcept {
    const auto is_better = [](const client& a, const client& b) {
      if (a.is_asking != b.is_asking) return a.is_asking;
      return a.until.at_ns < b.until.at_ns;
    };
    for (client& each : clients_) {
      if (each.socket < 0) return each;
    }
    client& chosen = *std::min_element(clients_.begin(), clients_.end(), is_better);
    end(chosen);
    return chosen;
  }
  void accept_one() noexcept {
    const int socket = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) {
      // No descriptor is left: others close some.
      if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) pause();
      return;
    }
    if (!is_own_peer(socket)) return os::close(socket);
    client& made = make_place();
    made.socket = socket;
    made.until = os::deadline_in(exchange_ms);
    (void)os::close_in_children(socket);
    if (!go_on(made)) end(made);  // most have sent their request by now
  }

  // Does what can be done without waiting. False where the connection ends.
  [[nodiscard]] bool go_on(client& one) noexcept {
    if (one.is_asking) {
      wire_handle wanted{};
      const taken came = receive(one.socket, &wanted, sizeof wanted, nullptr, {});
      if (came == taken::nothing_yet) return true;
      if (came == taken::whole && is_lease(wanted, token_)) return begin_lease(one, wanted), false;
      const bool is_right = came == taken::whole && wanted.token == token_ &&
                            std::memcmp(wanted.magic, magic, sizeof magic) == 0;
      if (!is_right) return false;
      const wire_reply reply = blocks_.describe(wanted.number);
      if (send(one.socket, &reply, sizeof reply, -1, {}) != 0) return false;
      one.is_asking = false;
      one.number = wanted.number;
      one.count = reply.handle_count;
    }
    for (; one.next < one.count; ++one.next) {
      const int failure = blocks_.send_piece(one.number, one.next, one.socket);
      if (failure != 0) return failure == ETIMEDOUT;
    }
    return false;
  }

  // The connection becomes a lease, unless its process cannot be seen to end.
  void begin_lease(client& from, const wire_handle& first) noexcept {
    lease* const place = std::find_if(leases_.begin(), leases_.end(),
                                      [](const lease& each) { return !each.is_used(); });
    if (blocks_.take_back == nullptr || place == leases_.end()) return;
    place->process = process_of(from.socket);
    if (place->process < 0 || !add(*place, first.number)) {
      os::close(std::exchange(place->process, -1));
      return;
    }
    place->inode = inode_of(from.socket);
    place->socket = std::exchange(from.socket, -1);
    (void)os::close_in_children(place->process);
    go_on(*place);
  }
  // Counters that were counted down leave the list before it grows.
  [[nodiscard]] bool add(lease& to, std::uint64_t counter) noexcept try {
    if (to.counters.size() == to.counters.capacity())
      std::erase_if(to.counters, [&](std::uint64_t each) { return !blocks_.is_held(each); });
    to.counters.push_back(counter);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  // Takes what came, up to the end of the socket and then of the process.
  void go_on(lease& one) noexcept {
    const bool is_own =
        one.socket < 0 ? is_process(one.process) : inode_of(one.socket) == one.inode;
    if (!is_own) {  // the program closed it
      one = {};
      return;
    }
    if (one.socket < 0) {
      os::forget_in_children(one.process);
      os::close(std::exchange(one.process, -1));
      one.until = os::deadline_in(quiet_ms);
      return;
    }
    while (true) {
      wire_handle next{};
      const taken came = receive(one.socket, &next, sizeof next, nullptr, {});
      if (came == taken::nothing_yet) return;
      if (came == taken::whole && is_lease(next, token_) && add(one, next.number)) continue;
      return end_socket(std::exchange(one.socket, -1));
    }
  }
  void take_back(lease& of) noexcept {
    for (const std::uint64_t each : of.counters) blocks_.take_back(each);
    of = {};
  }

  const int listening_;
  const std::uint64_t token_;
  const block_source blocks_;
  std::array<client, clients_max> clients_{};
  std::array<lease, leases_max> leases_{};
};

void* serve(void* given) { static_cast<serving*>(given)->run(); }

// Names of processes that were killed. A socket that has just been bound refuses connections until
// its process listens, so only old ones are checked.
void remove_stale_names(const os::listening& at, const place_name& folder) noexcept {
  constexpr int looks_max = 256;
  constexpr time_t old_s = 60;
  const int listed = openat(at.directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = listed < 0 ? nullptr : fdopendir(listed);
  if (stream == nullptr) return os::close(listed);
  const time_t now = time(nullptr);
  int looks = 0;
  for (const dirent* each = readdir(stream); each != nullptr && looks < looks_max;
       each = readdir(stream)) {
    const std::string_view name(each->d_name);
    struct stat about{};
    if (!name.starts_with(socket_prefix) ||
        fstatat(at.directory, each->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISSOCK(about.st_mode) || about.st_ino == at.inode || now - about.st_mtime < old_s) {
      continue;
    }
    ++looks;
    std::array<char, 512> path{};
    const int length =
        std::snprintf(path.data(), path.size(), "%s/%s", folder.text.data(), each->d_name);
    if (length <= 0 || static_cast<std::size_t>(length) >= path.size()) continue;
    const os::connected made =
        os::connect_at(path.data(), static_cast<std::size_t>(length), os::deadline_in(10));
    if (made.failure == ECONNREFUSED) (void)unlinkat(at.directory, each->d_name, 0);
    os::close(made.descriptor);
  }
  (void)closedir(stream);
}

}  // namespace

// In the first folder that is this user's alone.
bool server::listen() noexcept {
  for (std::size_t i = 0; i < folder_count; ++i) {
    const place_name folder = folder_at(i, os::own_uid());
    if (mkdir(folder.text.data(), 0700) != 0 && errno != EEXIST) continue;
    name_ = socket_in(folder, token_);
    at_ = os::listen_at(name_.text.data(), name_.size);
    if (at_.failure != 0) continue;
    remove_stale_names(at_, folder);
    return true;
  }
  return false;
}

bool server::start(const block_source& blocks) noexcept {
  if (is_started_) return true;
  if (os::random_bytes(reinterpret_cast<std::byte*>(&token_), sizeof token_) != 0) return false;
  if (!listen()) return false;
  for (const int each : {at_.descriptor, at_.directory}) (void)os::close_in_children(each);
  // Never destroyed: the thread lives as long as the process.
  auto* const work = new (std::nothrow) serving(at_.descriptor, token_, blocks);
  if (work != nullptr) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    is_started_ = pthread_create(&thread, nullptr, &serve, work) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (is_started_) (void)pthread_detach(thread);
  }
  if (is_started_) return true;
  delete work;
  for (const int each : {at_.descriptor, at_.directory}) os::forget_in_children(each);
  os::stop_listening(at_, name_.text.data(), name_.size);
  return false;
}

void server::take_name_away() const noexcept {
  if (!is_started_) return;
  const char* const name = name_.text.data() + name_.view().rfind('/') + 1;
  struct stat about{};
  if (fstatat(at_.directory, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && about.st_ino == at_.inode)
    (void)unlinkat(at_.directory, name, 0);
}

void server::leave_to_parent() noexcept {
  if (std::exchange(is_started_, false)) at_ = {};
}

}  // namespace vmm::ipc
