// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market:failures (internal) - the errors of a tenant's source, and their texts.
//
// Thread safety: values only.
module;
#include <cerrno>

#include "process.hpp"

module vmm.market:failures;

import vmm.backend;
import vmm.base;
import vmm.std;
import :source;
import :wire;

namespace vmm {

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20); }

const char* remedy_of(const market_message& refused) noexcept {
  switch (refused.reason) {
    case market_reason::guarantees:
      // wish_bytes: what others are guaranteed.
      return refused.wish_bytes == 0
                 ? "lower the guarantee in VMM_TENANT"
                 : "lower the guarantee in VMM_TENANT, or wait for the holders with wait=SECONDS "
                   "there";
    case market_reason::deadline:
    case market_reason::deadlock:
      return "free memory in a holder, or reserve it with guarantee=BYTES in VMM_TENANT";
    case market_reason::limit: return "raise the limit in VMM_TENANT, or with vmm-owner ctl share";
    case market_reason::too_large: return "request less: no tenant can give more";
    default: return nullptr;
  }
}

// What was requested, which tenant holds what, and what helps.
std::string refusal_text(const market_message& refused) {
  std::string text;
  const bool is_guarantee = refused.reason == market_reason::guarantees;
  if (refused.wish_bytes != 0 && !is_guarantee)
    text = "request of " + mebibytes(refused.wish_bytes) + " MiB: ";
  // A refusal of this process itself: no owner has named its tenants in time.
  const bool is_silent = refused.kind == market_kind::denied && refused.row_count == 0;
  text += is_silent ? "the owner is silent: continue or restart it" : text_of(refused.reason);
  if (is_guarantee) {
    text += ", of which " + mebibytes(refused.unit_bytes) + " MiB are kept for contexts and " +
            mebibytes(refused.wish_bytes) + " MiB are guaranteed to others";
  }
  if (const char* const remedy = remedy_of(refused); remedy != nullptr && !is_silent)
    text += std::string("; ") + remedy;
  text += " (device " + mebibytes(refused.bytes) + " MiB";
  for (const market_row& each : refused.row_list()) {
    text += "; ";
    for (const char letter : text_of(each.name))
      text += letter >= ' ' && letter <= '~' ? letter : '?';
    text += ": " + mebibytes(each.held_bytes) + " MiB held, " +
            mebibytes(each.share.guarantee_bytes) + " guaranteed";
    if (each.waiting_bytes != 0) text += ", waits for " + mebibytes(each.waiting_bytes);
    if (each.overdue) text += ", overdue";
    if (each.is_silent) text += ", not connected";
  }
  return text + ")";
}

error take_error(market_reason reason, std::string_view refusal) noexcept {
  detail_text text;
  text.add(refusal);
  switch (reason) {
    case market_reason::limit:
      return refuse(errc::over_budget, text.keep("the request exceeds the limit in VMM_TENANT"));
    case market_reason::device_lost:
      return refuse(errc::unavailable, "the device was reset: its shared memory is void");
    case market_reason::silent:
    case market_reason::broken:
      return refuse(errc::unavailable, "the owner of the device's memory has refused this process");
    case market_reason::requests:
      return refuse(errc::in_use, "64 requests of this process wait, the limit");
    default:
      return refuse(errc::out_of_memory,
                    text.keep("the tenants of the device hold its memory, and gave none in time: "
                              "see vmm-owner ctl list"));
  }
}

// Of a request that ended without an owner.
std::string lost_text(const tenant_options& options) {
  return "the owner in " + options.directory + " has ended" +
         (options.program.empty() ? ": start it again with vmm-owner serve" : "") +
         "; this process keeps the memory that it has";
}

// Why no owner is reached: `made` of the last attempt, `started` of vmm-owner before it, below 0
// for the folder.
error connect_failure(const tenant_options& options, const unix_os::connected& made,
                      int started) noexcept {
  const bool is_others = made.failure == EACCES || made.failure == ENOTDIR || made.failure == ELOOP;
  const errc code = is_others ? errc::not_permitted : errc::unavailable;
  detail_text text;
  text.add("no owner of the device's memory listens in ").add(options.directory);
  if (is_others) {
    text.add(", which is to be this user's, with mode 0700");
  } else if (options.program.empty()) {
    text.add(": start it with vmm-owner serve, or set VMM_OWNER=auto");
  } else if (started < 0) {
    text.add(", which cannot be made (").add(errno_name(-started));
    text.add("): its folder is to be there, and this user's to write");
  } else if (started == ENOENT || started == EACCES) {
    text.add(", and ").add(options.program).add(" cannot be run (").add(errno_name(started));
    text.add(
        "; PATH is searched for a name without /): install vmm-tools, or set "
        "VMM_OWNER_PROGRAM to its path");
  } else if (started != 0) {
    text.add(", and ").add(options.program).add(" ends with an error: see ");
    text.add(market_socket_name(options.device)).add(".log there");
  } else {
    text.add(", and ").add(options.program).add(" has ended and left none");
  }
  return {code, call::none, made.failure, errno_name(made.failure),
          text.keep("no owner of the device's memory listens in the folder of VMM_OWNER")};
}

// A tenant is refused for other reasons than a request.
errc join_code(market_reason reason) noexcept {
  switch (reason) {
    case market_reason::guarantees: return errc::out_of_memory;
    case market_reason::secret: return errc::not_permitted;
    case market_reason::version: return errc::not_supported;
    case market_reason::device:
    case market_reason::share: return errc::bad_option;
    default: return errc::unavailable;
  }
}

}  // namespace vmm
