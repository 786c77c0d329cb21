// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two or three threads over one manager. A seed writes the program. Each thread has a stream and
// blocks of its own; what they share is memory, addresses and the records. It imports what it uses,
// so it is the last include of a file.
#pragma once

#include "allocator_program.hpp"

import vmm.manager;

struct manager_block {
  vmm::address at{};
  std::uint64_t size_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::optional<std::uint64_t> tag{};
  bool is_moved = false;  // its memory has gone to another block, and it is still to be freed
};

class manager_program : public allocator_program<manager_program, manager_block> {
 public:
  explicit manager_program(std::uint64_t seed) : allocator_program(seed) {
    make_actors();
    manager_ = std::make_unique<vmm::manager>(driver_, options());
    if (numbers_.one_in(2)) (void)manager_->set_up();
    if (sleeps_) add_to_sleeper(*manager_);
    if (numbers_.one_in(2)) warm_up();
  }

  /// nullptr when nothing is wrong.
  [[nodiscard]] const char* finish() {
    if (is_asleep_) wake();
    look_at_threads();
    if (!manager_->validate()) complain("the manager is not valid");
    if (wrong_ == nullptr) give_all_back();
    sleeper_.reset();
    manager_.reset();
    return end();
  }

 private:
  friend allocator_program;

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
    vmm::fake::profile plays = some_profile(numbers);
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
    if (choice < 89) return record(self, manager_->history());
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
    if (!at) return expect_refusal(self, at.error(), "an allocation failed");
    block fresh{*at, size_bytes};
    use(self, fresh);
    self.blocks.push_back(fresh);
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

  void free(actor& self) {
    block* const gone = some_block(self);
    if (gone == nullptr) return;
    if (!gone->is_moved) use(self, *gone);
    give_back(self, *gone);
  }
  // It stays where another thread is just suspending it.
  void give_back(actor& self, block& gone) {
    const vmm::status freed = manager_->free(gone.at);
    if (!freed) return expect_refusal(self, freed, "a block could not be freed");
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
    if (!at) return expect_refusal(self, at.error(), "a block could not be resized");
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
    if (!copied) return expect_refusal(self, copied, "a copy failed");
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

  std::unique_ptr<vmm::manager> manager_;
};
