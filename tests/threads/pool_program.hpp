// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two or three threads over one stream pool. A seed writes the program. Each thread has a stream of
// its own, and one is everyone's. The driver checks that nothing is used, unmapped or handed on
// while unfinished work may touch it, that every kernel finds what the one before it left in the
// block, and that no handle is used that is gone. It imports what it uses, so it is the last
// include of a file.
#pragma once

#include "../support/silent_observer.hpp"
#include "allocator_program.hpp"

struct pool_block {
  vmm::address at{};
  std::uint64_t size_bytes = 0;
  vmm::stream_handle stream{};
  std::optional<std::uint64_t> tag{};
  bool is_pinned = false;
  bool is_freed = false;  // while it is pinned
};
struct pool_actor : actor_with<pool_block> {
  vmm::stream_handle outside{};  // the pool does not know it
  vmm::event_handle event{};
};

class pool_program : public allocator_program<pool_program, pool_block, pool_actor> {
 public:
  /// With `unordered` blocks are freed after everything too, and used by a stream of each thread
  /// that the pool does not know.
  explicit pool_program(std::uint64_t seed, bool unordered = false)
      : allocator_program(seed), arenas_(seed % 2 == 0) {
    unordered_ = unordered && driver_.feature_set().record_all;
    driver_.set_gone_streams_undefined(true);
    shared_ = make_stream();
    make_actors();
    for (actor& each : actors_) {
      each.event = *driver_.create_event();
      if (unordered_) each.outside = make_stream();
    }
    pool_ = std::make_unique<pool>(driver_, options());
    if (sleeps_) add_to_sleeper(*pool_);
    const bool listens =
        !sleeps_ && numbers_.one_in(2) && pool_->remaps().subscribe(frees_handed_over_).has_value();
    if (!numbers_.one_in(3)) (void)pool_->set_up();
    if (numbers_.one_in(2)) warm_up(listens);
  }

  /// nullptr when nothing is wrong.
  [[nodiscard]] const char* finish() {
    if (is_asleep_) wake();
    look_at_threads();
    if (const vmm::status valid = pool_->validate(); !valid) complain(valid.error().detail);
    // The destructor announces what it unmaps: nothing is left for the callback then.
    const std::uint64_t handed_over = handed_over_.exchange(0, std::memory_order_acq_rel);
    if (handed_over != 0 && !pool_->free(vmm::address{handed_over}, shared_))
      complain("a block that was handed over was lost");
    if (wrong_ == nullptr) give_all_back();
    sleeper_.reset();
    pool_.reset();
    for (const actor& each : actors_) (void)driver_.destroy_event(each.event);
    return end();
  }

 private:
  using pool = vmm::stream_pool;
  friend allocator_program;

  class silent_listener final : public vmm::remap_listener {
   public:
    void before_change(const vmm::remap_notice&) noexcept override {}
  };

  // Frees the block that was handed over to it.
  class handed_over_listener final : public vmm::remap_listener {
   public:
    explicit handed_over_listener(pool_program& whole) noexcept : whole_(whole) {}
    void before_change(const vmm::remap_notice&) noexcept override {
      const std::uint64_t at = whole_.handed_over_.exchange(0, std::memory_order_acq_rel);
      if (at != 0) (void)whole_.pool_->free(vmm::address{at}, whole_.shared_);
    }

   private:
    pool_program& whole_;
  };

  // An allocation that had begun before the suspension may have the memory now: then blocks are
  // freed until the rest comes back.
  void wake() {
    if (!driver_.finish_all()) complain("work could not finish");
    while (is_asleep_) {
      const vmm::status awake = sleeper_->resume();
      is_asleep_ = !awake;
      if (awake) return;
      const auto owner = std::find_if(actors_.begin(), actors_.end(),
                                      [](const actor& each) { return !each.blocks.empty(); });
      if (awake.error().code != vmm::errc::out_of_memory || owner == actors_.end()) {
        detail_ += vmm::describe(awake.error()) + "; ";
        return complain("the pool could not be resumed at the end");
      }
      const block gone = owner->blocks.back();
      note(*owner, pool_->free(gone.at, gone.stream), "a block could not be freed");
      owner->blocks.pop_back();
    }
  }

