// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:environment - reading options from environment variables.
//
// An unset or empty variable leaves the option as it is. A malformed value is refused, never
// guessed at: the error's detail, which the caller supplies, names the variable and says what it
// may be.
//
// Thread safety: as getenv (no thread may change the environment meanwhile). Cost: no allocation.
module;
#include <cstdint>
#include <optional>
#include <string_view>

export module vmm.backend:environment;

import :result;

namespace vmm {

/// "1536", "64KiB", "20MB", "8TiB" in bytes. KB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB
/// powers of 1024, and a bare K, M, G or T is a power of 1024. nullopt when malformed or above
/// 2^63.
export [[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text) noexcept;
/// A decimal number, whole text. nullopt when malformed.
export [[nodiscard]] std::optional<double> parse_number(std::string_view text) noexcept;

/// Each reads the variable `name` into `option` if it is set.
/// Errors: bad_option with `detail` when the value is malformed.
export [[nodiscard]] status read_bytes_option(const char* name, std::uint64_t& option,
                                              const char* detail) noexcept;
export [[nodiscard]] status read_number_option(const char* name, double& option,
                                               const char* detail) noexcept;
/// "0" or "off", "1" or "on".
export [[nodiscard]] status read_switch_option(const char* name, bool& option,
                                               const char* detail) noexcept;
/// Any text. It stays the environment's: copy it to keep it.
export void read_text_option(const char* name, std::string_view& option) noexcept;

}  // namespace vmm
