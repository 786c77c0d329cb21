// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The world around the machines: processes, connections and the driver.
#include "simulation.hpp"

namespace market_test {

simulation::simulation(std::uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15u + 1) {
  device_bytes_ = (16 + draw(48)) * 64 * MiB;
  trouble_ = static_cast<unsigned>(draw(3) * 10);
  const int count = 2 + static_cast<int>(draw(7));
  steps_left_ = 10 + static_cast<int>(draw(30));
  const int group_count = 1 + static_cast<int>(draw(3));
  tenants_.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    tenant_side& each = tenants_[static_cast<std::size_t>(i)];
    each.group = 1 + static_cast<int>(draw(static_cast<std::uint64_t>(group_count)));
    each.job = static_cast<int>(draw(3));
    each.gives_never = chance(15);
    each.is_program = chance(25);
    each.self.name = vmm::make_market_name("t" + std::to_string(i));
    each.self.group = vmm::make_market_name("g" + std::to_string(each.group));
    each.self.job = static_cast<std::uint64_t>(each.job);
    each.self.share.priority = static_cast<std::uint8_t>(draw(3));
    each.self.share.elastic = chance(30);
    if (chance(50)) each.self.share.guarantee_bytes = draw(8) * 64 * MiB;
    if (chance(20))
      each.self.share.limit_bytes = each.self.share.guarantee_bytes + (1 + draw(8)) * 64 * MiB;
    if (chance(30)) each.self.wait_ns = draw(3000) * ms;
    each.shared_process = chance(50) ? static_cast<std::uint64_t>(i) + 1 : 0;
    if (i != 0 && chance(30)) {  // a second tenant of a process
      tenant_side& first = tenants_[static_cast<std::size_t>(i) - 1];
      if (first.shared_process == 0) first.shared_process = static_cast<std::uint64_t>(i);
      each.group = first.group;
      each.job = first.job;
      each.self = first.self;
      each.shared_process = first.shared_process;
    }
    at(static_cast<std::int64_t>(draw(20)) * ms, [this, i] { start_tenant(i); });
  }
}

void simulation::at(std::int64_t in_ns, std::function<void()> what) {
  events_.push({now_ns_ + in_ns, ++order_, std::move(what)});
}

void simulation::fail(const std::string& what) {
  if (broken.empty()) broken = what + " at " + std::to_string(now_ns_ / 1000) + " us";
}

// ---- memory --------------------------------------------------------------------------

int simulation::create_memory(std::uint64_t size_bytes) {
  if (used_bytes_ + outside_bytes_ + size_bytes > device_bytes_) return -1;
  used_bytes_ += size_bytes;
  memories_.push_back({.size_bytes = size_bytes, .references = 1});
  return static_cast<int>(memories_.size()) - 1;
}

void simulation::refer(int number, int by) {
  memory& of = memories_[static_cast<std::size_t>(number)];
  of.references += by;
  if (of.references < 0) fail("a descriptor is closed twice");
  if (of.references == 0) used_bytes_ -= of.size_bytes;
}

void simulation::map(int tenant, const market_handle& handle) {
  tenant_side& by = tenants_[static_cast<std::size_t>(tenant)];
  process& self = processes_[static_cast<std::size_t>(by.process)];
  const auto found = self.imports.find(handle.id);
  if (found == self.imports.end()) return fail("a handle is granted without its memory");
  memory& what = memories_[static_cast<std::size_t>(found->second)];
  if (what.size_bytes != handle.size_bytes()) fail("a handle has another size");
  if (what.mapped_by >= 0)
    fail("a handle is lent twice: process " + std::to_string(what.mapped_by) + " has it");
  if (what.group != 0 && what.group != by.group) fail("bytes leave their group");
  const bool is_own = what.group == 0 || (what.job != 0 && what.job == by.job);
  if (!is_own && !handle.must_clear)
    fail("bytes of another job are not to be cleared: handle " + std::to_string(handle.id) +
         " generation " + std::to_string(handle.generation));
  if (what.mapped_by != by.process) ++counts["mappings"];
  what.mapped_by = by.process;
  what.group = by.group;
  what.job = by.job;
  self.used[handle.id] = handle;
  self.used[handle.id].must_clear = false;
}