  [[nodiscard]] static vmm::fake::profile machine(number_source& numbers) {
    vmm::fake::profile plays = some_profile(numbers);
    plays.traps.stream_numbers_again = numbers.one_in(2);
    plays.device_memory_bytes = numbers.one_in(2) ? 16 * mib : 256 * mib;
    return plays;
  }

  [[nodiscard]] vmm::pool_options options() {
    vmm::pool_options out;
    out.reservation_bytes = 512 * mib;
    out.policy.handle_bytes_max = 2 * mib;
    if (numbers_.one_in(2)) {
      out.policy.headroom = 0;
      out.policy.tuning.slack_bytes = 0;
      out.policy.tuning.min_move_share = 0;
      out.policy.tuning.growth_share = 0;
    }
    if (numbers_.one_in(3)) out.capture = vmm::capture_rule::private_memory;
    if (numbers_.one_in(3)) out.capture = vmm::capture_rule::unchecked;
    captures_ = out.capture == vmm::capture_rule::private_memory;
    // A capture that is not announced is spoiled by an event behind all work.
    announces_ = unordered_ || numbers_.one_in(2);
    out.captures_announced = captures_ && announces_;
    out.streams_forgotten = !announces_ || !driver_.feature_set().record_all || numbers_.one_in(3);
    forgets_ = out.streams_forgotten;
    if (numbers_.one_in(3)) out.observer = &observer_;
    if (arenas_) out.stream_arenas = vmm::arena_rule::always;
    if (!arenas_ && numbers_.one_in(6)) out.policy = vmm::pool_policy::off();
    return out;
  }

  [[nodiscard]] std::vector<vmm::stream_handle> streams() const {
    std::vector<vmm::stream_handle> all = allocator_program::streams();
    all.push_back(shared_);
    if (!unordered_) return all;
    for (const actor& each : actors_) all.push_back(each.outside);
    return all;
  }

  // Free memory with unfinished work on it, before the threads begin.
  void warm_up(bool parks) {
    if (parks) {
      const auto at = pool_->allocate(4096, shared_);
      if (at) handed_over_.store(at->value, std::memory_order_release);
    }
    for (actor& each : actors_) {
      for (std::uint64_t left = 1 + numbers_.below(3); left > 0; --left) allocate(each);
      for (std::uint64_t left = 1 + numbers_.below(2); left > 0; --left) free(each);
    }
  }

  // Without what only a pool that is awake can do.
  void operation_beside_sleep(actor& self) {
    const std::uint64_t choice = self.numbers.below(100);
    if (choice < 34) return allocate(self);
    if (choice < 54) return free(self);
    if (choice < 68) return suspend_or_resume(self);
    if (choice < 72) return allocate_dedicated(self);
    if (choice < 76) return announce(self);
    if (choice < 82) return (void)pool_->trim(0);
    if (choice < 88) return look(self);
    driver_.finish_some(self.numbers.next());
  }

  void operation(actor& self) {
    if (unordered_ && self.numbers.one_in(3)) return free_unordered(self);
    if (sleeps_) return operation_beside_sleep(self);
    const std::uint64_t choice = self.numbers.below(100);
    if (choice < 34) return allocate(self);
    if (choice < 52) return free(self);
    if (choice < 57) return hand_over(self);
    if (choice < 62) return forget(self);
    if (choice < 67) return synchronize(self);
    if (choice < 72) return (void)pool_->trim(0);
    if (choice < 78) return pin_or_unpin(self);
    if (choice < 81) return park(self);
    if (choice < 84) return subscribe(self);
    if (choice < 87) return look(self);
    if (choice < 91) return capture(self);
    if (choice < 93) return record(self, pool_->history());
    if (choice < 95) return allocate_dedicated(self);
    if (choice < 97) return announce(self);
    driver_.finish_some(self.numbers.next());
  }

  // Refused while another thread captures a stream of the pool.
  void synchronize(actor& self) {
    const vmm::status done = pool_->synchronize();
    const bool refused = !done && captures_ && done.error().code == vmm::errc::not_permitted;
    if (!refused) note(self, done, "synchronize failed");
  }

  // Memory for a request that may come, while others grow.
  void announce(actor& self) {
    const std::uint64_t size_bytes = 2 * some_size(self.numbers);
    const vmm::preallocate_report done = pool_->preallocate(size_bytes, self.own);
    if (done.failure.code == vmm::errc::none || may_refuse(done.failure.code)) return;
    note(self, done.failure, "a request could not be announced");
  }

