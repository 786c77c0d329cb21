// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The name of a backend on a command line or in VMM_BACKEND, for programs that open drivers by
// type: a kind of driver, and behind "cuda:" and "level_zero:" the number of a device.
#pragma once

#include <system_error>
#include "standard.hpp"

namespace vmm::tools {

/// A kind of driver, and which of its devices.
struct backend_name {
  std::string kind;
  std::int32_t device = 0;
};

/// Parses `text`, the value of the option or variable `name`, as one of `kinds`; `choice` lists
/// them in messages. Returns an empty text, or the error.
[[nodiscard]] inline std::string read_backend(const std::string& name, std::string_view text,
                                              std::span<const std::string_view> kinds,
                                              std::string_view choice, backend_name& into) {
  const std::string got = "; not '" + std::string(text) + "'";
  const std::size_t colon = text.find(':');
  into.kind = text.substr(0, colon);
  if (std::find(kinds.begin(), kinds.end(), into.kind) == kinds.end())
    return name + " takes " + std::string(choice) + got;
  if (colon == std::string_view::npos) return "";
  if (into.kind != "cuda" && into.kind != "level_zero")
    return name + " takes " + into.kind + " without a number" + got;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data() + colon + 1, end, into.device);
  if (failure == std::errc{} && rest == end && into.device >= 0) return "";
  return name + " takes " + into.kind + ":N, where N is a device's number, 0 for the first" + got;
}

}  // namespace vmm::tools
