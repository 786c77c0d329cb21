// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the programs for several threads over one allocator have in common: a fake driver whose work
// finishes when a thread says so, two or three threads with a stream and blocks of their own, and,
// in one program of five, a suspension now and then by one thread, which another one ends. It
// imports what it uses, so it is the last include of a file, except others with imports.
#pragma once

#include "program.h"

#include "../support/scheduler.hpp"

import vmm.observe;
import vmm.suspend;

template <class Block>
struct actor_with {
  number_source numbers{0};
  vmm::stream_handle own{};
  std::vector<Block> blocks{};
  std::uint64_t last_tag = 0;
  std::uint64_t operations = 0;
  const char* wrong = nullptr;
  vmm::error why{};
};

/// `Program` has machine(), which chooses the driver, operation(), one call of a thread, allocate()
/// and free(), and launch(), work on a block; streams() of its own beside these. It calls
/// make_actors(), and end() when its allocator is gone.
template <class Program, class Block, class Actor = actor_with<Block>>
class allocator_program {
 public:
  static constexpr std::uint64_t mib = std::uint64_t{1} << 20;

  [[nodiscard]] std::size_t thread_count() const { return actors_.size(); }

  void run_thread(std::size_t index) {
    actor& self = actors_[index];
    for (std::uint64_t left = self.operations; left > 0 && self.wrong == nullptr; --left)
      program().operation(self);
  }
  [[nodiscard]] const std::string& detail() const { return detail_; }

 protected:
  using block = Block;
  using actor = Actor;

  explicit allocator_program(std::uint64_t seed)
      : numbers_(seed), driver_(Program::machine(numbers_)), sleeps_(seed % 5 == 3) {
    driver_.set_manual(true);
  }

  [[nodiscard]] static vmm::fake::profile some_profile(number_source& numbers) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    const std::uint64_t choice = numbers.below(8);
    if (choice == 5) plays = vmm::fake::profile::level_zero();
    if (choice == 6) plays.can.alias = vmm::alias_level::none;
    if (choice == 7) plays.can.spanning_unmap = false;
    return plays;
  }

  [[nodiscard]] vmm::stream_handle make_stream() { return *driver_.create_stream(); }
  void make_actors() {
    actors_.resize(numbers_.one_in(3) ? 3 : 2);
    for (std::size_t index = 0; index < actors_.size(); ++index) {
      actor& each = actors_[index];
      each.numbers = number_source(numbers_.next());
      each.own = make_stream();
      each.last_tag = (index + 1) << 32;
      each.operations = 3 + numbers_.below(5);
    }
  }
  [[nodiscard]] std::vector<vmm::stream_handle> streams() const {
    std::vector<vmm::stream_handle> all;
    for (const actor& each : actors_) all.push_back(each.own);
    return all;
  }
  template <class Allocator>
  void add_to_sleeper(Allocator& memory) {
    sleeper_ = std::make_unique<vmm::suspender>();
    if (!sleeper_->add(memory, {.tag = "memory"})) complain("the allocator is not a region");
  }

  // The work of all streams is waited for: those that the allocator does not know, too.
  void suspend_or_resume(actor& self) {
    const vmm::sync::lock_guard held(asleep_mutex_);
    vmm::status done;
    if (is_asleep_) {
      done = sleeper_->resume();
    } else {
      const std::vector<vmm::stream_handle> streams = program().streams();
      if (const auto put = sleeper_->suspend({.streams = streams}); !put) done = put.error();
    }
    if (done) is_asleep_ = !is_asleep_;
    expect_refusal(self, done, "the allocator could not be suspended or resumed");
  }
  // From here to here another thread's blocks are in a history; one thread's at a time is recorded.
  template <class Recorder>
  void record(actor& self, Recorder&& history) {
    const vmm::status begun = history.start({.event_count = 1024});
    if (!begun && begun.error().code == vmm::errc::in_use) return;
    note(self, begun, "a history could not begin");
    program().allocate(self);
    program().free(self);
    if (!history.stop()) self.wrong = "a history could not end";
  }
  // For want of memory, or since another thread has suspended the allocator.
  [[nodiscard]] bool may_refuse(vmm::errc code) const {
    return code == vmm::errc::out_of_memory || (sleeps_ && code == vmm::errc::in_use);
  }
  void expect_refusal(actor& self, const vmm::status& answer, const char* what) const {
    if (!answer && !may_refuse(answer.error().code)) note(self, answer, what);
  }

  // Nothing is launched while the memory is away.
  void use(actor& self, block& what) {
    if (!sleeps_) return program().launch(self, what);
    const vmm::sync::shared_guard held(asleep_mutex_);
    if (!is_asleep_) program().launch(self, what);
  }

  [[nodiscard]] static block* some_block(actor& self) {
    if (self.blocks.empty()) return nullptr;
    return &self.blocks[self.numbers.below(self.blocks.size())];
  }

  // Before the allocator goes: what the threads and the driver saw.
  void look_at_threads() {
    for (const actor& each : actors_) {
      complain(each.wrong);
      if (each.why.code != vmm::errc::none) detail_ += std::string(each.why.detail) + "; ";
    }
    if (driver_.misuse_count() != 0) complain("the driver saw a misuse");
  }
  [[nodiscard]] const char* end() {
    if (!driver_.finish_all()) complain("work could not finish");
    for (const vmm::stream_handle each : program().streams()) (void)driver_.destroy_stream(each);
    if (!driver_.check_empty()) complain("the driver still has something");
    for (const auto& misuse : driver_.misuses())
      detail_ += std::string(vmm::fake::name_of(misuse.kind)) + ", " + misuse.detail + "; ";
    if (driver_.misuse_count() != 0) complain("the driver saw a misuse");
    return wrong_;
  }

  static void note(actor& self, const vmm::status& answer, const char* what) {
    if (answer || self.wrong != nullptr) return;
    self.wrong = what;
    self.why = answer.error();
  }
  void complain(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
  }

  number_source numbers_;
  scheduled_driver driver_;
  std::vector<actor> actors_;
  const bool sleeps_;
  vmm::sync::shared_mutex asleep_mutex_;
  bool is_asleep_ = false;  // under it
  std::unique_ptr<vmm::suspender> sleeper_;
  const char* wrong_ = nullptr;
  std::string detail_;

 private:
  [[nodiscard]] Program& program() { return static_cast<Program&>(*this); }
};