  void allocate_dedicated(actor& self) {
    block fresh{.size_bytes = some_size(self.numbers), .stream = self.own};
    const auto at = pool_->allocate_dedicated(fresh.size_bytes, fresh.stream);
    if (!at) return expect_refusal(self, at.error(), "an allocation of whole mappings failed");
    fresh.at = *at;
    use(self, fresh);
    self.blocks.push_back(fresh);
  }

  [[nodiscard]] static std::uint64_t some_size(number_source& numbers) {
    constexpr std::array<std::uint64_t, 8> sizes{512,     4096,    mib / 2, mib,
                                                 2 * mib, 3 * mib, 4 * mib, 6 * mib};
    return sizes[numbers.below(sizes.size())];
  }

  void allocate(actor& self) {
    block fresh;
    fresh.size_bytes = some_size(self.numbers);
    fresh.stream = self.numbers.one_in(3) ? shared_ : self.own;
    const auto at = pool_->allocate(fresh.size_bytes, fresh.stream);
    if (!at) return expect_refusal(self, at.error(), "an allocation failed");
    fresh.at = *at;
    use(self, fresh);
    self.blocks.push_back(fresh);
  }

  void launch(actor& self, block& what) {
    const vmm::address_range range{what.at, what.size_bytes};
    vmm::fake::kernel work{.name = "work", .duration_us = 5};
    work.writes = {&range, 1};
    if (what.tag) work.reads = {&range, 1};
    work.expected = what.tag;
    work.tag = ++self.last_tag;
    note(self, driver_.launch(what.stream, work), "a kernel could not be launched");
    what.tag = self.last_tag;
  }

  void remove(actor& self, block* gone) {
    *gone = self.blocks.back();
    self.blocks.pop_back();
  }

  void free(actor& self) {
    block* const gone = some_block(self);
    if (gone == nullptr || gone->is_freed) return;
    if (gone->tag) use(self, *gone);
    note(self, pool_->free(gone->at, gone->stream), "a block could not be freed");
    gone->is_freed = gone->is_pinned;
    if (!gone->is_pinned) remove(self, gone);
  }

  // The last work is on a stream that the pool does not know, and ordered before nothing.
  void free_unordered(actor& self) {
    block* const gone = some_block(self);
    if (gone == nullptr || gone->is_pinned) return;
    if (!self.numbers.one_in(3)) {
      order(self, gone->stream, self.outside);
      const vmm::stream_handle home = std::exchange(gone->stream, self.outside);
      use(self, *gone);
      gone->stream = home;
    }
    note(self, pool_->free(gone->at), "a block could not be freed after everything");
    remove(self, gone);
  }

  // To a stream that the pool has not seen, freed there, and that stream is forgotten again.
  void hand_over(actor& self) {
    block* const gone = some_block(self);
    if (gone == nullptr || gone->is_pinned) return;
    const auto fresh = driver_.create_stream();
    if (!fresh) return;
    order(self, gone->stream, *fresh);
    gone->stream = *fresh;
    use(self, *gone);
    note(self, pool_->free(gone->at, *fresh), "a block could not be freed on a new stream");
    remove(self, gone);
    note(self, pool_->forget(*fresh), "a stream could not be forgotten");
    order(self, *fresh, self.own);
    note(self, driver_.destroy_stream(*fresh), "a stream could not be destroyed");
  }

  void order(actor& self, vmm::stream_handle before, vmm::stream_handle after) {
    note(self, driver_.record_event(self.event, before), "no mark");
    note(self, driver_.wait_event(after, self.event), "no wait");
  }

  // The thread's stream goes, and another takes its place behind it. Unless the pool is promised
  // that, every second stream is forgotten first.
  void forget(actor& self) {
    for (const block& each : self.blocks)
      if (each.is_freed) return;
    if (forgets_ || self.numbers.one_in(2))
      note(self, pool_->forget(self.own), "a stream could not be forgotten");
    const auto fresh = driver_.create_stream();
    if (!fresh) return;
    order(self, self.own, *fresh);
    note(self, driver_.destroy_stream(self.own), "a stream could not be destroyed");
    for (block& each : self.blocks)
      if (each.stream == self.own) each.stream = *fresh;
    self.own = *fresh;
  }

