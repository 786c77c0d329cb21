// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The tenants of the simulation: programs that request, use and give memory, and are killed,
// stopped and forked.
#include "simulation.hpp"

namespace market_test {

namespace {

constexpr std::uint64_t granule = vmm::market_granule_bytes;

}  // namespace

void simulation::start_tenant(int index) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  processes_.push_back({.tenant = index});
  self.process = static_cast<int>(processes_.size()) - 1;
  self.machine = std::make_unique<market_tenant>(self.self);
  self.is_stopped = false;
  self.is_done = false;
  self.backlog.clear();
  self.deadlines.clear();
  self.least_bytes.clear();
  self.since_ns.clear();
  connect(index);
  at(static_cast<std::int64_t>(1 + draw(20)) * ms, [this, index, number = self.process] {
    if (tenants_[static_cast<std::size_t>(index)].process == number) app_step(index);
  });
}

// A tenant without an owner starts one.
void simulation::connect(int index) {
  at(static_cast<std::int64_t>(1 + draw(10)) * ms, [this, index] {
    tenant_side& self = tenants_[static_cast<std::size_t>(index)];
    if (self.is_done || self.link != 0 || self.machine->stage() != tenant_stage::alone) return;
    if (self.is_stopped) {
      self.backlog.push_back([this, index] { connect(index); });
      return;
    }
    if (!owner_) start_owner();
    self.link = ++last_link_;
    links_[self.link] = {.tenant = index,
                         .process = self.process,
                         .epoch = epoch_,
                         .to_owner_ns = now_ns_,
                         .to_tenant_ns = now_ns_};
    self.machine->connected(now_ns_);
    pump_tenant(index);
  });
}

void simulation::send_to_owner(int index, const market_message& message) {
  const tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  const auto found = links_.find(self.link);
  if (found == links_.end() || !found->second.is_open) return;
  std::vector<int> memories;
  if (message.kind == market_kind::inventory) {
    process& of = processes_[static_cast<std::size_t>(self.process)];
    for (const market_handle& each : message.handle_list()) {
      const auto memory = of.imports.find(each.id);
      if (memory == of.imports.end()) return fail("a tenant lists a handle that it has not");
      memories.push_back(memory->second);
    }
  }
  const letter sent = seal(message, std::move(memories));
  std::int64_t& last = found->second.to_owner_ns;
  last = std::max(last, now_ns_ + static_cast<std::int64_t>(20 + draw(300)) * us);
  at(last - now_ns_, [this, link = self.link, sent] { deliver_to_owner(link, sent); });
}

void simulation::deliver_to_tenant(std::uint64_t link, letter what) {
  const connection& of = links_.at(link);
  tenant_side& self = tenants_[static_cast<std::size_t>(of.tenant)];
  if (self.link != link || self.process != of.process) return;
  if (self.is_stopped) {
    self.backlog.push_back([this, link, what] { deliver_to_tenant(link, what); });
    return;
  }
  self.machine->receive(what.message, now_ns_);
  // The descriptors come with the actions that keep them.
  process& mine = processes_[static_cast<std::size_t>(self.process)];
  std::size_t next = 0;
  for (const market_handle& each : what.message.handle_list()) {
    if (!each.has_descriptor) continue;
    const int memory = (*what.memories)[next++];
    if (mine.imports.contains(each.id)) continue;  // a repetition
    refer(memory, 1);
    mine.imports[each.id] = memory;
  }
  pump_tenant(of.tenant);
}

