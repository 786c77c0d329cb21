// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// VMM_OWNER and VMM_TENANT.
module;
#include "process.hpp"

module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.observe;
import vmm.std;

namespace vmm {
namespace {

constexpr const char* owner_detail =
    "VMM_OWNER is off, auto, or the absolute path of the folder of an owner's socket";
constexpr const char* tenant_detail =
    "VMM_TENANT is a list, separated by commas, of guarantee=BYTES, limit=BYTES, priority=0 to 7, "
    "elastic, wait=SECONDS, name=TEXT, group=TEXT, job=NUMBER";
constexpr const char* bytes_detail =
    "guarantee and limit in VMM_TENANT are 0, or bytes from 2MiB to 64PiB, such as 20GiB";
constexpr const char* text_detail = "name and group in VMM_TENANT are texts of 1 to 32 bytes";

bool set_number(std::string_view text, std::uint64_t most, std::uint64_t& to) {
  const std::optional<double> number = parse_number(text);
  if (!number || *number < 0 || *number > static_cast<double>(most)) return false;
  to = static_cast<std::uint64_t>(*number);
  return static_cast<double>(to) == *number;
}

bool set_bytes(std::string_view text, std::uint64_t& to) {
  const std::optional<std::uint64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes > option_bytes_max) return false;
  if (*bytes != 0 && *bytes < market_granule_bytes) return false;
  to = *bytes - *bytes % market_granule_bytes;
  return true;
}

bool set_name(std::string_view text, market_name& to) {
  if (text.empty() || text.size() > sizeof(market_name)) return false;
  to = make_market_name(text);
  return true;
}

// Null, or what the word should be.
const char* set_word(std::string_view key, std::string_view value, tenant_options& options) {
  const auto unless = [](bool is_set, const char* detail) { return is_set ? nullptr : detail; };
  std::uint64_t number = 0;
  if (key == "guarantee")
    return unless(set_bytes(value, options.share.guarantee_bytes), bytes_detail);
  if (key == "limit") return unless(set_bytes(value, options.share.limit_bytes), bytes_detail);
  if (key == "name") return unless(set_name(value, options.name), text_detail);
  if (key == "group") return unless(set_name(value, options.group), text_detail);
  if (key == "job")
    return unless(set_number(value, std::uint64_t{1} << 53, options.job),
                  "job in VMM_TENANT is a number from 0 to 2^53");
  if (key == "priority") {
    const bool is_set = set_number(value, market_priority_max, number);
    options.share.priority = static_cast<std::uint8_t>(number);
    return unless(is_set, "priority in VMM_TENANT is a number from 0 to 7");
  }
  if (key == "wait") {
    const bool is_set = set_number(value, 3600, number);
    options.wait_ms = static_cast<std::uint32_t>(number * 1000);
    return unless(is_set, "wait in VMM_TENANT is seconds, from 0 to 3600");
  }
  if (key != "elastic") return tenant_detail;
  options.share.elastic = true;
  return unless(value.empty(), "elastic in VMM_TENANT has no value");
}

status read_share(std::string_view text, tenant_options& options) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view word = text.substr(at, comma - at);
    const std::size_t sign = std::min(word.find('='), word.size());
    const std::string_view key = word.substr(0, sign);
    const std::string_view value = word.substr(std::min(sign + 1, word.size()));
    const bool has_sign = sign != word.size();
    if (has_sign && value.empty()) return refuse_value(word, tenant_detail);
    if (const char* const wrong = set_word(key, value, options); wrong != nullptr)
      return refuse_value(word, wrong);
    for (std::size_t before = 0; before < at;) {
      const std::size_t end = text.find(',', before);
      const std::string_view earlier = text.substr(before, end - before);
      if (earlier.substr(0, std::min(earlier.find('='), earlier.size())) == key)
        return refuse_value(word, "VMM_TENANT has each word once");
      before = end + 1;
    }
    at = comma + 1;
  }
  if (options.share.limit_bytes != 0 && options.share.guarantee_bytes > options.share.limit_bytes)
    return refuse_value(text, "VMM_TENANT has a guarantee above its limit");
  return {};
}

}  // namespace

std::string default_market_directory() {
  // Beside vmm-top's folder, which is never in another user's runtime folder.
  if (const std::vector<std::string> folders = top_folders(); folders.size() > 1)
    return folders.front() + "-market";
  return "/tmp/vmm-market-" + std::to_string(unix_os::own_uid());
}

result<std::optional<tenant_options>> tenant_options_from_environment() {
  const char* const owner = environment_text("VMM_OWNER");
  if (owner != nullptr && std::string_view(owner) == "off") return std::optional<tenant_options>{};
  tenant_options options;
  options.name = make_market_name(std::to_string(unix_os::own_process()));
  const char* const tenant = environment_text("VMM_TENANT");
  const status read = read_share(tenant == nullptr ? "" : tenant, options);
  if (!read) return read.error();
  if (owner == nullptr) return std::optional<tenant_options>{};
  if (std::string_view(owner) == "auto") {
    options.directory = default_market_directory();
    const char* const program = environment_text("VMM_OWNER_PROGRAM");
    char beside[4096];
    const bool is_beside = unix_os::find_beside("vmm-owner", beside, sizeof beside);
    options.program = program != nullptr ? program : is_beside ? beside : "vmm-owner";
  } else if (owner[0] == '/') {
    options.directory = owner;
  } else {
    return refuse_value(owner, owner_detail);
  }
  return std::optional<tenant_options>{options};
}

}  // namespace vmm