void simulation::unmap(process& from, std::uint64_t handle) {
  const auto found = from.imports.find(handle);
  if (found == from.imports.end()) return fail("a handle is unmapped that is not imported");
  memories_[static_cast<std::size_t>(found->second)].mapped_by = -1;
  from.used.erase(handle);
}

void simulation::tear_down(int number) {
  process& gone = processes_[static_cast<std::size_t>(number)];
  if (gone.is_torn_down) return;
  gone.is_torn_down = true;
  for (const auto& [handle, what] : gone.imports) {
    if (gone.used.contains(handle)) memories_[static_cast<std::size_t>(what)].mapped_by = -1;
    refer(what, -1);
  }
  gone.imports.clear();
  gone.used.clear();
}

// ---- the owner -----------------------------------------------------------------------

void simulation::start_owner() {
  if (owner_) return;
  vmm::owner_options options;
  options.epoch = ++epoch_ * 1000 + 7;
  options.first_handle = epoch_ << 32;
  options.capacity_bytes = device_bytes_;
  options.context_bytes = 0;
  options.reserve_bytes = 128 * MiB;
  options.takes_stock = epoch_ > 1 && !owner_has_ended_;
  owner_ = std::make_unique<market_owner>(options, now_ns_);
  owner_stopped_ = false;
  owner_has_ended_ = false;
  owner_had_any_ = false;
  owner_ran_ns_ = now_ns_;
  claims_.clear();
}

void simulation::kill_owner() {
  if (!owner_) return;
  ++counts["kills"];
  ++counts["restarts"];
  owner_.reset();
  owner_backlog_.clear();
  for (const auto& [handle, what] : owner_memory_) refer(what, -1);
  owner_memory_.clear();
  creates_in_flight_ = 0;
  close_links();
}

void simulation::close_links() {
  std::vector<std::uint64_t> open;
  for (const auto& [number, link] : links_) {
    if (link.is_open) open.push_back(number);
  }
  for (const std::uint64_t each : open) close_link(each);
}

void simulation::to_owner(const std::function<void()>& what) {
  if (!owner_) return;
  if (owner_stopped_) {
    owner_backlog_.push_back(what);
    return;
  }
  what();
  pump_owner();
}

void simulation::check_owner() {
  if (const vmm::status valid = owner_->validate(); !valid) fail(valid.error().detail);
  if (creates_in_flight_ > 1) fail("a create is beside another");
  const auto last = claims_;
  for (const vmm::tenant_record& each : owner_->state().records.tenants()) {
    if (!each.is_there()) continue;
    const std::uint64_t limit_bytes = each.share.limit_bytes;
    const std::uint64_t claimed = vmm::process_bytes(owner_->state(), each);
    const auto& records = owner_->state().records;
    bool is_earlier = false;
    std::uint64_t before = 0;  // of the process, which may have a new tenant
    for (const vmm::tenant_record& other : records.tenants()) {
      if (!records.are_one(other, each)) continue;
      is_earlier |= other.is_earlier;
      if (last.contains(other.number)) before = std::max(before, last.at(other.number));
    }
    claims_[each.number] = claimed;
    if (limit_bytes != 0 && !is_earlier && claimed > std::max(limit_bytes, before))
      fail("a limit is exceeded");
    if (each.is_waiting_to_join && now_ns_ > each.join_ns + 5 * ms &&
        now_ns_ > owner_ran_ns_ + 5 * ms)
      fail("a tenant waits to join past its time");
    if (each.is_waiting_to_join) ++counts["events beside a tenant that waits to join"];
  }
  if (owner_->state().records.late_importers() != 0) ++counts["events beside a late import"];
  for (const vmm::request_record& each : owner_->state().records.requests) {
    const std::int64_t late_ns = each.is_building() ? 1 * s : 0;
    if (now_ns_ > each.deadline_ns + late_ns + 5 * ms && now_ns_ > owner_ran_ns_ + 5 * ms)
      fail("a request has no end");
  }
}

