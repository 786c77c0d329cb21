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

// Of a peer that has ended before its proof: others may wait.
bool is_end(const error& why) noexcept {
  return why.code == errc::unavailable && (why.native == EPIPE || why.native == ECONNRESET);
}

}  // namespace

result<share_listener> share_listener::open(std::string_view path) noexcept {
  share_listener made;
  try {
    made.path_ = path;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a path");
  }
  const unix_os::listening socket = unix_os::listen_at(path.data(), path.size());
  if (socket.failure != 0) return place_error({path, socket.fault, socket.failure, socket.mode});
  if (!unix_os::close_in_children(socket.descriptor)) {
    unix_os::stop_listening(socket, path.data(), path.size());
    return refuse(errc::in_use, "the process has 512 connections, the limit");
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
    if (!made && is_end(made.error())) continue;
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
  check(one.channel.is_open(), "channel I1: two sides shook hands and the session is not open");
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
    check(count <= waits.size(), "a wait is for more connections than may wait");
    check(next_ns <= until_ns, "channel I4: a wait for a peer is longer than its caller's");
    const int failure =
        unix_os::wait_for_any(waits.data(), count, ready.data(), deadline_at(next_ns));
    if (failure == EINTR) return socket_error(failure);
    if (failure != 0 && now_ns >= until_ns) return timed_out();
    for (std::size_t i = count - 1; i > 0; --i) {
      if (!ready[i]) continue;
      const auto place = newcomers_.begin() + static_cast<std::ptrdiff_t>(i - 1);
      const result<bool> proved = listen_to(*place);
      if (proved && !*proved) continue;
      newcomer done = std::move(*place);
      newcomers_.erase(place);
      if (!proved && is_end(proved.error())) break;  // the places have changed
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
