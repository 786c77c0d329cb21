// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_OWNER and VMM_TENANT.
module;
#include "process.hpp"

module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

constexpr const char* owner_detail =
    "VMM_OWNER is off, auto, or the absolute path of the folder of an owner's socket";
constexpr const char* tenant_detail =
    "VMM_TENANT is a list, separated by commas, of guarantee=BYTES, limit=BYTES, priority=0 to 7, "
    "elastic, wait=SECONDS, name=TEXT, group=TEXT, job=NUMBER; bytes are 0, or 2 MiB and more";

bool set_number(std::string_view text, std::uint64_t most, std::uint64_t& to) {
  const std::optional<double> number = parse_number(text);
  if (!number || *number < 0 || *number > static_cast<double>(most)) return false;
  to = static_cast<std::uint64_t>(*number);
  return static_cast<double>(to) == *number;
}

bool set_bytes(std::string_view text, std::uint64_t& to) {
  const std::optional<std::uint64_t> bytes = parse_bytes(text);
  if (!bytes || (*bytes != 0 && *bytes < market_granule_bytes)) return false;
  to = *bytes - *bytes % market_granule_bytes;
  return true;
}

bool set_word(std::string_view word, tenant_options& options) {
  const std::size_t sign = word.find('=');
  const std::string_view key = word.substr(0, sign);
  const std::string_view value = sign == std::string_view::npos ? "" : word.substr(sign + 1);
  std::uint64_t number = 0;
  if (key == "guarantee") return set_bytes(value, options.share.guarantee_bytes);
  if (key == "limit") return set_bytes(value, options.share.limit_bytes);
  if (key == "job") return set_number(value, std::uint64_t{1} << 53, options.job);
  if (key == "priority") {
    if (!set_number(value, market_priority_max, number)) return false;
    options.share.priority = static_cast<std::uint8_t>(number);
    return true;
  }
  if (key == "wait") {
    if (!set_number(value, 3600, number)) return false;
    options.wait_ms = static_cast<std::uint32_t>(number * 1000);
    return true;
  }
  if (key == "elastic" && value.empty()) {
    options.share.elastic = true;
    return true;
  }
  if (value.empty() || value.size() > sizeof(market_name)) return false;
  if (key == "name") options.name = make_market_name(value);
  if (key == "group") options.group = make_market_name(value);
  return key == "name" || key == "group";
}

}  // namespace

std::string default_market_directory() {
  if (const char* const runtime = environment_text("XDG_RUNTIME_DIR");
      runtime != nullptr && runtime[0] == '/')
    return std::string(runtime) + "/vmm-market";
  return "/tmp/vmm-market-" + std::to_string(unix_os::own_uid());
}

result<std::optional<tenant_options>> tenant_options_from_environment() {
  const char* const owner = environment_text("VMM_OWNER");
  if (owner == nullptr || std::string_view(owner) == "off") return std::optional<tenant_options>{};
  tenant_options options;
  options.name = make_market_name(std::to_string(unix_os::own_process()));
  if (std::string_view(owner) == "auto") {
    options.directory = default_market_directory();
    const char* const program = environment_text("VMM_OWNER_PROGRAM");
    options.program = program == nullptr ? "vmm-owner" : program;
  } else if (owner[0] == '/') {
    options.directory = owner;
  } else {
    return refuse_value(owner, owner_detail);
  }
  const char* const tenant = environment_text("VMM_TENANT");
  std::string_view rest = tenant == nullptr ? "" : tenant;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (!set_word(rest.substr(0, comma), options)) return refuse_value(tenant, tenant_detail);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (options.share.limit_bytes != 0 && options.share.guarantee_bytes > options.share.limit_bytes)
    return refuse_value(tenant, "VMM_TENANT has a guarantee above its limit");
  return std::optional<tenant_options>{options};
}

}  // namespace vmm