void simulation::driver_create(std::uint64_t handle, std::uint64_t size_bytes) {
  ++creates_in_flight_;
  const std::int64_t took_ns = chance(10) ? 60 * ms : 20 * us;
  at(took_ns, [this, handle, size_bytes, epoch = epoch_] {
    if (!owner_ || epoch != epoch_) return;
    to_owner([this, handle, size_bytes] {
      --creates_in_flight_;
      const int made = chance(trouble_ / 10) ? -1 : create_memory(size_bytes);
      if (made >= 0) owner_memory_[handle] = made;
      if (made < 0) ++counts["refused creates"];
      owner_->created(handle, made >= 0, now_ns_);
    });
  });
}

// A borrower that was recalled, or could not be in that time.
bool simulation::is_to_blame(const vmm::tenant_record& holder, std::int64_t since_ns) const {
  const vmm::owner_state& state = owner_->state();
  if (vmm::process_bytes(state, holder) <= holder.share.guarantee_bytes) return false;
  const bool was_time = now_ns_ - since_ns > 150 * ms && owner_ran_ns_ <= since_ns;
  if (!was_time || holder.ask.request != 0) return true;
  return holder.cannot_ns - state.options.cannot_ns >= since_ns;
}

void simulation::change_share() {
  if (!owner_ || owner_stopped_) return;
  market_message message;
  message.kind = chance(10) ? market_kind::drain : market_kind::set_share;
  std::vector<std::uint64_t> numbers;
  for (const vmm::tenant_record& each : owner_->state().records.tenants()) {
    if (each.is_there()) numbers.push_back(each.number);
  }
  message.tenant = numbers.empty() || chance(5) ? 77 : numbers[draw(numbers.size())];
  message.share.guarantee_bytes = draw(6) * 64 * MiB;
  if (chance(60)) message.share.limit_bytes = (1 + draw(10)) * 64 * MiB;
  message.share.priority = static_cast<std::uint8_t>(draw(9));
  ++counts["changed shares"];
  constexpr std::uint64_t controlling = ~std::uint64_t{0};  // a connection beside the tenants'
  to_owner([this, message] { owner_->receive(controlling, message, now_ns_); });
}

// No request that is left fits, and none is refused that could be served a second later.
void simulation::check_deadlock(std::int64_t since_ns) {
  ++counts["deadlocks"];
  const vmm::owner_state& state = owner_->state();
  if (state.records.sums().granted_bytes != 0 && now_ns_ < since_ns + 1 * s)
    fail("a deadlock is ended at once");
  for (const vmm::request_record& each : state.records.requests) {
    const vmm::tenant_record* const of = state.records.tenant(each.tenant);
    if (of == nullptr || each.is_building()) continue;
    const std::uint64_t claimed = vmm::process_bytes(state, *of) + each.least_bytes;
    const bool is_guaranteed = claimed <= of->share.guarantee_bytes;
    const std::uint64_t created = state.records.sums().granted_bytes + each.least_bytes;
    if (is_guaranteed && created <= state.usable_bytes) fail("a deadlock, and a guarantee fits");
  }
}

