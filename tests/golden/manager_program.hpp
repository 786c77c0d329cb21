// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program of some 120 manager operations on three streams of a fake driver, with faults among
// them, chosen by a seed. It keeps the manager's rules for its own work and checks little: the
// model of the fuzz target manager checks contents. It imports what it uses, so it is the last
// include of a file, except others with imports.
#pragma once
#include "../../tools/program/standard.hpp"

import vmm.backend;
import vmm.fake;
import vmm.manager;

namespace golden {

/// `Driver` is the fake driver with `fake_driver&` as one of its conversions.
template <class Driver>
class manager_program {
 public:
  template <class... More>
  explicit manager_program(std::uint64_t seed, More... more)
      : random_(seed), plays_(machine(below(8))), driver_(plays_, more...) {
    has_streams_ = plays_.can.streams;
    is_manual_ = has_streams_ && below(2) == 1;
    if (has_streams_) {
      driver_.set_manual(is_manual_);
      for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i] = *driver_.create_stream();
      event_ = *fake().create_event();
    }
    managed_.emplace(driver_, chosen_options());
  }

  /// nullptr when all went well, else what did not.
  [[nodiscard]] const char* run() {
    const std::uint64_t count = 60 + below(120);
    while (operations_ < count && wrong_ == nullptr) operation();
    finish();
    return wrong_;
  }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  [[nodiscard]] std::uint64_t failures() const { return failures_; }
  [[nodiscard]] std::uint64_t faults() const { return driver_.faults_struck(); }
  /// Of the manager when all is freed.
  [[nodiscard]] const vmm::manager_statistics& last_statistics() const { return last_; }

 private:
  static constexpr std::uint64_t granules = 96;
  static constexpr std::size_t live_max = 16;
  struct block {
    vmm::address at{};
    std::uint64_t size_bytes = 0;
    std::size_t stream = 0;
    bool is_used = false;      // by work that may be unfinished
    bool is_shared = false;    // another block may show the same memory: nothing writes to it
    bool is_given_up = false;  // it may only be freed
  };