  void pin_or_unpin(actor& self) {
    block* const kept = some_block(self);
    if (kept == nullptr) return;
    if (!kept->is_pinned) {
      note(self, pool_->pin(kept->at), "a block could not be pinned");
      kept->is_pinned = true;
      return;
    }
    note(self, pool_->unpin(kept->at), "a block could not be unpinned");
    kept->is_pinned = false;
    if (kept->is_freed) remove(self, kept);
  }

  // Leaves a block to whichever remap callback comes next.
  void park(actor& self) {
    block* const kept = some_block(self);
    if (kept == nullptr || kept->is_pinned || kept->stream != shared_) return;
    if (handed_over_.load(std::memory_order_acquire) != 0) return;
    const std::uint64_t before = handed_over_.exchange(kept->at.value, std::memory_order_acq_rel);
    if (before != 0)
      note(self, pool_->free(vmm::address{before}, shared_),
           "a block that was handed over could not be freed");
    remove(self, kept);
  }

  void subscribe(actor& self) {
    const auto number = pool_->remaps().subscribe(silent_listener_);
    if (!number) {
      self.wrong = "no subscription";
      return;
    }
    (void)pool_->remaps().epoch();
    note(self, pool_->remaps().unsubscribe(*number), "a subscription could not be ended");
  }

  void look(actor& self) {
    if (self.numbers.one_in(4)) return note(self, pool_->validate(), "the pool is not valid");
    const vmm::pool_statistics now = pool_->statistics();
    if (now.live_bytes > now.peak_live_bytes) self.wrong = "the statistics are torn";
    if (self.numbers.one_in(2)) (void)pool_->last_shortage();
    if (self.numbers.one_in(2)) (void)pool_->regions();
  }

  // A graph of one kernel on memory of its own, played once and released.
  void capture(actor& self) {
    if (!captures_) return;
    if (announces_) note(self, pool_->captures().begin(), "a capture could not be announced");
    capture_announced(self);
    if (announces_) note(self, pool_->captures().end(), "the end of a capture is not known");
  }
  void capture_announced(actor& self) {
    if (!driver_.begin_capture(self.own, vmm::capture_mode::relaxed)) return;
    const std::uint64_t size_bytes = some_size(self.numbers);
    const auto at = pool_->allocate(size_bytes, self.own);
    const auto number = pool_->captures().number(self.own);
    if (at) {
      const vmm::address_range range{*at, size_bytes};
      const vmm::fake::kernel work{.name = "graph", .duration_us = 5, .writes = {&range, 1}};
      note(self, driver_.launch(self.own, work), "a kernel could not be captured");
      note(self, pool_->free(*at, self.own), "a block of a capture could not be freed");
    }
    const auto made = driver_.end_capture(self.own);
    if (!made || !number) {
      self.wrong = "a capture was spoiled";
      return;
    }
    note(self, driver_.launch_graph(*made, self.own), "a graph did not play");
    note(self, pool_->captures().release(*number, self.own), "a capture could not be released");
    note(self, driver_.destroy_graph(*made), "a graph could not be destroyed");
  }

  void give_all_back() {
    for (actor& each : actors_) {
      for (block& gone : each.blocks) {
        if (gone.is_pinned) note(each, pool_->unpin(gone.at), "a last unpin failed");
        if (gone.is_freed) continue;
        if (gone.tag) use(each, gone);
        note(each, pool_->free(gone.at, gone.stream), "a last free failed");
      }
      complain(each.wrong);
    }
    if (pool_->statistics().live_count != 0) complain("a block is left");
  }

  const bool arenas_;
  silent_observer observer_;
  silent_listener silent_listener_;
  handed_over_listener frees_handed_over_{*this};
  vmm::stream_handle shared_{};
  vmm::sync::atomic<std::uint64_t> handed_over_ = 0;
  std::unique_ptr<pool> pool_;
  bool captures_ = false;
  bool announces_ = false;  // captures
  bool forgets_ = false;    // each stream that goes
  bool unordered_ = false;
};

/// The same seed's program with frees after everything among its calls.
struct pool_unordered_program : pool_program {
  explicit pool_unordered_program(std::uint64_t seed) : pool_program(seed, true) {}
};