void simulation::check_denial(const market_message& message, std::uint64_t link) {
  ++counts["refusals"];
  if (message.reason != market_reason::deadline && message.reason != market_reason::deadlock &&
      message.reason != market_reason::too_large)
    return;
  const int index = links_.at(link).tenant;
  const tenant_side& side = tenants_[static_cast<std::size_t>(index)];
  if (links_.at(link).process != side.process) return;   // a killed process's request
  const std::uint64_t number = owner_->tenant_of(link);  // an earlier process has the same name
  const auto least = side.least_bytes.find(message.request);
  const auto deadline = side.deadlines.find(message.request);
  if (least == side.least_bytes.end() || deadline == side.deadlines.end()) return;
  if (message.reason == market_reason::deadlock) check_deadlock(side.since_ns.at(message.request));
  std::uint64_t charge = 0, guaranteed = 0, guarantee = 0;
  for (const vmm::tenant_record& each : owner_->state().records.tenants()) {
    if (!each.is_there()) continue;
    if (vmm::is_first(owner_->state().records, each) && !each.is_waiting_to_join)
      guaranteed += each.share.guarantee_bytes;
    if (each.number != number) continue;
    charge = vmm::process_bytes(owner_->state(), each);
    guarantee = each.share.guarantee_bytes;
  }
  if (charge + least->second > guarantee) return;
  if (owner_->state().usable_bytes < device_bytes_) return;  // the driver is to blame
  // Its lot came in slow creates, one after the other, until it was not awaited any more.
  const bool is_late = now_ns_ - deadline->second >= owner_->state().options.build_ns;
  if (is_late && owner_->state().creating != 0) return;
  if (guaranteed > device_bytes_) return;  // admitted by an earlier owner, and others since
  const std::int64_t since_ns = side.since_ns.at(message.request);
  bool is_blamed = false;
  for (const vmm::market_row& row : message.row_list()) {
    if (row.tenant == number) continue;
    const vmm::tenant_record* const holder = owner_->state().records.tenant(row.tenant);
    is_blamed |=
        row.overdue || row.is_silent || (holder != nullptr && is_to_blame(*holder, since_ns));
  }
  if (is_blamed) return;
  const vmm::market_sums& sums = owner_->state().records.sums();
  fail("a guarantee is not met, and no tenant is named: tenant " + std::to_string(index) + " has " +
       std::to_string(charge / MiB) + " and needs " + std::to_string(least->second / MiB) + " of " +
       std::to_string(guarantee / MiB) + " MiB, " + vmm::text_of(message.reason) + "; free " +
       std::to_string(sums.free_bytes / MiB) + ", void " + std::to_string(sums.void_bytes / MiB) +
       ", granted " + std::to_string(sums.granted_bytes / MiB) + ", quarantined " +
       std::to_string(sums.quarantined_bytes / MiB) + ", usable " +
       std::to_string(owner_->state().usable_bytes / MiB) + ", late by " +
       std::to_string((now_ns_ - deadline->second) / us) + " us");
}

void simulation::pump_owner() {
  if (!owner_ || owner_stopped_) return;
  for (int turns = 0; turns < 1000; ++turns) {
    std::vector<owner_action> actions = owner_->take_actions();
    if (actions.empty()) break;
    for (owner_action& each : actions) {
      note(static_cast<std::uint64_t>(each.kind) * 31 + each.handle);
      switch (each.kind) {
        case owner_action::what::send: {
          trace("from owner", each.connection, each.message);
          if (each.message.kind == market_kind::denied) check_denial(each.message, each.connection);
          if (each.message.kind == market_kind::ask) ++counts["recalls"];
          if (each.message.only_idle) ++counts["recalls of idle memory"];
          if (each.message.reason == market_reason::broken && !spoils_)
            fail("the owner refuses a message that no fault has changed");
          const auto found = links_.find(each.connection);
          if (found == links_.end() || !found->second.is_open) break;
          std::vector<int> memories;
          for (const market_handle& handle : each.message.handle_list()) {
            if (!handle.has_descriptor) continue;
            const auto memory = owner_memory_.find(handle.id);
            if (memory == owner_memory_.end()) {
              fail("a grant has no memory");
              continue;
            }
            memories.push_back(memory->second);
          }
          const letter sent = seal(each.message, std::move(memories));
          std::int64_t& last = found->second.to_tenant_ns;
          last = std::max(last, now_ns_ + static_cast<std::int64_t>(20 + draw(300)) * us);
          at(last - now_ns_,
             [this, link = each.connection, sent] { deliver_to_tenant(link, sent); });
          break;
        }
        case owner_action::what::create: driver_create(each.handle, each.bytes); break;
        case owner_action::what::release: {
          refer(owner_memory_.at(each.handle), -1);
          owner_memory_.erase(each.handle);
          at(20 * us, [this, handle = each.handle, epoch = epoch_] {
            if (owner_ && epoch == epoch_)
              to_owner([this, handle] { owner_->released(handle, now_ns_); });
          });
          break;
        }
        case owner_action::what::adopt:
          if (receiving_ == nullptr || each.index >= receiving_->size()) {
            fail("a handle is adopted without a descriptor");
            break;
          }
          owner_memory_[each.handle] = (*receiving_)[each.index];
          refer(owner_memory_[each.handle], 1);
          break;
        case owner_action::what::close: close_link(each.connection); break;
        case owner_action::what::end: owner_has_ended_ = true; break;
      }
    }
  }
  check_owner();
  const auto& tenants = owner_->state().records.tenants();
  const bool is_empty = std::none_of(tenants.begin(), tenants.end(),
                                     [](const auto& each) { return each.is_there(); });
  if (owner_has_ended_ && is_empty && creates_in_flight_ == 0) {
    for (const auto& [handle, what] : owner_memory_) refer(what, -1);
    owner_memory_.clear();
    owner_.reset();
    return close_links();
  }
  schedule_owner_tick();
}