void simulation::act(int index, const tenant_action& action) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  process& mine = processes_[static_cast<std::size_t>(self.process)];
  note(static_cast<std::uint64_t>(action.kind) * 17 + action.request);
  switch (action.kind) {
    case tenant_action::what::send: send_to_owner(index, action.message); break;
    case tenant_action::what::keep:
      if (!mine.imports.contains(action.handle.id)) fail("a handle comes without its memory");
      break;
    case tenant_action::what::granted: {
      ++counts["grants"];
      std::uint64_t bytes = 0;
      const std::vector<market_handle> lot = self.machine->take_lot(action.request);
      for (const market_handle& each : lot) {
        bytes += each.size_bytes();
        map(index, each);
      }
      check_cut(lot, self.unit_bytes[action.request]);
      if (bytes < self.least_bytes[action.request]) fail("a lot is smaller than its request");
      self.deadlines.erase(action.request);
      self.least_bytes.erase(action.request);
      break;
    }
    case tenant_action::what::denied:
      if (self.deadlines.erase(action.request) == 0) fail("a request ends twice");
      self.least_bytes.erase(action.request);
      break;
    case tenant_action::what::ask: {
      const market_message& ask = action.message;
      const std::int64_t late_ns = static_cast<std::int64_t>(draw(chance(10) ? 300 : 5)) * ms;
      at(late_ns, [this, index, number = self.process, ask] {
        if (tenants_[static_cast<std::size_t>(index)].process == number) app_ask(index, ask);
      });
      break;
    }
    case tenant_action::what::drop:
      if (mine.used.contains(action.handle.id)) fail("an import is dropped that is in use");
      if (mine.imports.contains(action.handle.id)) {
        refer(mine.imports.at(action.handle.id), -1);
        mine.imports.erase(action.handle.id);
      }
      if (!self.machine->dropped(action.handle.id)) fail("a handle is dropped that was not to be");
      break;
    case tenant_action::what::close:
      if (self.link != 0) {
        const std::uint64_t link = std::exchange(self.link, 0);
        links_.at(link).is_open = false;
        to_owner([this, link] { owner_->lost(link, now_ns_); });
        if (self.machine->stage() == tenant_stage::alone) connect(index);
      }
      break;
  }
}

void simulation::pump_tenant(int index) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  for (int turns = 0; turns < 1000; ++turns) {
    const std::vector<tenant_action> actions = self.machine->take_actions();
    if (actions.empty()) break;
    for (const tenant_action& each : actions) act(index, each);
  }
  if (const vmm::status valid = self.machine->validate(); !valid) fail(valid.error().detail);
  schedule_tenant_tick(index);
}

void simulation::schedule_tenant_tick(int index) {
  const tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  const std::int64_t next_ns = self.machine->next_deadline_ns();
  if (next_ns == std::numeric_limits<std::int64_t>::max()) return;
  at(std::max<std::int64_t>(next_ns - now_ns_, 1), [this, index, number = self.process] {
    tenant_side& again = tenants_[static_cast<std::size_t>(index)];
    if (again.process != number || again.is_stopped || again.is_done) return;
    if (again.machine->next_deadline_ns() > now_ns_) return;
    again.machine->tick(now_ns_);
    pump_tenant(index);
    check_deadlines(index);
  });
}

void simulation::check_deadlines(int index) {
  const tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  if (self.is_stopped || now_ns_ < self.stopped_ns + 200 * ms) return;
  for (const auto& [request, deadline_ns] : self.deadlines) {
    if (now_ns_ > deadline_ns + 150 * ms)
      fail("request " + std::to_string(request) + " waits past its deadline");
  }
}

// ---- programs ------------------------------------------------------------------------

void simulation::app_want(int index) {
  const std::uint64_t unit = chance(60) ? 64 * MiB : granule;
  std::uint64_t least = (1 + draw(chance(20) ? 40 : 6)) * unit;
  const std::uint64_t cut = chance(30) ? (1 + draw(least / granule)) * granule : 0;
  if (cut != 0) least += (cut - least % cut) % cut;
  const std::uint64_t wish = least + (chance(20) && cut == 0 ? draw(8) * unit : 0);
  const std::uint64_t within_ms = chance(10) ? 0 : 10 + draw(chance(20) ? 5000 : 500);
  app_want(index, {least, wish, within_ms * 1'000'000, cut});
}

void simulation::app_want(int index, const market_tenant::wanted& what) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  if (self.machine->stage() == tenant_stage::refused) return;
  const std::uint64_t request = self.machine->want(what, now_ns_);
  self.deadlines[request] = now_ns_ + static_cast<std::int64_t>(what.within_ns);
  self.least_bytes[request] = what.least_bytes;
  self.unit_bytes[request] = what.unit_bytes;
  self.since_ns[request] = now_ns_;
  pump_tenant(index);
}

// A peak, which may be most of the device, a small end, and all is given.
void simulation::program_step(int index) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  if (!self.deadlines.empty()) return;
  constexpr std::uint64_t unit = 40 * MiB, within_ns = 10 * s;
  const std::uint64_t peak = unit * (1 + draw(device_bytes_ * 3 / 4 / unit));
  const std::uint64_t end = granule * (1 + draw(chance(30) ? 128 : 8));
  switch (self.turn++ % 3) {
    case 0: return app_want(index, {peak, peak, within_ns, unit});
    case 1: return app_want(index, {end, end, within_ns, 0});
    default: return app_give(index, ~std::uint64_t{0});
  }
}

