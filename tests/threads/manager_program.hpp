// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two or three threads over one manager, on a fake driver whose work finishes when a thread says
// so. A seed writes the program. Each thread has a stream and blocks of its own; what they share is
// memory, addresses and the records. It imports what it uses, so it is the last include of a file.
#ifndef VMM_TESTS_THREADS_MANAGER_PROGRAM_HPP
#define VMM_TESTS_THREADS_MANAGER_PROGRAM_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program.h"

#include "../support/scheduler.hpp"

import vmm.manager;

class manager_program {
 public:
  static constexpr std::uint64_t mib = std::uint64_t{1} << 20;

  explicit manager_program(std::uint64_t seed) : numbers_(seed), driver_(machine(numbers_)) {
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
    if (numbers_.one_in(2)) warm_up();
  }

  [[nodiscard]] std::size_t thread_count() const { return actors_.size(); }

  void run_thread(std::size_t index) {
    actor& who = actors_[index];
    for (std::uint64_t left = who.operations; left > 0 && who.wrong == nullptr; --left)
      operation(who);
  }

  /// nullptr when nothing is wrong.
  [[nodiscard]] const char* finish() {
    for (const actor& each : actors_) complain(each.wrong);
    if (driver_.misuse_count() != 0) complain("the driver saw a misuse");
    if (!manager_->validate()) complain("the manager is not valid");
    if (wrong_ == nullptr) give_all_back();
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
  };
  struct actor {
    number_source numbers{0};
    vmm::stream_handle own{};
    std::vector<block> blocks{};
    std::uint64_t last_tag = 0;
    std::uint64_t operations = 0;
    const char* wrong = nullptr;
  };

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
    const std::uint64_t rules = numbers_.below(3);
    if (rules == 1) out.rules = vmm::policy::keep_mapped();
    if (rules == 2) {
      out.rules = vmm::policy::virtual_caching();
      out.rules.chunk_bytes = 4 * mib;
    }
    return out;
  }

  void warm_up() {
    for (actor& each : actors_) {
      for (std::uint64_t left = 1 + numbers_.below(2); left > 0; --left) allocate(each);
      if (numbers_.one_in(2)) free(each);
    }
  }

  void operation(actor& who) {
    const std::uint64_t choice = who.numbers.below(100);
    if (choice < 34) return allocate(who);
    if (choice < 54) return free(who);
    if (choice < 66) return resize(who);
    if (choice < 74) return copy(who);
    if (choice < 80) return (void)manager_->trim(0);
    if (choice < 88) return look(who);
    driver_.finish_some(who.numbers.next());
  }

  void allocate(actor& who) {
    const std::uint64_t size_bytes = (1 + who.numbers.below(4)) * 2 * mib;
    vmm::allocate_request request;
    request.size_bytes = size_bytes;
    request.growth_bytes = who.numbers.one_in(4) ? 4 * mib : 0;
    request.stream = who.own;
    const auto at = manager_->allocate(request);
    if (!at) return expect_short(who, at.error().code);
    block fresh{*at, size_bytes};
    use(who, fresh);
    who.blocks.push_back(fresh);
  }

  static void expect_short(actor& who, vmm::errc code) {
    if (code != vmm::errc::out_of_memory) who.wrong = "a call failed without a reason";
  }

  // Reads what was written there last and writes anew, all of the block.
  void use(actor& who, block& what) {
    const vmm::address_range written{what.at, what.written_bytes};
    const vmm::address_range whole{what.at, what.size_bytes};
    vmm::fake::kernel work{.name = "work", .duration_us = 5};
    work.writes = {&whole, 1};
    if (what.tag) work.reads = {&written, 1};
    work.expected = what.tag;
    work.tag = ++who.last_tag;
    note(who, driver_.launch(who.own, work), "a kernel could not be launched");
    what.tag = who.last_tag;
    what.written_bytes = what.size_bytes;
  }

  [[nodiscard]] static block* some_block(actor& who) {
    if (who.blocks.empty()) return nullptr;
    return &who.blocks[who.numbers.below(who.blocks.size())];
  }

  void free(actor& who) {
    block* const gone = some_block(who);
    if (gone == nullptr) return;
    use(who, *gone);
    note(who, manager_->free(gone->at), "a block could not be freed");
    *gone = who.blocks.back();
    who.blocks.pop_back();
  }

  void resize(actor& who) {
    block* const changed = some_block(who);
    if (changed == nullptr) return;
    vmm::resize_request request;
    request.at = changed->at;
    request.size_bytes = (1 + who.numbers.below(6)) * 2 * mib;
    const auto at = manager_->resize(request);
    if (!at) return expect_short(who, at.error().code);
    changed->at = *at;
    changed->size_bytes = request.size_bytes;
    changed->written_bytes = std::min(changed->written_bytes, request.size_bytes);
    use(who, *changed);
  }

  void copy(actor& who) {
    block* const from = some_block(who);
    block* const to = some_block(who);
    if (from == nullptr || from == to || from->size_bytes != to->size_bytes) return;
    vmm::copy_request request;
    request.target = to->at;
    request.source = from->at;
    request.size_bytes = from->size_bytes;
    request.stream = who.own;
    const bool moves = who.numbers.one_in(2);
    const auto mode = moves ? vmm::copy_mode::move : vmm::copy_mode::copy;
    note(who, manager_->copy(request, mode), "a block could not be copied");
    to->tag = from->tag;
    to->written_bytes = from->written_bytes;
    if (!moves) return use(who, *to);
    note(who, manager_->free(from->at), "the source of a move could not be freed");
    *from = who.blocks.back();
    who.blocks.pop_back();
  }

  void look(actor& who) {
    const vmm::manager_statistics now = manager_->statistics();
    if (now.live_count > 64) who.wrong = "the statistics are torn";
    if (!manager_->extents()) who.wrong = "no extents";
    const block* const known = some_block(who);
    if (known == nullptr) return;
    const auto found = manager_->find(known->at);
    if (!found || found->sizes.user_bytes != known->size_bytes)
      who.wrong = "a live block is not found";
  }

  void give_all_back() {
    for (actor& each : actors_) {
      while (!each.blocks.empty() && each.wrong == nullptr) free(each);
      complain(each.wrong);
    }
    if (manager_->statistics().live_count != 0) complain("a block is left");
  }

  static void note(actor& who, const vmm::status& answer, const char* what) {
    if (!answer && who.wrong == nullptr) who.wrong = what;
  }
  void complain(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
  }

  number_source numbers_;
  scheduled_driver driver_;
  std::vector<actor> actors_;
  std::unique_ptr<vmm::manager> manager_;
  const char* wrong_ = nullptr;
  std::string detail_;
};

#endif
