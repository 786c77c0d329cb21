// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// An owner's machine whose driver returns at once, and tenants that are lists of messages.
#pragma once

#include "../support/test.h"

import vmm.backend;
import vmm.market;

namespace market_test {

using vmm::handle_state, vmm::market_handle, vmm::market_kind, vmm::market_message,
    vmm::market_reason, vmm::market_share, vmm::owner_action;

inline constexpr std::int64_t ms = 1'000'000;

// An owner whose creates and releases return at once. A tenant's number is its connection's.
struct desk {
  explicit desk(std::uint64_t capacity_bytes, bool takes_stock = false)
      : owner({.epoch = 5,
               .first_handle = 100,
               .capacity_bytes = capacity_bytes,
               .context_bytes = 0,
               .reserve_bytes = 128 * MiB,
               .takes_stock = takes_stock},
              now) {}

  // With tenants of these shares, from number 1 on.
  desk(std::uint64_t capacity_bytes, std::initializer_list<market_share> shares)
      : desk(capacity_bytes) {
    for (std::uint64_t next = 1; const market_share& each : shares) join(next++, each);
  }

  static market_message of(market_kind kind) {
    market_message message;
    message.kind = kind;
    message.epoch = 5;
    return message;
  }
  market_message hello(const market_share& share, const char* group = "g", std::uint64_t job = 0) {
    market_message message = of(market_kind::hello);
    message.name = vmm::make_market_name("t");
    message.group = vmm::make_market_name(group);
    message.job = job;
    message.share = share;
    return message;
  }
  void say(std::uint64_t connection, const market_message& message) {
    owner.receive(connection, message, now, processes[connection]);
    pump();
  }
  void join(std::uint64_t connection, const market_share& share = {}, const char* group = "g",
            std::uint64_t job = 0) {
    say(connection, hello(share, group, job));
    say(connection, of(market_kind::inventory));
  }
  std::uint64_t want(std::uint64_t connection, std::uint64_t bytes,
                     std::int64_t within = 1000 * ms) {
    market_message message = of(market_kind::want);
    message.request = ++last;
    message.bytes = message.wish_bytes = bytes;
    message.within_ns = static_cast<std::uint64_t>(within);
    say(connection, message);
    return last;
  }
  void give(std::uint64_t connection, const std::vector<market_handle>& handles) {
    market_message message = of(market_kind::give);
    message.request = ++last;
    for (const market_handle& each : handles) message.handles[message.handle_count++] = each;
    say(connection, message);
  }
  void cannot(std::uint64_t connection) {
    market_message message = of(market_kind::cannot);
    message.request = asks[connection].request;
    say(connection, message);
  }
  void pass(std::int64_t time) {
    now += time;
    owner.tick(now);
    pump();
  }
  void end_create() {
    owner.created(std::exchange(held, 0), true, now);
    pump();
  }
  void pump() {
    for (std::vector<owner_action> actions = owner.take_actions(); !actions.empty();
         actions = owner.take_actions()) {
      for (const owner_action& each : actions) {
        if (each.kind == owner_action::what::create) {
          ++creates;
          if (holds_creates) {
            held = each.handle;
          } else {
            owner.created(each.handle, !refuses, now);
          }
        }
        if (each.kind == owner_action::what::release && returns_releases)
          owner.released(each.handle, now);
        if (each.kind == owner_action::what::close) closed.insert(each.connection);
        if (each.kind == owner_action::what::send && each.message.only_idle &&
            !idle.contains(each.connection)) {
          market_message busy = of(market_kind::cannot);
          busy.request = each.message.request;
          owner.receive(each.connection, busy, now);
          continue;
        }
        if (each.kind == owner_action::what::send) note(each.connection, each.message);
        if (each.kind != owner_action::what::send || each.message.kind != market_kind::drop ||
            keeps_imports || stopped.contains(each.connection))
          continue;
        market_message gone = each.message;
        gone.kind = market_kind::dropped;
        owner.receive(each.connection, gone, now);
      }
    }
    ASSERT_TRUE(owner.validate()) << owner.validate().error().detail;
  }
  void note(std::uint64_t connection, const market_message& message) {
    if (message.kind == market_kind::grant) {
      for (const market_handle& each : message.handle_list()) lots[message.request].push_back(each);
      order.push_back(message.request);
    }
    if (message.kind == market_kind::denied) denied[message.request] = message.reason;
    if (message.kind == market_kind::welcome) welcomed.insert(connection);
    if (message.kind == market_kind::welcome || message.kind == market_kind::view)
      kept[connection] = message.unit_bytes;
    if (message.kind == market_kind::refused) refused[connection] = message.reason;
    if (message.kind == market_kind::ask) asks[connection] = message;
    if (message.kind == market_kind::drop) drops[connection] = message;
  }
  [[nodiscard]] bool has(std::uint64_t request) const { return lots.contains(request); }

  std::int64_t now = 1;
  vmm::market_owner owner;
  std::uint64_t last = 0;
  int creates = 0;
  bool refuses = false;
  bool holds_creates = false;  // until end_create()
  std::uint64_t held = 0;
  bool keeps_imports = false;
  bool returns_releases = true;
  std::map<std::uint64_t, std::vector<market_handle>> lots;  // by request
  std::vector<std::uint64_t> order;                          // of grants
  std::map<std::uint64_t, market_reason> denied;
  std::map<std::uint64_t, market_reason> refused;  // by connection
  std::map<std::uint64_t, market_message> asks, drops;
  std::map<std::uint64_t, std::uint64_t> kept;       // by others, as a connection was sent
  std::map<std::uint64_t, std::uint64_t> processes;  // of connections; 0: not known
  std::set<std::uint64_t> closed, welcomed;
  std::set<std::uint64_t> stopped;  // connections that keep their imports
  std::set<std::uint64_t> idle;     // connections whose memory is not in use
};

}  // namespace market_test