// A growth takes units, and its end, which may be smaller if there are several.
void simulation::check_cut(const std::vector<market_handle>& lot, std::uint64_t unit_bytes) {
  if (unit_bytes == 0) return;
  ++counts["lots in units"];
  std::uint64_t bytes = 0;
  for (const market_handle& each : lot) bytes += each.size_bytes();
  std::vector<std::uint64_t> sizes(bytes / unit_bytes, unit_bytes);
  if (sizes.size() > 1) sizes.back() = (1 + draw(unit_bytes / granule)) * granule;
  if (!serves(lot, sizes))
    fail("a lot in units of " + std::to_string(unit_bytes / MiB) + " MiB does not serve " +
         std::to_string(sizes.back() / MiB));
}

void simulation::app_give(int index, std::uint64_t bytes) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  process& mine = processes_[static_cast<std::size_t>(self.process)];
  std::vector<market_handle> given;
  std::uint64_t sum = 0;
  for (const auto& [id, handle] : mine.used) {
    if (sum >= bytes) break;
    sum += handle.size_bytes();
    given.push_back(handle);
  }
  for (const market_handle& each : given) unmap(mine, each.id);
  if (!given.empty()) self.machine->give(given);
  pump_tenant(index);
}

// Memory of these programs is idle or in use by chance.
void simulation::app_ask(int index, const market_message& ask) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  if (self.is_done) return;
  if (ask.within_ns == 0) fail("an ask has no time");
  if (self.is_stopped) {
    self.backlog.push_back([this, index, ask] { app_ask(index, ask); });
    return;
  }
  const vmm::market_tenant::refusal kept{.request = ask.request, .bytes = ask.bytes};
  if (ask.only_idle && chance(90)) {
    self.machine->cannot(kept);
    pump_tenant(index);
    return;
  }
  if (self.gives_never && !is_winding_down_) {
    if (chance(50)) self.machine->cannot(kept);
    pump_tenant(index);
    return;
  }
  app_give(index, chance(70) ? ask.bytes : ask.bytes / 2);
  self.machine->cannot(kept);
  pump_tenant(index);
}

void simulation::app_step(int index) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  if (self.is_done) return;
  if (self.is_stopped) {
    self.backlog.push_back([this, index] { app_step(index); });
    return;
  }
  if (--steps_left_ < 0) return finish_tenant(index);
  const std::uint64_t dice = draw(100);
  note(dice);
  if (dice < trouble_) {
    switch (draw(8)) {
      case 0: return kill_tenant(index);
      case 1: stop_tenant(index); break;
      case 2: kill_owner(); break;
      case 3: fork_child(index); break;
      case 4:
        if (owner_ && !owner_stopped_) {
          owner_stopped_ = true;
          at(static_cast<std::int64_t>(1 + draw(400)) * ms, [this, epoch = epoch_] {
            if (epoch != epoch_ || !owner_) return;
            owner_stopped_ = false;
            owner_ran_ns_ = now_ns_;
            std::vector<std::function<void()>> backlog = std::exchange(owner_backlog_, {});
            for (const auto& each : backlog) to_owner(each);
            if (owner_) owner_->tick(now_ns_);
            pump_owner();
          });
        }
        break;
      case 5: outside_bytes_ = draw(4) * 64 * MiB; break;
      case 6: change_share(); break;
      default:
        if (const std::uint64_t link = self.link; link != 0) {
          close_link(link);
          if (links_.at(link).epoch == epoch_)
            to_owner([this, link] { owner_->lost(link, now_ns_); });
        }
        break;
    }
  } else if (self.is_program) {
    program_step(index);
  } else if (dice < 60) {
    app_want(index);
  } else if (dice < 90) {
    app_give(index, (1 + draw(6)) * 64 * MiB);
  } else {
    check_deadlines(index);
  }
  at(static_cast<std::int64_t>(1 + draw(chance(10) ? 1000 : 50)) * ms,
     [this, index, number = self.process] {
       if (tenants_[static_cast<std::size_t>(index)].process == number) app_step(index);
     });
}

// ---- trouble -------------------------------------------------------------------------

