// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two or three threads over one manager, on a fake driver whose work finishes when a thread says
// so. A seed writes the program. Each thread has a stream and blocks of its own; what they share is
// memory, addresses and the records. In one program of five a thread suspends the manager now and
// then and another one resumes it, while the others go on. It imports what it uses, so it is the
// last include of a file.
#ifndef VMM_TESTS_THREADS_MANAGER_PROGRAM_HPP
#define VMM_TESTS_THREADS_MANAGER_PROGRAM_HPP

#include "program.h"

#include "../support/scheduler.hpp"

import vmm.base;
import vmm.manager;
import vmm.observe;
import vmm.suspend;

class manager_program {
 public:
  static constexpr std::uint64_t mib = std::uint64_t{1} << 20;

  explicit manager_program(std::uint64_t seed)
      : numbers_(seed), driver_(machine(numbers_)), sleeps_(seed % 5 == 3) {
    driver_.set_manual(true);
    actors_.resize(numbers_.one_in(3) ? 3 : 2);
    for (std::size_t index = 0; index < actors_.size(); ++index) {
      actor& each = actors_[index];
      each.numbers = number_source(numbers_.next());
      each.own = *driver_.create_stream();
      each.last_tag = (index + 1) << 32;
      each.operations = 3 + numbers_.below(5);
    }
    manager_ = std::make_unique<vmm::manager>(driver_, options());
    if (numbers_.one_in(2)) (void)manager_->set_up();
    if (sleeps_) {
      sleeper_ = std::make_unique<vmm::suspender>();
      if (!sleeper_->add(*manager_, {.tag = "blocks"})) complain("the manager is not a region");
    }
    if (numbers_.one_in(2)) warm_up();
  }

  [[nodiscard]] std::size_t thread_count() const { return actors_.size(); }

  void run_thread(std::size_t index) {
    actor& self = actors_[index];
    for (std::uint64_t left = self.operations; left > 0 && self.wrong == nullptr; --left)
      operation(self);
  }

  /// nullptr when nothing is wrong.
  [[nodiscard]] const char* finish() {
    if (is_asleep_) wake();
    for (const actor& each : actors_) complain(each.wrong);
    if (driver_.misuse_count() != 0) complain("the driver saw a misuse");
    if (!manager_->validate()) complain("the manager is not valid");
    if (wrong_ == nullptr) give_all_back();
    sleeper_.reset();
    manager_.reset();
    if (!driver_.finish_all()) complain("work could not finish");
    for (const actor& each : actors_) (void)driver_.destroy_stream(each.own);
    if (!driver_.check_empty()) complain("the driver still has something");
    for (const auto& misuse : driver_.misuses())
      detail_ += std::string(vmm::fake::name_of(misuse.kind)) + ", " + misuse.detail + "; ";
    if (driver_.misuse_count() != 0) complain("the driver saw a misuse");
    return wrong_;
  }
  [[nodiscard]] const std::string& detail() const { return detail_; }

 private:
  struct block {
    vmm::address at{};
    std::uint64_t size_bytes = 0;
    std::uint64_t written_bytes = 0;
    std::optional<std::uint64_t> tag{};
    bool is_moved = false;  // its memory has gone to another block, and it is still to be freed
  };
  struct actor {
    number_source numbers{0};
    vmm::stream_handle own{};
    std::vector<block> blocks{};
    std::uint64_t last_tag = 0;
    std::uint64_t operations = 0;
    const char* wrong = nullptr;
  };

  // No allocation keeps memory that a suspension gave back.
  void wake() {
    if (!driver_.finish_all()) complain("work could not finish");
    const vmm::status awake = sleeper_->resume();
    is_asleep_ = !awake;
    if (awake) return;
    detail_ += vmm::describe(awake.error()) + "; ";
    complain("the manager could not be resumed at the end");
  }