void simulation::schedule_owner_tick() {
  const std::int64_t next_ns = owner_->next_deadline_ns();
  if (next_ns == std::numeric_limits<std::int64_t>::max()) return;
  at(std::max<std::int64_t>(next_ns - now_ns_, 1), [this, epoch = epoch_] {
    if (!owner_ || epoch != epoch_ || owner_stopped_) return;
    if (owner_->next_deadline_ns() > now_ns_) return;  // a later tick is due
    owner_->tick(now_ns_);
    pump_owner();
  });
}

void simulation::trace(const char* what, std::uint64_t link, const market_message& message) const {
  static const bool is_on = std::getenv("VMM_MARKET_TRACE") != nullptr;
  if (!is_on) return;
  std::printf(
      "%lld us %s %llu: kind %u request %llu bytes %llu MiB in %lld us, reason %u, %u handles\n",
      static_cast<long long>(now_ns_ / 1000), what, static_cast<unsigned long long>(link),
      static_cast<unsigned>(message.kind), static_cast<unsigned long long>(message.request),
      static_cast<unsigned long long>(message.bytes / MiB),
      static_cast<long long>(message.within_ns / 1000), static_cast<unsigned>(message.reason),
      message.handle_count);
  for (const market_handle& each : message.handle_list())
    std::printf("    handle %llu generation %u%s%s%s\n", static_cast<unsigned long long>(each.id),
                each.generation, each.must_clear ? " to clear" : "",
                each.has_descriptor ? " new" : "", each.in_use ? " in use" : "");
}

letter simulation::seal(const market_message& message, std::vector<int> memories) {
  for (const int each : memories) refer(each, 1);
  return {message, std::shared_ptr<const std::vector<int>>(
                       new std::vector<int>(std::move(memories)), [this](const auto* ended) {
                         for (const int each : *ended) refer(each, -1);
                         delete ended;
                       })};
}

// Closures have letters, which close descriptors.
simulation::~simulation() {
  events_ = {};
  owner_backlog_.clear();
  for (tenant_side& each : tenants_) each.backlog.clear();
}

void simulation::deliver_to_owner(std::uint64_t link, letter what) {
  const auto found = links_.find(link);
  const bool is_there = owner_ && found->second.epoch == epoch_;
  if (!is_there) return;
  to_owner([this, link, what] {
    const connection& of = links_.at(link);
    if (!of.is_open) return;
    note(static_cast<std::uint64_t>(what.message.kind) * 131 + link);
    trace("to owner", link, what.message);
    const unsigned luck = static_cast<unsigned>(draw(1000));
    receiving_ = what.memories.get();
    spoils_ = luck < trouble_ / 10;
    if (spoils_) {
      owner_->reject(link, now_ns_);
    } else {
      market_message message = what.message;
      if (luck > 999 - trouble_ / 10 && message.kind != market_kind::hello) {
        message.epoch ^= 1;
        spoils_ = true;
      }
      owner_->receive(link, message, now_ns_,
                      tenants_[static_cast<std::size_t>(of.tenant)].shared_process);
      const std::uint64_t number = owner_->tenant_of(link);
      if (number != 0) {
        process& self = processes_[static_cast<std::size_t>(of.process)];
        const bool is_new = self.owner_number != number || self.epoch != epoch_;
        self.owner_number = number;
        self.epoch = epoch_;
        owner_had_any_ = true;
        // A descriptor that is readable when it arrives.
        if (is_new && self.has_ended) at(1, [this, n = of.process] { notice_end(n); });
        if (is_new && self.has_closed) at(1, [this, n = of.process] { notice_witness(n); });
      }
      if (luck > 900 && luck < 940 && message.kind == market_kind::want) {
        pump_owner();
        if (owner_ && links_.at(link).is_open) owner_->receive(link, message, now_ns_);
      }
    }
    if (owner_) pump_owner();
    receiving_ = nullptr;
  });
}

