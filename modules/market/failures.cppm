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

constexpr const char* not_an_owner =
    ". If it is not vmm-owner, unset VMM_OWNER_PROGRAM or set it to the path of vmm-owner";

constexpr std::string_view request_words = "request of ";

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20); }

// Of a request that the owner can never grant to this tenant.
std::string beyond_text(const market_reach& reach) {
  const std::string most = mebibytes(reach.most_bytes()) + " MiB";
  if (reach.is_at_limit())
    return "it exceeds the tenant's limit of " + most +
           ": raise it in VMM_TENANT, or with vmm-owner ctl share";
  const std::string all = "the owner's " + mebibytes(reach.capacity_bytes) + " MiB";
  if (reach.kept_bytes == 0) return "it exceeds " + all + ": request less";
  return "it exceeds the " + most + " that this tenant can have: " + mebibytes(reach.kept_bytes) +
         " of " + all + " are kept for the guarantees of others; request less";
}

// Why a request was denied, and what helps.
std::string denial_text(const market_message& denied) {
  const market_reach reach{denied.bytes, denied.unit_bytes, denied.share};
  const std::uint64_t most_bytes = reach.most_bytes();
  if (denied.wish_bytes > most_bytes) return beyond_text(reach);
  const std::uint64_t own_bytes = denied.job;
  const bool waits =
      denied.reason == market_reason::deadline || denied.reason == market_reason::deadlock;
  const bool is_own = own_bytes > most_bytes - denied.wish_bytes;
  if (denied.reason == market_reason::limit || (waits && is_own)) {
    const char* const remedy =
        reach.is_at_limit()
            ? " MiB of its limit: free memory of it, or raise the limit in VMM_TENANT, or with "
              "vmm-owner ctl share"
            : " MiB that it can have: free memory of it";
    return "this tenant holds " + mebibytes(own_bytes) + " of the " + mebibytes(most_bytes) +
           remedy;
  }
  const bool is_now = denied.reason == market_reason::deadline && denied.within_ns == 0;
  std::string text = is_now ? "the memory is not free now" : text_of(denied.reason);
  if (waits) text += "; free memory in a holder";
  if (waits && denied.share.guarantee_bytes == 0)
    text += ", or reserve it with guarantee=BYTES in VMM_TENANT";
  if (denied.reason == market_reason::too_large) text += "; request less: no tenant can give more";
  return text;
}

std::string join_text(const market_message& refused) {
  std::string text = text_of(refused.reason);
  if (refused.reason != market_reason::guarantees) return text;
  // wish_bytes: what others are guaranteed.
  return text + ", of which " + mebibytes(refused.unit_bytes) + " MiB are kept for contexts and " +
         mebibytes(refused.wish_bytes) +
         " MiB are guaranteed to others; lower the guarantee in VMM_TENANT" +
         (refused.wish_bytes == 0 ? "" : ", or wait for the holders with wait=SECONDS there");
}

// What was requested, which tenant holds what, and what helps.
std::string refusal_text(const market_message& refused) {
  const bool is_denied = refused.kind == market_kind::denied;
  std::string text =
      is_denied ? std::string(request_words) + mebibytes(refused.wish_bytes) + " MiB: " : "";
  // A refusal of this process itself: no owner has named its tenants in time.
  if (is_denied && refused.row_count == 0) {
    text += "the owner is silent: continue or restart it";
  } else {
    text += is_denied ? denial_text(refused) : join_text(refused);
  }
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

std::string folder_text(const std::string& path, int failure) {
  char why[200];
  unix_os::explain_folder(path.c_str(), failure, why, sizeof why);
  return why;
}

// Why no owner is reached: `made` of the last attempt, `started` of vmm-owner before it, below 0
// for the folder.
error connect_failure(const tenant_options& options, const unix_os::connected& made,
                      int started) noexcept {
  const bool is_others = made.failure == EACCES || made.failure == ENOTDIR || made.failure == ELOOP;
  const errc code = is_others ? errc::not_permitted : errc::unavailable;
  detail_text text;
  text.add("no owner of the device's memory listens in ").add(options.directory);
  const char* const met = limit_text(made.failure);
  if (const char* const limit = met != nullptr ? met : limit_text(std::max(started, 0));
      limit != nullptr) {
    text.add(": ").add(limit);
  } else if (made.fault == unix_os::place_fault::not_a_socket) {
    text.add(": its socket is not this user's, or another file: remove it");
  } else if (is_others) {
    text.add(": ").add(folder_text(options.directory, made.failure));
  } else if (options.program.empty()) {
    text.add(": start it with vmm-owner serve, or set VMM_OWNER=auto");
  } else if (started < 0) {
    text.add(": ").add(folder_text(options.directory, -started));
  } else if (started != 0 && started != ECHILD && started != ETIMEDOUT) {
    text.add(". ").add(options.program).add(" cannot be run (").add(errno_name(started));
    text.add(
        "; PATH is searched for a name without /): install vmm-tools, or set "
        "VMM_OWNER_PROGRAM to its path");
  } else if (started != 0) {
    text.add(". ").add(options.program);
    text.add(started == ECHILD ? " ends with an error" : " did not end in 5 s and was killed");
    text.add(": see ").add(market_socket_name(options.device)).add(".log there").add(not_an_owner);
  } else {
    text.add(". ").add(options.program).add(" has ended and left none").add(not_an_owner);
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
