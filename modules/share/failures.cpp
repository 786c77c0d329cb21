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

constexpr std::uint32_t timeout_ms_max = 3'600'000;

}  // namespace

error system_error(errc code, int failure, const char* detail) noexcept {
  check(code != errc::none && detail != nullptr, "an error has no text");
  return {code, call::none, failure, errno_name(failure), detail};
}

error peer_gone(int failure) noexcept {
  return system_error(
      errc::unavailable, failure == 0 ? ECONNRESET : failure,
      "the peer closed the connection or ended: blocks lent on it count as returned");
}

error timed_out() noexcept {
  return system_error(errc::unavailable, ETIMEDOUT, "the peer did not respond within the timeout");
}

// The error of a socket's errno.
error socket_error(int failure) noexcept {
  check(failure != 0, "a socket fails for no reason");
  switch (failure) {
    case ETIMEDOUT: return timed_out();
    case EPIPE:
    case ECONNRESET: return peer_gone(failure);
    case EMFILE:
    case ENFILE: return system_error(errc::out_of_host_memory, failure, limit_text(failure));
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      return system_error(errc::out_of_host_memory, failure,
                          "the system has no memory left for the message");
    case EBADF:
      return system_error(errc::invalid_argument, failure,
                          "a handle cannot be exported as a descriptor");
    default: return system_error(errc::unavailable, failure, "the connection failed");
  }
}

error place_error(unix_os::place_fault fault, int failure) noexcept {
  check(failure != 0, "a path is refused without an error");
  switch (fault) {
    case unix_os::place_fault::bad_name:
      return system_error(
          errc::invalid_argument, failure,
          "a socket's path ends in a name of at most 63 bytes; abstract names are not used");
    case unix_os::place_fault::bad_directory:
      return system_error(
          errc::not_permitted, failure,
          "the socket's directory must be this user's, with mode 0700, and not a symbolic link");
    case unix_os::place_fault::no_directory:
      return system_error(errc::unavailable, failure,
                          "the socket's directory does not exist: create it with mode 0700");
    case unix_os::place_fault::exists:
      return system_error(errc::in_use, failure,
                          "a file with the socket's name exists: remove it if it is not in use");
    case unix_os::place_fault::not_a_socket:
      return system_error(errc::not_permitted, failure, "the path is not a socket of this user");
    case unix_os::place_fault::none: break;
  }
  if (failure == ENOENT)
    return system_error(errc::unavailable, failure,
                        "the path does not exist: start the process that listens there first");
  if (failure == ECONNREFUSED)
    return system_error(errc::unavailable, failure,
                        "the socket's process no longer listens: start it again");
  return system_error(errc::unavailable, failure,
                      file_text(failure, "the socket's path cannot be used"));
}

unix_os::deadline deadline_at(std::int64_t at_ns) noexcept { return {at_ns}; }

std::int64_t deadline_after(std::uint32_t timeout_ms) noexcept {
  return unix_os::deadline_in(std::min(timeout_ms, timeout_ms_max)).at_ns;
}

}  // namespace vmm
