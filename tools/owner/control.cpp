// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "control.hpp"

#include <cerrno>
#include <filesystem>

#include "../../modules/market/process.hpp"

import vmm.backend;
import vmm.base;

namespace vmm::tools {
namespace {

constexpr std::string_view socket_prefix = "owner-";

// A tenant's name has any bytes.
std::string name_of(const market_row& row) {
  std::string name;
  for (const char letter : text_of(row.name)) {
    const bool is_plain = letter >= ' ' && letter <= '~' && letter != '"' && letter != '\\';
    name += is_plain ? letter : '?';
  }
  return name;
}

std::uint64_t borrowed_bytes(const market_row& row) {
  return row.held_bytes - std::min(row.held_bytes, row.share.guarantee_bytes);
}

std::string silence_text(int descriptor, const std::string& path) {
  char why[400];
  unix_os::explain_silence(descriptor, path.substr(0, path.rfind('/')).c_str(), why, sizeof why);
  return why;
}

// Why the share that was requested is refused, with its figures.
std::string refusal_text(const market_message& refused, const market_share& wanted) {
  const auto mebibytes = [](std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  std::string text = text_of(refused.reason);
  if (refused.reason == market_reason::share)
    text += ": a guarantee of " + mebibytes(wanted.guarantee_bytes) + ", a limit of " +
            mebibytes(wanted.limit_bytes) + ", priority " + std::to_string(wanted.priority);
  if (refused.reason == market_reason::guarantees)
    text += ": " + mebibytes(wanted.guarantee_bytes) + " of " + mebibytes(refused.bytes) +
            ", of which " + mebibytes(refused.unit_bytes) + " are kept for contexts and " +
            mebibytes(refused.wish_bytes) + " are guaranteed to others";
  return text;
}

std::string receive_report(int descriptor, const std::string& path, unix_os::deadline until,
                           const market_share& wanted, owner_report& into) {
  for (;;) {
    market_bytes bytes{};
    std::array<int, unix_os::descriptors_max> descriptors{};
    const auto got =
        unix_os::receive_message(descriptor, bytes.data(), bytes.size(), descriptors.data(), until);
    for (std::size_t i = 0; i < got.descriptor_count; ++i) unix_os::close(descriptors[i]);
    const auto message = decode_market_message(bytes);
    if (got.fault != unix_os::receive_fault::none || !message)
      return silence_text(descriptor, path);
    if (message->kind == market_kind::refused) return refusal_text(*message, wanted);
    into.capacity_bytes = message->bytes;
    into.free_bytes = message->wish_bytes;
    into.is_draining = message->reason == market_reason::draining;
    for (const market_row& each : message->row_list()) into.rows.push_back(each);
    if (!message->more) return "";
  }
}

}  // namespace

std::string control_owner(const std::string& path, const market_message& request,
                          owner_report& into) {
  const unix_os::deadline until = unix_os::deadline_in(2000);
  const unix_os::connected made = unix_os::connect_at(path.data(), path.size(), until);
  if (made.descriptor < 0) {
    const char* const limit = limit_text(made.failure);
    if (limit != nullptr) return limit;
    return "no owner listens at " + path + " (" + errno_name(made.failure) +
           "): vmm-owner serve starts one";
  }
  const unix_os::peer peer = unix_os::peer_of(made.descriptor);
  std::string why;
  if (peer.failure != 0 || peer.uid != unix_os::own_uid()) why = path + ": another user's owner";
  const market_bytes sent = encode_market_message(request);
  if (why.empty() &&
      unix_os::send_message(made.descriptor, {sent.data(), sent.size()}, {}, until) != 0)
    why = silence_text(made.descriptor, path);
  if (why.empty()) why = receive_report(made.descriptor, path, until, request.share, into);
  unix_os::close(made.descriptor);
  return why;
}

std::vector<owner_report> read_owners(const std::string& folder,
                                      std::vector<std::string>& complaints) {
  std::vector<owner_report> reports;
  std::error_code failure;
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(folder, failure)) {
    const std::string name = each.path().filename().string();
    if (name.starts_with(socket_prefix) && name.find('.') == name.npos && each.is_socket(failure))
      names.push_back(name);
  }
  const bool is_named = folder != default_market_directory();
  if (failure && (is_named || failure != std::errc::no_such_file_or_directory))
    complaints.push_back(folder + ": " + file_text(failure.value(), "cannot be read"));
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    owner_report report{.device = name.substr(socket_prefix.size())};
    const std::string why = control_owner(folder + "/" + name, {}, report);
    if (why.empty()) {
      reports.push_back(std::move(report));
    } else {
      complaints.push_back(folder + "/" + name + ": " + why);
    }
  }
  return reports;
}

std::string to_table(const owner_report& report) {
  std::string text = "tenant  held MiB  guaranteed  borrowed  limit  waiting  class  name\n";
  std::uint64_t held_bytes = 0;
  for (const market_row& each : report.rows) {
    char line[160];
    std::snprintf(line, sizeof line, "%6llu  %8llu  %10llu  %8llu  %5llu  %7llu  %5u  ",
                  static_cast<unsigned long long>(each.tenant),
                  static_cast<unsigned long long>(each.held_bytes >> 20),
                  static_cast<unsigned long long>(each.share.guarantee_bytes >> 20),
                  static_cast<unsigned long long>(borrowed_bytes(each) >> 20),
                  static_cast<unsigned long long>(each.share.limit_bytes >> 20),
                  static_cast<unsigned long long>(each.waiting_bytes >> 20), each.share.priority);
    text += line + name_of(each);
    if (each.overdue) text += " (overdue)";
    if (each.is_silent) text += " (not connected)";
    text += "\n";
    held_bytes += each.held_bytes;
  }
  return text + "device " + report.device + ": " + std::to_string(report.capacity_bytes >> 20) +
         " MiB, " + std::to_string(held_bytes >> 20) + " lent" +
         (report.is_draining ? ", ends with its last tenant\n" : "\n");
}

std::string to_json_rows(const owner_report& report, bool is_first) {
  std::string text;
  for (const market_row& each : report.rows) {
    text += std::exchange(is_first, false) ? "\n" : ",\n";
    text += R"({"kind": "tenant", "device": ")" + report.device + R"(", "name": ")" +
            name_of(each) + '"';
    const auto add = [&](const char* name, std::uint64_t number) {
      text += std::string(", \"") + name + "\": " + std::to_string(number);
    };
    add("tenant", each.tenant);
    add("held_bytes", each.held_bytes);
    add("guaranteed_bytes", each.share.guarantee_bytes);
    add("borrowed_bytes", borrowed_bytes(each));
    add("limit_bytes", each.share.limit_bytes);
    add("waiting_bytes", each.waiting_bytes);
    add("priority", each.share.priority);
    text += std::string(R"(, "overdue": )") + (each.overdue ? "true" : "false");
    text += std::string(R"(, "connected": )") + (each.is_silent ? "false" : "true") + "}";
  }
  return text;
}

}  // namespace vmm::tools