  [[nodiscard]] static vmm::fake::profile machine(number_source& numbers) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    const std::uint64_t choice = numbers.below(8);
    if (choice == 5) plays = vmm::fake::profile::level_zero();
    if (choice == 6) plays.can.alias = vmm::alias_level::none;
    if (choice == 7) plays.can.spanning_unmap = false;
    plays.device_memory_bytes = numbers.one_in(2) ? 24 * mib : 256 * mib;
    return plays;
  }

  [[nodiscard]] vmm::manager_options options() {
    vmm::manager_options out;
    out.reservation_bytes = 512 * mib;
    const std::uint64_t policy = numbers_.below(3);
    if (policy == 1) out.policy = vmm::manager_policy::keep_mapped();
    if (policy == 2) {
      out.policy = vmm::manager_policy::virtual_caching();
      out.policy.chunk_bytes = 4 * mib;
    }
    return out;
  }

  void warm_up() {
    for (actor& each : actors_) {
      for (std::uint64_t left = 1 + numbers_.below(2); left > 0; --left) allocate(each);
      if (numbers_.one_in(2)) free(each);
    }
  }

  void operation(actor& self) {
    const std::uint64_t choice = self.numbers.below(100);
    if (choice < 34) return allocate(self);
    if (choice < 54) return free(self);
    if (choice < 66) return resize(self);
    if (choice < 74) return copy(self);
    if (choice < 80) return (void)manager_->trim(0);
    if (choice < 86) return look(self);
    if (choice < 89) return record(self);
    if (sleeps_ && choice < 95) return suspend_or_resume(self);
    driver_.finish_some(self.numbers.next());
  }

  void allocate(actor& self) {
    const std::uint64_t size_bytes = (1 + self.numbers.below(4)) * 2 * mib;
    vmm::allocate_request request;
    request.size_bytes = size_bytes;
    request.growth_bytes = self.numbers.one_in(4) ? 4 * mib : 0;
    request.stream = self.own;
    const auto at = manager_->allocate(request);
    if (!at) return expect_refusal(self, at.error().code);
    block fresh{*at, size_bytes};
    use(self, fresh);
    self.blocks.push_back(fresh);
  }

  // For want of memory, or since another thread has suspended the blocks.
  void expect_refusal(actor& self, vmm::errc code) const {
    const bool is_away = sleeps_ && code == vmm::errc::in_use;
    if (code != vmm::errc::out_of_memory && !is_away) self.wrong = "a call failed without a reason";
  }

  // The work of all threads is waited for.
  void suspend_or_resume(actor& self) {
    const vmm::sync::lock_guard held(asleep_mutex_);
    if (is_asleep_) {
      const vmm::status awake = sleeper_->resume();
      is_asleep_ = !awake;
      if (is_asleep_) expect_refusal(self, awake.error().code);
      return;
    }
    std::vector<vmm::stream_handle> streams;
    for (const actor& each : actors_) streams.push_back(each.own);
    const auto done = sleeper_->suspend({.streams = streams});
    is_asleep_ = done.has_value();
    if (!is_asleep_) expect_refusal(self, done.error().code);
  }

  // From here to here another thread's blocks are in a history; one thread's at a time is recorded.
  void record(actor& self) {
    const vmm::status begun = manager_->history().start({.event_count = 1024});
    if (!begun && begun.error().code == vmm::errc::in_use) return;
    note(self, begun, "a history could not begin");
    allocate(self);
    free(self);
    if (!manager_->history().stop()) self.wrong = "a history could not end";
  }

  // Nothing is launched while the memory is away.
  void use(actor& self, block& what) {
    if (!sleeps_) return launch(self, what);
    const vmm::sync::shared_guard held(asleep_mutex_);
    if (!is_asleep_) launch(self, what);
  }
  // Reads what was written there last and writes anew, all of the block.
  void launch(actor& self, block& what) {
    const vmm::address_range written{what.at, what.written_bytes};
    const vmm::address_range whole{what.at, what.size_bytes};
    vmm::fake::kernel work{.name = "work", .duration_us = 5};
    work.writes = {&whole, 1};
    if (what.tag) work.reads = {&written, 1};
    work.expected = what.tag;
    work.tag = ++self.last_tag;
    note(self, driver_.launch(self.own, work), "a kernel could not be launched");
    what.tag = self.last_tag;
    what.written_bytes = what.size_bytes;
  }

  [[nodiscard]] static block* some_block(actor& self) {
    if (self.blocks.empty()) return nullptr;
    return &self.blocks[self.numbers.below(self.blocks.size())];
  }

  void free(actor& self) {
    block* const gone = some_block(self);
    if (gone == nullptr) return;
    if (!gone->is_moved) use(self, *gone);
    give_back(self, *gone);
  }
  // It stays where another thread is just suspending it.
  void give_back(actor& self, block& gone) {
    const vmm::status freed = manager_->free(gone.at);
    if (!freed) return expect_refusal(self, freed.error().code);
    gone = self.blocks.back();
    self.blocks.pop_back();
  }

  void resize(actor& self) {
    block* const changed = some_block(self);
    if (changed == nullptr || changed->is_moved) return;
    vmm::resize_request request;
    request.at = changed->at;
    request.size_bytes = (1 + self.numbers.below(6)) * 2 * mib;
    request.names_stream = self.numbers.one_in(2);
    const auto at = manager_->resize(request);
    if (!at) return expect_refusal(self, at.error().code);
    changed->at = *at;
    changed->size_bytes = request.size_bytes;
    changed->written_bytes = std::min(changed->written_bytes, request.size_bytes);
    use(self, *changed);
  }

  // A copy of bytes is work of a stream, which the program does not submit while the memory goes
  // away.
  vmm::status give_copy(const vmm::copy_request& request, vmm::copy_mode mode) {
    if (!sleeps_) return manager_->copy(request, mode);
    const vmm::sync::shared_guard held(asleep_mutex_);
    return manager_->copy(request, mode);
  }
  void copy(actor& self) {
    block* const from = some_block(self);
    block* const to = some_block(self);
    if (from == nullptr || from == to || from->size_bytes != to->size_bytes) return;
    if (from->is_moved || to->is_moved) return;
    vmm::copy_request request;
    request.target = to->at;
    request.source = from->at;
    request.size_bytes = from->size_bytes;
    request.stream = self.own;
    const bool moves = self.numbers.one_in(2);
    const auto mode = moves ? vmm::copy_mode::move : vmm::copy_mode::copy;
    const vmm::status copied = give_copy(request, mode);
    if (!copied) return expect_refusal(self, copied.error().code);
    to->tag = from->tag;
    to->written_bytes = from->written_bytes;
    from->is_moved = moves;
    moves ? give_back(self, *from) : use(self, *to);
  }

  void look(actor& self) {
    const vmm::manager_statistics now = manager_->statistics();
    if (now.live_count > 64) self.wrong = "the statistics are torn";
    if (!manager_->extents()) self.wrong = "no extents";
    const block* const known = some_block(self);
    if (known == nullptr) return;
    const auto found = manager_->find(known->at);
    if (!found || found->sizes.user_bytes != known->size_bytes)
      self.wrong = "a live block is not found";
  }

  void give_all_back() {
    for (actor& each : actors_) {
      while (!each.blocks.empty() && each.wrong == nullptr) free(each);
      complain(each.wrong);
    }
    if (manager_->statistics().live_count != 0) complain("a block is left");
  }

  static void note(actor& self, const vmm::status& answer, const char* what) {
    if (!answer && self.wrong == nullptr) self.wrong = what;
  }
  void complain(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
  }

  number_source numbers_;
  scheduled_driver driver_;
  std::vector<actor> actors_;
  std::unique_ptr<vmm::manager> manager_;
  const bool sleeps_;
  vmm::sync::shared_mutex asleep_mutex_;
  bool is_asleep_ = false;  // under it
  std::unique_ptr<vmm::suspender> sleeper_;
  const char* wrong_ = nullptr;
  std::string detail_;
};

#endif
