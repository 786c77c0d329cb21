// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.backend;

import vmm.base;
import vmm.std;

namespace vmm {

status read_value(const char* name, std::uint64_t& option, const char* detail) noexcept {
  return read_bytes_option(name, option, detail);
}

status read_value(const char* name, std::uint32_t& option, const char* detail) noexcept {
  std::uint64_t value = option;
  if (status read = read_bytes_option(name, value, detail); !read) return read;
  if (value > std::numeric_limits<std::uint32_t>::max()) return refuse_variable(name, detail);
  option = static_cast<std::uint32_t>(value);
  check(option == value, "an option has lost its upper half");
  return {};
}

status read_value(const char* name, double& option, const char* detail) noexcept {
  return read_number_option(name, option, detail);
}

}  // namespace vmm
