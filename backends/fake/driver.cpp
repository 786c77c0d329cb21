// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - the driver object: made, moved, asked about, told to fail.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

module vmm.fake;

import vmm.backend;
import :state;

namespace vmm {

using fake::driver_state;

namespace fake {

namespace {

// 47 bits of addresses; the lowest 64 GiB are never given, so that a small number is never a good
// address.
constexpr std::uint64_t lowest_address = std::uint64_t{1} << 36;
constexpr std::uint64_t highest_address = std::uint64_t{1} << 47;

void check_profile(const profile& machine) {
  check(machine.device_count >= 0 && machine.device_count <= max_device_count,
        "a profile has at most max_device_count devices");
  check(machine.node_count >= 0 && machine.node_count <= max_node_count,
        "a profile has at most max_node_count NUMA nodes");
  for (const granularity& each : {machine.device_granularity, machine.host_granularity}) {
    check(each.minimum_bytes != 0 && each.minimum_bytes % contents::page_bytes == 0,
          "granularities are multiples of 4 KiB");
  }
  check(machine.address_alignment_bytes != 0, "a profile says how addresses are aligned");
  check(machine.costs.traffic_bytes_per_us > 0 && machine.costs.host_bytes_per_us > 0,
        "bandwidths are above 0");
}

}  // namespace

world::world(const profile& machine) : state_(std::make_shared<world_state>(machine)) {}
world::~world() = default;

driver_state::driver_state(const profile& played, std::shared_ptr<world_state> machine)
    : plays(played), world(std::move(machine)), space(lowest_address, highest_address, &nodes) {
  check_profile(plays);
  check(world->device_free.size() == static_cast<std::size_t>(plays.device_count),
        "a driver plays as many devices as its world has");
  lanes.emplace_back();  // the default stream's
}

driver_state::~driver_state() {
  const std::lock_guard<std::mutex> hold(world->mutex);
  for (const auto& [base, joined] : mappings) {
    --world->memories.find(joined.memory)->mappings;
    world->drop_if_unused(joined.memory);
  }
  handles.each([&](std::uint64_t, const handle_record& record) {
    --world->memories.find(record.memory)->handles;
    world->drop_if_unused(record.memory);
  });
}

}  // namespace fake

fake_driver::fake_driver(const fake::profile& plays)
    : state_(std::make_unique<driver_state>(plays, std::make_shared<fake::world_state>(plays))) {}
fake_driver::fake_driver(const fake::profile& plays, fake::world& machine)
    : state_(std::make_unique<driver_state>(plays, machine.state_)) {}
fake_driver::~fake_driver() { leave_if_forked(); }
fake_driver::fake_driver(fake_driver&&) noexcept = default;
fake_driver& fake_driver::operator=(fake_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
  }
  return *this;
}

// The lock of the world may be held by a thread that a forked child does not have.
void fake_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->world->made_in.is_here()) leave_behind(state_.release());
}

std::string_view fake_driver::name() const noexcept { return state_->plays.name; }
const features& fake_driver::feature_set() const noexcept { return state_->plays.can; }
location fake_driver::home() const noexcept { return state_->plays.home; }
const fake::profile& fake_driver::playing() const noexcept { return state_->plays; }

void fake_driver::fail(const fake::fault& planned) {
  check(planned.failure.code != errc::none, "a planned fault has a code");
  check(planned.nth > 0, "faults count from 1, which is the next call");
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  state_->faults.push_back({planned, 0});
  state_->note_noise();
}

void fake_driver::clear_faults() {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  state_->faults.clear();
  state_->note_noise();
}

std::uint64_t fake_driver::faults_struck() const {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  return state_->faults_struck;
}

std::uint64_t fake_driver::calls(call where) const {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  return state_->call_counts[static_cast<std::size_t>(where)];
}

std::uint64_t fake_driver::calls() const {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  std::uint64_t sum = 0;
  for (const std::uint64_t each : state_->call_counts) sum += each;
  return sum;
}

void fake_driver::reset_calls() {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  state_->call_counts = {};
}

std::uint64_t fake_driver::now_ns() const {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  return state_->now_ns;
}

std::uint64_t fake_driver::busy_ns() const {
  const std::lock_guard<std::mutex> hold(state_->world->mutex);
  return state_->busy_ns;
}

double fake_driver::now_us() const { return static_cast<double>(now_ns()) / 1000.0; }
double fake_driver::busy_us() const { return static_cast<double>(busy_ns()) / 1000.0; }

status fake_driver::advance_us(double us) {
  check(us >= 0, "time does not go back");
  driver_state& s = *state_;
  return s.look<void>([&]() -> status {
    s.now_ns += static_cast<std::uint64_t>(us * 1000.0 + 0.5);
    s.world->now_ns = std::max(s.world->now_ns, s.now_ns);
    s.settle();
    return {};
  });
}

}  // namespace vmm
