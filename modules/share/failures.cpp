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
constexpr const char* interrupted = "the wait for the peer was interrupted: call again";

std::string_view directory_of(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

error place_error(const refused_place& of, errc code, std::string_view at,
                  const char* detail) noexcept {
  return path_error(code, of.failure, at, detail);
}

error mode_error(const refused_place& of) noexcept {
  char octal[8] = {};
  for (unsigned i = 0; i < 4; ++i)
    octal[i] = static_cast<char>('0' + ((of.mode >> (9 - 3 * i)) & 7U));
  constexpr const char* rule = "the socket's directory must have mode 0700";
  // A folder that all share, such as /tmp, stays as it is.
  const char* const advice =
      (of.mode & 01000U) != 0 ? ": make one of that mode in" : ": change that of";
  const char* const full = detail_text().add(rule).add(", not ").add(octal).add(advice).keep(rule);
  return place_error(of, errc::not_permitted, directory_of(of.path), full);
}

error name_error(const refused_place& of) noexcept {
  const std::size_t name_bytes = of.path.size() - (of.path.rfind('/') + 1);
  const bool is_long = of.path.size() > unix_os::path_bytes_max;
  if (!is_long && name_bytes <= unix_os::name_bytes_max) {
    return place_error(of, errc::invalid_argument, of.path,
                       "a socket's path ends in a name, not . or .., and has no byte 0: abstract "
                       "names are not used");
  }
  const char* const rule = is_long ? "a socket's path has at most 4095 bytes"
                                   : "a socket's path ends in a name of at most 63 bytes";
  detail_text full;
  full.add(rule).add(", not ").add_number(is_long ? of.path.size() : name_bytes);
  return place_error(of, errc::invalid_argument, of.path, full.keep(rule));
}

}  // namespace

error path_error(errc code, int failure, std::string_view at, const char* detail) noexcept {
  check(detail != nullptr, "a path is refused without a reason");
  const char* const full = detail_text().add(detail).add(": '").add(at).add("'").keep(detail);
  return system_error(code, failure, full);
}

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

error offer_withdrawn() noexcept {
  return system_error(errc::unavailable, ETIMEDOUT,
                      "the peer did not reply to the offer within the timeout: it is withdrawn, "
                      "and the block is lent until the peer reads that or the connection ends");
}

// The error of a socket's errno.
error socket_error(int failure) noexcept {
  check(failure != 0, "a socket fails for no reason");
  switch (failure) {
    case ETIMEDOUT: return timed_out();
    case EINTR: return system_error(errc::unavailable, failure, interrupted);
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

error place_error(const refused_place& of) noexcept {
  check(of.failure != 0, "a path is refused without an error");
  switch (of.fault) {
    case unix_os::place_fault::bad_name: return name_error(of);
    case unix_os::place_fault::no_directory:
      return place_error(of, errc::unavailable, directory_of(of.path),
                         "the socket's directory does not exist: create it with mode 0700");
    case unix_os::place_fault::not_a_directory:
      return place_error(of, errc::not_permitted, directory_of(of.path),
                         "the socket's directory is a symbolic link or another file: name the "
                         "directory itself");
    case unix_os::place_fault::other_user:
      return place_error(of, errc::not_permitted, directory_of(of.path),
                         "the socket's directory is another user's: name one of this user");
    case unix_os::place_fault::other_mode: return mode_error(of);
    case unix_os::place_fault::exists:
      return place_error(of, errc::in_use, of.path,
                         "a file with the socket's name exists: remove it if it is not in use");
    case unix_os::place_fault::not_a_socket:
      return place_error(of, errc::not_permitted, of.path, "the path is not a socket of this user");
    case unix_os::place_fault::none: break;
  }
  switch (of.failure) {
    case ETIMEDOUT:
      return place_error(of, errc::unavailable, of.path,
                         "the socket's process accepted no connection within the timeout");
    case EINTR: return place_error(of, errc::unavailable, of.path, interrupted);
    case ENOENT:
      return place_error(of, errc::unavailable, of.path,
                         "the path does not exist: start the process that listens there first");
    case ECONNREFUSED:
      return place_error(of, errc::unavailable, of.path,
                         "the socket's process no longer listens: start it again");
    default:
      return place_error(of, errc::unavailable, of.path,
                         file_text(of.failure, "the socket's path cannot be used"));
  }
}

unix_os::deadline deadline_at(std::int64_t at_ns) noexcept { return {at_ns}; }

std::int64_t deadline_after(std::uint32_t timeout_ms) noexcept {
  return unix_os::deadline_in(std::min(timeout_ms, timeout_ms_max)).at_ns;
}

}  // namespace vmm