void simulation::kill_tenant(int index) {
  ++counts["kills"];
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  const int number = self.process;
  process& gone = processes_[static_cast<std::size_t>(number)];
  gone.has_ended = true;
  self.is_done = true;
  self.deadlines.clear();
  self.least_bytes.clear();
  if (self.link != 0) {
    const std::uint64_t link = std::exchange(self.link, 0);
    const std::int64_t last_ns = std::max<std::int64_t>(links_.at(link).to_owner_ns - now_ns_, 0);
    at(last_ns + 1, [this, link, epoch = epoch_] {
      if (epoch != epoch_) return;
      to_owner([this, link] {
        if (!std::exchange(links_.at(link).is_open, false)) return;
        owner_->lost(link, now_ns_);
      });
    });
  }
  at(static_cast<std::int64_t>(draw(160)) * ms, [this, number] { notice_end(number); });
  if (gone.children == 0) end_process(number);
  // Another process of the same program.
  at(static_cast<std::int64_t>(draw(200)) * ms, [this, index] { start_tenant(index); });
}

// The last process that has the driver's descriptors: the witness closes, then the device is quiet.
void simulation::end_process(int number) {
  const std::int64_t witness_ns = static_cast<std::int64_t>(draw(100)) * ms;
  at(witness_ns, [this, number] { notice_witness(number); });
  at(witness_ns + static_cast<std::int64_t>(draw(190)) * ms, [this, number] { tear_down(number); });
}

void simulation::stop_tenant(int index) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  self.is_stopped = true;
  at(static_cast<std::int64_t>(1 + draw(2000)) * ms, [this, index, number = self.process] {
    if (tenants_[static_cast<std::size_t>(index)].process == number) resume_tenant(index);
  });
}

void simulation::resume_tenant(int index) {
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  if (!self.is_stopped || self.is_done) return;
  self.is_stopped = false;
  self.stopped_ns = now_ns_;
  const std::vector<std::function<void()>> backlog = std::exchange(self.backlog, {});
  const int number = self.process;
  for (std::size_t i = 0; i < backlog.size(); ++i) {
    backlog[i]();
    if (self.process != number || self.is_done) return;
    if (!self.is_stopped) continue;
    self.backlog.insert(self.backlog.begin(), backlog.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                        backlog.end());
    return;
  }
  self.machine->tick(now_ns_);
  pump_tenant(index);
}

void simulation::fork_child(int index) {
  const int number = tenants_[static_cast<std::size_t>(index)].process;
  ++counts["forks"];
  ++processes_[static_cast<std::size_t>(number)].children;
  at(static_cast<std::int64_t>(1 + draw(1500)) * ms, [this, number] {
    process& parent = processes_[static_cast<std::size_t>(number)];
    if (--parent.children == 0 && parent.has_ended) end_process(number);
  });
}

// The program's end: it gives all and leaves.
void simulation::finish_tenant(int index) {
  is_winding_down_ = true;
  tenant_side& self = tenants_[static_cast<std::size_t>(index)];
  app_give(index, ~std::uint64_t{0});
  const bool is_refused = self.machine->stage() == tenant_stage::refused;
  if (!self.deadlines.empty() || (self.machine->stage() != tenant_stage::open && !is_refused)) {
    check_deadlines(index);
    at(50 * ms, [this, index, number = self.process] {
      tenant_side& again = tenants_[static_cast<std::size_t>(index)];
      if (again.process != number || again.is_done) return;
      if (again.is_stopped) {
        again.backlog.push_back([this, index] { finish_tenant(index); });
      } else {
        finish_tenant(index);
      }
    });
    return;
  }
  if (!self.machine->handles().in_use().empty()) fail("a tenant keeps memory that no program has");
  if (!is_refused && chance(70)) {
    self.machine->leave();
    pump_tenant(index);
  }
  self.is_done = true;
  const int number = self.process;
  processes_[static_cast<std::size_t>(number)].has_ended = true;
  if (self.link != 0) {
    const std::uint64_t link = std::exchange(self.link, 0);
    at(std::max<std::int64_t>(links_.at(link).to_owner_ns - now_ns_, 0) + 1, [this, link] {
      if (links_.at(link).epoch != epoch_) return;
      to_owner([this, link] {
        if (std::exchange(links_.at(link).is_open, false)) owner_->lost(link, now_ns_);
      });
    });
  }
  at(1 * ms, [this, number] { notice_end(number); });
  if (processes_[static_cast<std::size_t>(number)].children == 0) end_process(number);
}

}  // namespace market_test