void simulation::notice_end(int number) {
  const process& gone = processes_[static_cast<std::size_t>(number)];
  to_owner([this, tenant = gone.owner_number, epoch = gone.epoch] {
    if (tenant != 0 && epoch == epoch_) owner_->ended(tenant, now_ns_);
  });
}

void simulation::notice_witness(int number) {
  process& gone = processes_[static_cast<std::size_t>(number)];
  gone.has_closed = true;
  to_owner([this, tenant = gone.owner_number, epoch = gone.epoch] {
    if (tenant != 0 && epoch == epoch_) owner_->witness_closed(tenant, now_ns_);
  });
}

void simulation::close_link(std::uint64_t number) {
  const auto found = links_.find(number);
  if (found == links_.end() || !found->second.is_open) return;
  found->second.is_open = false;
  const connection of = found->second;
  at(std::max<std::int64_t>(of.to_tenant_ns - now_ns_, 0) + 1, [this, number, of] {
    tenant_side& side = tenants_[static_cast<std::size_t>(of.tenant)];
    if (side.link != number) return;
    const auto lose = [this, tenant = of.tenant, number] {
      tenant_side& self = tenants_[static_cast<std::size_t>(tenant)];
      if (self.link != number) return;
      self.link = 0;
      self.machine->lost(now_ns_);
      pump_tenant(tenant);
      connect(tenant);
    };
    if (side.is_stopped) {
      side.backlog.push_back(lose);
    } else {
      lose();
    }
  });
}

// ---- the end -------------------------------------------------------------------------

bool simulation::run() {
  std::uint64_t count = 0;
  while (!events_.empty() && broken.empty()) {
    if (++count > 200'000) {
      fail("the schedule does not end");
      break;
    }
    event next = events_.top();
    events_.pop();
    now_ns_ = std::max(now_ns_, next.at_ns);
    next.run();
  }
  if (broken.empty()) check_end();
  return broken.empty();
}

void simulation::check_end() {
  for (std::size_t i = 0; i < tenants_.size(); ++i) {
    const tenant_side& each = tenants_[i];
    if (!each.deadlines.empty()) fail("a request of tenant " + std::to_string(i) + " has no end");
    if (each.machine && !each.is_done) fail("tenant " + std::to_string(i) + " does not end");
  }
  for (const process& each : processes_) {
    if (each.has_ended && each.children == 0 && !each.is_torn_down) fail("a process stays");
  }
  // An owner that no tenant joined ends by its program's own time.
  if (owner_ && owner_->state().records.handles().empty() && !owner_had_any_) owner_.reset();
  if (owner_) {
    std::string left;
    for (const vmm::tenant_record& each : owner_->state().records.tenants()) {
      if (each.is_there())
        left += " " + std::to_string(each.number) + (each.connection != 0 ? " connected" : "") +
                (each.has_ended ? " ended" : "") + (each.has_witness ? " with witness" : "");
    }
    fail("the owner stays:" + left + (owner_stopped_ ? ", stopped" : "") + ", creates " +
         std::to_string(creates_in_flight_));
  }
  if (used_bytes_ != 0) fail("memory is lost: " + std::to_string(used_bytes_ / MiB) + " MiB");
}

}  // namespace market_test
