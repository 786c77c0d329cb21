// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend:environment - reading options from environment variables. For vmm's own modules and
// tools: `import vmm;` does not bring it.
//
// In a program with more privileges than its caller (set-uid, set-gid, file capabilities) every
// variable counts as unset, as with secure_getenv().
//
// An unset or empty variable leaves the option as it is. A malformed value is refused: the
// error's detail, which the caller supplies, names the variable and its valid values, followed by
// "; not 'VALUE'".
//
// Thread safety: as getenv (no thread may change the environment meanwhile). Cost: an allocation
// for a value that is refused (vmm.base:texts), else none.
export module vmm.backend:environment;

import vmm.std;
import :result;
import :types;

namespace vmm {

/// Parses "1536", "64KiB", "1.5 gib", "20MB" to bytes: a decimal number and a unit in upper or
/// lower case, with or without blanks around each. KB, MB, GB, TB, PB are powers of 1000, KiB, MiB,
/// GiB, TiB, PiB powers of 1024, as are a bare K, M, G, T, P; without a unit, or with B, a whole
/// number of bytes. A part of a byte is rounded down. nullopt if malformed or 2^63 bytes or more.
export [[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text) noexcept;
/// A decimal number, whole text. nullopt when malformed.
export [[nodiscard]] std::optional<double> parse_number(std::string_view text) noexcept;

/// Whether the program has no more privileges than its caller. Cost: none.
export [[nodiscard]] bool environment_is_trusted() noexcept;

/// The value, owned by the environment; null if the variable is unset or empty. vmm reads every
/// variable by this call. Requires: a name. Cost: a getenv.
export [[nodiscard]] const char* environment_text(const char* name) noexcept;

/// Whether the variable is set, and not empty. Requires: a name. Cost: a getenv.
export [[nodiscard]] bool option_is_set(const char* name) noexcept;

/// The error of a refused value: bad_option, and the detail followed by the first 60 bytes of the
/// value. Requires: a detail of static storage. Cost: a copy, kept.
export [[nodiscard]] error refuse_value(std::string_view value, const char* detail) noexcept;
/// The same for a number, in digits.
export [[nodiscard]] error refuse_number(std::uint64_t value, const char* detail,
                                         errc code = errc::bad_option) noexcept;
export [[nodiscard]] error refuse_number(double value, const char* detail) noexcept;
export [[nodiscard]] inline error refuse_number(std::uint32_t value, const char* detail) noexcept {
  return refuse_number(std::uint64_t{value}, detail);
}
/// The same for the value of the variable `name`.
export [[nodiscard]] error refuse_variable(const char* name, const char* detail) noexcept;

/// Requires: a name; a detail of static storage that names the variable and its valid values;
/// else the process ends. Effects: reads the variable `name` into `option` if it is set, and not
/// empty. Errors: that of refuse_value when the value is malformed; the option is as before.
/// Cost: a getenv.
export [[nodiscard]] status read_bytes_option(const char* name, std::uint64_t& option,
                                              const char* detail) noexcept;
export [[nodiscard]] status read_number_option(const char* name, double& option,
                                               const char* detail) noexcept;
/// As the two above. "0" or "off" is false, "1" or "on" is true.
export [[nodiscard]] status read_switch_option(const char* name, bool& option,
                                               const char* detail) noexcept;
/// As above, for any text. The environment owns it: copy it to keep it. Errors: none.
export void read_text_option(const char* name, std::string_view& option) noexcept;

}  // namespace vmm
