// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - the driver object: creation, moves, queries, planned faults.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm {

using fake::fake_state;

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

machine::machine(const profile& description)
    : state_(std::make_shared<machine_state>(description)) {}
machine::~machine() = default;

fake_state::fake_state(const profile& described, std::shared_ptr<machine_state> shared)
    : emulated(described),
      machine(std::move(shared)),
      space(lowest_address, highest_address, &nodes) {
  check_profile(emulated);
  emulated.can.multicast_capable = emulated.can.multicast_capable || emulated.can.multicast;
  check(machine->device_free.size() == static_cast<std::size_t>(emulated.device_count),
        "a driver emulates as many devices as its machine has");
  emulated.can.clock = this;
  queues.emplace_back();  // the default stream's
}

fake_state::~fake_state() {
  const std::lock_guard<std::mutex> locked(machine->mutex);
  check(counts.mappings == mappings.size() && counts.handles == handles.live(),
        "the counts of a driver that ends are wrong");
  for (const auto& [base, joined] : mappings) {
    check(machine->memories.find(joined.memory)->mappings != 0, "a mapping has no memory");
    --machine->memories.find(joined.memory)->mappings;
    machine->drop_if_unused(joined.memory);
  }
  handles.each([&](std::uint64_t, const handle_record& record) {
    check(machine->memories.find(record.memory)->handles != 0, "a handle has no memory");
    --machine->memories.find(record.memory)->handles;
    machine->drop_if_unused(record.memory);
  });
}

}  // namespace fake

fake_driver::fake_driver(const fake::profile& emulated)
    : state_(std::make_unique<fake_state>(emulated,
                                          std::make_shared<fake::machine_state>(emulated))) {}
fake_driver::fake_driver(const fake::profile& emulated, fake::machine& shared)
    : state_(std::make_unique<fake_state>(emulated, shared.state_)) {}
fake_driver::~fake_driver() { leave_if_forked(); }
fake_driver::fake_driver(fake_driver&&) noexcept = default;
fake_driver& fake_driver::operator=(fake_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
    check(other.state_ == nullptr, "an object that was moved from has a state");
  }
  return *this;
}

// The lock of the machine may be held by a thread that a forked child does not have.
void fake_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->machine->made_in.is_here()) leave_behind(state_.release());
  check(state_ == nullptr || state_->machine->made_in.is_here(),
        "a parent's state is about to be destroyed");
}

std::string_view fake_driver::name() const noexcept {
  check(state_ != nullptr, fake::moved_from);
  return state_->emulated.name;
}
const features& fake_driver::feature_set() const noexcept {
  check(state_ != nullptr, fake::moved_from);
  return state_->emulated.can;
}
location fake_driver::home() const noexcept {
  check(state_ != nullptr, fake::moved_from);
  return state_->emulated.home;
}
const fake::profile& fake_driver::emulated() const noexcept {
  check(state_ != nullptr, fake::moved_from);
  return state_->emulated;
}

void fake_driver::fail(const fake::fault& planned) {
  check(state_ != nullptr, fake::moved_from);
  check(planned.failure.code != errc::none, "a planned fault has a code");
  check(planned.nth > 0, "faults count from 1, which is the next call");
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  state_->faults.push_back({planned, 0});
  state_->note_pending();
}

void fake_driver::clear_faults() {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  state_->faults.clear();
  state_->note_pending();
}

std::uint64_t fake_driver::faults_struck() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  return state_->faults_struck;
}

std::uint64_t fake_driver::calls(call where) const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  check(static_cast<std::size_t>(where) < call_count, "no such call");
  return state_->call_counts[static_cast<std::size_t>(where)];
}

std::uint64_t fake_driver::calls() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  std::uint64_t sum = 0;
  for (const std::uint64_t each : state_->call_counts) sum += each;
  check(state_->call_counts[0] == 0, "a call of no kind was made");
  return sum;
}

void fake_driver::reset_calls() {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  state_->call_counts = {};
}

std::uint64_t fake_driver::now_ns() const {
  check(state_ != nullptr, fake::moved_from);
  const std::lock_guard<std::mutex> locked(state_->machine->mutex);
  return state_->now_ns;
}

std::uint64_t fake_driver::busy_ns() const {
  check(state_ != nullptr, fake::moved_from);
  return state_->read_ns();
}

double fake_driver::now_us() const { return static_cast<double>(now_ns()) / 1000.0; }
double fake_driver::busy_us() const { return static_cast<double>(busy_ns()) / 1000.0; }

status fake_driver::advance_us(double us) {
  check(state_ != nullptr, fake::moved_from);
  check(us >= 0, "time does not run backwards");
  fake_state& s = *state_;
  return s.look<void>([&]() -> status {
    s.now_ns += static_cast<std::uint64_t>(us * 1000.0 + 0.5);
    s.machine->now_ns = std::max(s.machine->now_ns, s.now_ns);
    s.run_due();
    return {};
  });
}

}  // namespace vmm