  [[nodiscard]] static vmm::fake::profile machine(std::uint64_t choice) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    if (choice % 4 == 1) plays = vmm::fake::profile::level_zero();
    if (choice % 4 == 2) plays = vmm::fake::profile::host();
    if (choice % 4 == 3) plays.can.alias = vmm::alias_level::none;
    if (choice >= 4) plays.can.spanning_unmap = false;
    const std::uint64_t granule_bytes = plays.device_granularity.recommended_bytes;
    plays.device_memory_bytes = granules * granule_bytes;
    plays.host_memory_bytes = granules * granule_bytes;
    return plays;
  }

  [[nodiscard]] vmm::manager_options chosen_options() {
    const std::uint64_t unit = granule_bytes();
    const std::array<std::uint64_t, 3> reservations{std::uint64_t{8} << 40, 16 * unit, 64 * unit};
    vmm::manager_options options;
    const std::uint64_t rules = below(3);
    options.policy = rules == 0   ? vmm::manager_policy::va_pool()
                     : rules == 1 ? vmm::manager_policy::keep_mapped()
                                  : vmm::manager_policy::virtual_caching();
    if (options.policy.chunk_bytes != 0) options.policy.chunk_bytes = 2 * unit;
    if (below(4) == 0) options.policy.fragment_ratio = 0;
    options.reservation_bytes = reservations[below(reservations.size())];
    options.budget_bytes = below(4) == 0 ? 40 * unit : 0;
    options.wait_when_short = below(4) != 0;
    return options;
  }

  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  [[nodiscard]] vmm::fake_driver& fake() { return driver_; }
  [[nodiscard]] std::uint64_t granule_bytes() const {
    return plays_.home.kind == vmm::location::place::device
               ? plays_.device_granularity.recommended_bytes
               : plays_.host_granularity.recommended_bytes;
  }
  [[nodiscard]] block& some_block() { return blocks_[below(blocks_.size())]; }

  void operation() {
    ++operations_;
    const std::uint64_t choice = below(100);
    planned_ = below(4) == 0 ? some_fault() : std::nullopt;
    if (choice < 30 || blocks_.empty()) {
      allocate();
    } else if (choice < 48) {
      free_one();
    } else if (choice < 66) {
      resize();
    } else if (choice < 76) {
      copy();
    } else if (choice < 80) {
      trim();
    } else if (choice < 88) {
      use();
    } else if (choice < 96) {
      let_time_pass();
    } else {
      free_wrongly();
    }
  }

  [[nodiscard]] std::optional<vmm::fake::fault> some_fault() {
    static constexpr std::array kinds{
        vmm::call::create,       vmm::call::map,         vmm::call::set_access,
        vmm::call::unmap,        vmm::call::release,     vmm::call::reserve,
        vmm::call::create_event, vmm::call::query_event, vmm::call::record_event,
        vmm::call::wait_event,   vmm::call::copy,        vmm::call::synchronize_event,
    };
    vmm::fake::fault planned;
    planned.where = kinds[below(kinds.size())];
    planned.nth = 1 + below(3);
    planned.forever = below(4) == 0;
    const auto codes = driver_.possible_errors(planned.where);
    if (codes.empty()) return std::nullopt;
    planned.failure = codes[below(codes.size())];
    return planned;
  }

  /// The operation of the manager, with the fault where one is planned: the program's own calls do
  /// not meet it.
  template <class Operation>
  [[nodiscard]] auto under_fault(Operation&& operation) {
    if (planned_) driver_.fail(*planned_);
    auto outcome = operation();
    driver_.clear_faults();
    return outcome;
  }

  void note(bool is_served) { failures_ += is_served ? 0 : 1; }
  void complain(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
  }

  void allocate() {
    if (blocks_.size() == live_max) return;
    vmm::allocate_request request;
    const std::uint64_t count = 1 + (below(4) == 0 ? below(40) : below(8));
    request.size_bytes = count * granule_bytes() - below(2) * 24;
    request.growth_bytes = below(2) == 0 ? 0 : below(5) * granule_bytes();
    request.alignment_bytes = below(3) == 0 ? granule_bytes() << below(4) : 0;
    const std::size_t stream = has_streams_ ? below(streams_.size()) : 0;
    request.stream = streams_[stream];
    const auto made = under_fault([&] { return managed_->allocate(request); });
    note(made.has_value());
    if (made) blocks_.push_back({.at = *made, .size_bytes = request.size_bytes, .stream = stream});
  }

  void free_one() {
    block& gone = some_block();
    const std::uint64_t how = below(4);
    vmm::status freed;
    if (how == 0 && !gone.is_used) {
      freed = under_fault([&] { return managed_->free_idle(gone.at); });
    } else if (how == 1 && has_streams_) {
      const std::size_t last = below(streams_.size());
      order(gone.stream, last);
      freed = under_fault([&] { return managed_->free(gone.at, streams_[last]); });
    } else {
      freed = under_fault([&] { return managed_->free(gone.at); });
    }
    note(freed.has_value());
    if (!freed) return;
    gone = blocks_.back();
    blocks_.pop_back();
  }

  void trim() {
    const std::uint64_t limit_bytes = below(32) * granule_bytes();
    const auto report = under_fault([&] { return managed_->trim(limit_bytes); });
    note(report.failure.code == vmm::errc::none);
  }

  void free_wrongly() {
    const vmm::address inside = some_block().at + 512;
    if (managed_->free(inside)) complain("an address inside a block was freed");
  }

  void resize() {
    block& resized = some_block();
    if (resized.is_given_up) return;
    vmm::resize_request request{.at = resized.at, .names_stream = true};
    request.size_bytes = (1 + below(12)) * granule_bytes() - below(2) * 8;
    request.growth_bytes = below(4) * granule_bytes();
    request.may_move = below(2) == 0;
    const auto to = under_fault([&] { return managed_->resize(request); });
    note(to.has_value());
    if (to) {
      resized.at = *to;
      resized.size_bytes = request.size_bytes;
    }
    give_up_if_lost(resized);
  }

  void copy() {
    block& target = some_block();
    block& source = some_block();
    const auto mode = static_cast<vmm::copy_mode>(below(3));
    const std::size_t on = has_streams_ ? below(streams_.size()) : 0;
    const bool may_write = !target.is_given_up && !target.is_shared;
    if (&target == &source || !may_write || source.is_given_up) return;
    if (source.size_bytes > target.size_bytes) return;
    order(target.stream, on);
    order(source.stream, on);
    const vmm::copy_request request{target.at, source.at, source.size_bytes, streams_[on]};
    const vmm::status copied = under_fault([&] { return managed_->copy(request, mode); });
    note(copied.has_value());
    order(on, target.stream);
    order(on, source.stream);
    target.is_used = source.is_used = true;
    if (copied && mode == vmm::copy_mode::alias) target.is_shared = source.is_shared = true;
    if (copied && mode == vmm::copy_mode::move) source.is_given_up = true;
    give_up_if_lost(target);
    give_up_if_lost(source);
  }

  // A driver that would not put things back leaves a block without contents.
  void give_up_if_lost(block& of) {
    const auto info = managed_->find(of.at);
    if (info && info->sizes.user_bytes == 0) of.is_given_up = true;
  }

  /// Later work of `after` waits for what `before` has been given.
  void order(std::size_t before, std::size_t after) {
    if (!has_streams_ || before == after) return;
    if (!fake().record_event(event_, streams_[before])) complain("no mark");
    if (!fake().wait_event(streams_[after], event_)) complain("no wait");
  }

  void use() {
    block& used = some_block();
    if (used.is_given_up || !has_streams_) return;
    const vmm::address_range range{used.at, used.size_bytes / 8 * 8};
    vmm::fake::kernel work{.name = "work", .duration_us = 5};
    if (used.is_shared) {
      work.reads = {&range, 1};
    } else {
      work.writes = {&range, 1};
    }
    if (!driver_.launch(streams_[used.stream], work)) complain("a kernel could not be launched");
    used.is_used = true;
  }

  void let_time_pass() {
    const std::uint64_t how = below(64);
    if (!has_streams_) return;
    if (!is_manual_) {
      if (!fake().advance_us(static_cast<double>(how))) complain("time could not pass");
    } else if (const std::size_t count = driver_.ready_count(); count != 0) {
      if (!driver_.finish_ready(how % count)) complain("work could not finish");
    }
  }

  void finish() {
    if (has_streams_ && !driver_.finish_all()) complain("work could not finish");
    for (const block& each : blocks_)
      if (!managed_->free(each.at)) complain("a live block cannot be freed");
    last_ = managed_->statistics();
    if (!managed_->validate()) complain("the manager's validators");
    managed_.reset();
    if (has_streams_) {
      (void)fake().destroy_event(event_);
      for (std::size_t i = 1; i < streams_.size(); ++i) (void)driver_.destroy_stream(streams_[i]);
    }
    if (!driver_.check_empty()) complain("the driver still has something");
    if (driver_.misuse_count() != 0) complain("the driver saw a misuse");
  }

  std::mt19937_64 random_;
  const vmm::fake::profile plays_;
  Driver driver_;
  bool has_streams_ = false;
  bool is_manual_ = false;
  std::array<vmm::stream_handle, 3> streams_{};
  vmm::event_handle event_{};
  std::optional<vmm::manager> managed_;
  std::vector<block> blocks_;
  std::optional<vmm::fake::fault> planned_;
  vmm::manager_statistics last_{};
  std::uint64_t operations_ = 0;
  std::uint64_t failures_ = 0;
  const char* wrong_ = nullptr;
};

}  // namespace golden
