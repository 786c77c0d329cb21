// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.share:failures (internal) - the errors of sockets and of their places, and deadlines.
//
// Each failure of a socket has one text and one code, in channels and in listeners.
//
// Thread safety: all of it. Cost: constant.
module;
#include "system.hpp"

module vmm.share:failures;

import vmm.backend;
import vmm.std;

namespace vmm {

inline constexpr const char* no_list_memory = "no host memory is left for a list of shared blocks";
inline constexpr const char* no_block_memory = "no host memory is left for a shared block";

[[nodiscard]] error system_error(errc code, int failure, const char* detail) noexcept;
/// With a path at the end, which may be long.
[[nodiscard]] error path_error(errc code, int failure, std::string_view at,
                               const char* detail) noexcept;
[[nodiscard]] error peer_gone(int failure) noexcept;
[[nodiscard]] error timed_out() noexcept;
[[nodiscard]] error offer_withdrawn() noexcept;
/// The error of a call on a connected socket. Requires: an errno.
[[nodiscard]] error socket_error(int failure) noexcept;
/// A socket's place that was refused.
struct refused_place {
  std::string_view path;
  unix_os::place_fault fault;
  int failure;        // an errno
  unsigned mode = 0;  // of its directory
};
[[nodiscard]] error place_error(const refused_place& of) noexcept;

[[nodiscard]] unix_os::deadline deadline_at(std::int64_t at_ns) noexcept;
/// At most an hour from now.
[[nodiscard]] std::int64_t deadline_after(std::uint32_t timeout_ms) noexcept;

}  // namespace vmm
