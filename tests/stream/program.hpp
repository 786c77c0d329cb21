// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A program of pool operations beside a naive model, on a fake driver whose work finishes only when
// the program says so, in any order that streams and events allow. Bytes choose: the
// fuzzer's or a random generator's. It imports what it checks, so it is the last include of a file,
// except others with imports.
//
// The model has the live blocks, their streams and their contents. It checks that no two blocks
// overlap, that a block keeps its contents, that a call fails only for memory or with the fault
// that was planned, and that the numbers add up. The driver checks that nothing is used, unmapped
// or handed on while unfinished work may touch it.
#pragma once

#include "../../tools/program/standard.hpp"
#include "../support/byte_source.hpp"

import vmm.fake;
import vmm.observe;
import vmm.optimizer;
import vmm.stream;
import vmm.suspend;

/// `Driver` is the fake driver or derived from it.
template <class Driver>
class basic_stream_program {
 public:
  static constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  static constexpr std::size_t stream_count = 4;

  /// `more` goes to the driver, behind the profile that the first byte chooses.
  template <class... More>
  explicit basic_stream_program(byte_source source, More... more)
      : source_(source), driver_(machine(source_.byte()), more...) {
    driver_.set_manual(true);
    for (vmm::stream_handle& stream : streams_) stream = *driver_.create_stream();
    event_ = *driver_.create_event();
    pool_ = std::make_unique<pool>(driver_, chosen_options());
  }

  static constexpr const char* saw_misuse = "the driver saw a misuse";

  struct limits {
    std::uint64_t validate_every = 8;  ///< operations; and at the end
    std::uint64_t operations_max = ~0ull;
    /// Beside the calls of the first programs, as bytes choose: device-wide frees of blocks used by
    /// a stream that the pool has not seen; announcements of requests and of captures, expected
    /// limits, suspensions, histories and rights; arenas; blocks aligned up to 2 MiB; streams that
    /// are destroyed without forget(); the policy "off".
    bool every_call = true;
    /// Blocks are filled, fills fail, and a remap listener frees blocks.
    vmm::contents_rule contents = vmm::contents_rule::none;
    /// Another device gets and loses rights, to all blocks and to single ones, and works.
    bool rights = false;
  };

  /// Runs to the end of the bytes. nullptr when all went well, else what did not.
  [[nodiscard]] const char* run() { return run(limits{}); }
  [[nodiscard]] const char* run(const limits& within) {
    const std::uint32_t choice = within.every_call ? source_.byte() : 15;
    const bool fills = begin_contents(within.contents);
    rights_ = within.rights && driver_.feature_set().access_per_location;
    if (choice % 2 == 0 && !fills) begin_unordered();
    if (choice % 8 < 6) begin_all_calls();
    aligned_ = choice / 8 % 2 == 0;
    if (within.every_call) begin_streams_end(choice / 16 % 4);
    if (within.every_call && choice / 64 == 3) begin_off();
    while (!source_.empty() && operations_ < within.operations_max && wrong_ == nullptr) {
      operation();
      if (operations_ % within.validate_every == 1 % within.validate_every) validate();
    }
    finish();
    return wrong_;
  }
  [[nodiscard]] std::string detail() const { return detail_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  [[nodiscard]] std::uint64_t failures() const { return failures_; }
  [[nodiscard]] std::uint64_t faults() const { return driver_.faults_struck(); }
  /// What was done of what not every operation does.
  struct totals {
    std::uint64_t arenas = 0;  ///< that streams have at the end
    std::uint64_t prepared = 0;
    std::uint64_t suspended = 0;
    std::uint64_t histories = 0;
    std::uint64_t graphs = 0;
    std::uint64_t unordered = 0;
    std::uint64_t freed_in_callbacks = 0;
    std::uint64_t rights = 0;  ///< of single blocks

    void add(const totals& other) {
      arenas += other.arenas;
      prepared += other.prepared;
      suspended += other.suspended;
      histories += other.histories;
      graphs += other.graphs;
      unordered += other.unordered;
      freed_in_callbacks += other.freed_in_callbacks;
      rights += other.rights;
    }
  };
  [[nodiscard]] const totals& done() const { return done_; }
  /// Of the pool before it goes away.
  [[nodiscard]] const vmm::pool_statistics& last_statistics() const { return last_; }

 private:
  using pool = vmm::stream_pool;
  struct block {
    std::uint64_t size_bytes = 0;
    std::size_t stream = 0;
    std::optional<std::uint64_t> tag{};
    std::uint32_t pins = 0;
    bool is_freed = false;     // while pinned: it goes with its last pin
    bool is_orphaned = false;  // freed, and the stream of that is gone: nothing orders new work
    bool is_known = true;      // the pool has given out the block for its stream
    bool is_whole = false;     // has its mappings for itself
    bool is_outside = false;   // its last work is on the stream that the pool does not know
    std::optional<vmm::access> rights{};  // of device 1, where they are this block's own
  };

  // Mostly one that maps a handle twice; some that do not, or that unmap one mapping at a time.
  [[nodiscard]] static vmm::fake::profile machine(std::uint32_t choice) {
    vmm::fake::profile plays = vmm::fake::profile::cuda();
    if (choice % 8 == 5) plays = vmm::fake::profile::level_zero();
    if (choice % 8 == 6) plays.can.alias = vmm::alias_level::none;
    if (choice % 8 == 7) plays.can.spanning_unmap = false;
    plays.traps.stream_numbers_again = true;  // as CUDA, while work of the earlier one runs
    plays.device_memory_bytes = 192 * mib;
    plays.device_count = 2;
    return plays;
  }

  [[nodiscard]] vmm::pool_options chosen_options() {
    vmm::pool_options options;
    const std::uint32_t choice = source_.byte();
    options.reservation_bytes = (choice & 1) != 0 ? 512 * mib : 2048 * mib;
    if ((choice & 2) != 0) options.policy = vmm::pool_policy::vpmm();
    if ((choice & 2) == 0) {
      options.policy.handle_bytes_max = (choice & 4) != 0 ? 4 * mib : 16 * mib;
      options.policy.tuning.first_fit_bytes = (choice & 8) != 0 ? 4 * mib : 0;
      options.policy.tuning.slack_bytes = (choice & 16) != 0 ? 8 * mib : 0;
      options.policy.tuning.growth_gap_bytes = (choice & 32) != 0 ? 64 * mib : 0;
      options.policy.tuning.min_move_share = (choice & 64) != 0 ? 0 : 16;
      if ((choice & 64) != 0) options.policy.tuning.move_budget_ns = 0;
    }
    if ((choice & 128) != 0) options.budget_bytes = 96 * mib;
    budget_bytes_ = options.budget_bytes;
    const bool keeps = source_.byte() % 2 == 0;
    options.capture = keeps ? vmm::capture_rule::private_memory : vmm::capture_rule::refuse;
    may_keep_ = keeps;
    closing_fault_ = source_.byte();
    closing_how_ = source_.byte();
    options.streams_forgotten = true;
    return options;
  }

  // Freed memory is filled in the order of a stream: unordered_ has none.
  [[nodiscard]] bool begin_contents(vmm::contents_rule rule) {
    if (rule == vmm::contents_rule::none || !driver_.feature_set().copy) return false;
    vmm::pool_options options = pool_->options();
    options.contents = rule;
    pool_ = std::make_unique<pool>(driver_, options);
    fresh_tag_ = rule == vmm::contents_rule::poison ? vmm::poison_byte * 0x0101'0101'0101'0101U : 0;
    return true;
  }
  [[nodiscard]] bool fills_freed() const {
    const vmm::contents_rule rule = pool_->options().contents;
    return rule == vmm::contents_rule::zero_on_release || rule == vmm::contents_rule::poison;
  }

  // Frees one block at the first notice of an operation, which does not meet that block otherwise.
  class freeing_listener final : public vmm::remap_listener {
   public:
    explicit freeing_listener(basic_stream_program& of) : of_(of) {}
    void before_change(const vmm::remap_notice&) noexcept override { look(); }
    void after_change(const vmm::remap_notice&) noexcept override { look(); }
    void look() noexcept {
      if (!of_.to_free_ || is_freed) return;
      const auto& [at, victim] = *of_.to_free_;
      is_freed = of_.pool_->free(vmm::address{at}, of_.streams_[victim.stream]).has_value();
    }
    bool is_freed = false;

   private:
    basic_stream_program& of_;
  };
  template <class Operation>
  void beside_listener(Operation&& operation) {
    const bool is_used = fresh_tag_ && source_.byte() % 2 == 0 && !blocks_.empty();
    const auto victim = is_used ? some_block() : blocks_.end();
    if (!is_used || victim->second.pins != 0 || victim->second.is_freed) return operation();
    bring_back(victim->second);
    const std::uint64_t discarded_count = discarded_count_;
    freeing_listener listener(*this);
    const auto subscribed = pool_->remaps().subscribe(listener);
    if (!subscribed) return complain("no subscription", subscribed.error());
    to_free_ = *victim;
    blocks_.erase(victim);
    operation();
    if (!pool_->remaps().unsubscribe(*subscribed)) complain("a subscription does not end");
    if (listener.is_freed) {
      live_bytes_ -= to_free_->second.size_bytes;
      ++done_.freed_in_callbacks;
    } else {
      const auto back = blocks_.insert(*to_free_).first;
      if (discarded_count_ != discarded_count) back->second.tag.reset();
    }
    to_free_.reset();
  }

  void operation() {
    ++operations_;
    if (all_calls_) some_other_call(source_.byte());
    const std::uint32_t choice = source_.byte();
    const bool faulty = choice % 7 == 0;  // of every kind of operation
    if (faulty) {
      const std::uint32_t where = source_.byte();
      plan_fault(where, source_.byte(), !rights_);
    }
    if (choice < 110) {
      beside_listener([this] { allocate(); });
    } else if (choice < 170) {
      free(choice % 2 == 0);
    } else if (choice < 200) {
      if (!blocks_.empty()) launch(*some_block());
    } else if (choice < 210) {
      hand_over();
    } else if (choice < 238) {
      finish_some();
    } else if (choice < 243) {
      beside_listener([this] { trim(); });
    } else if (choice < 246) {
      pin();
    } else if (choice < 249) {
      unpin();
    } else if (choice < 251) {
      forget();
    } else if (choice < 253) {
      capture();
    } else if (choice < 254) {
      release_one();
    } else {
      misuse();
    }
    if (faulty) clear_faults();
  }

  void begin_all_calls() {
    all_calls_ = true;
    vmm::pool_options options = pool_->options();
    const std::uint32_t choice = source_.byte();
    if (choice % 2 == 0) options.stream_arenas = vmm::arena_rule::always;
    options.captures_announced = choice % 8 >= 6;
    announces_ = announces_ || options.captures_announced;
    pool_ = std::make_unique<pool>(driver_, options);
  }
  // A driver without the event for all work has nothing to go by but forget().
  void begin_streams_end(std::uint32_t choice) {
    if constexpr (requires { driver_.set_gone_streams_undefined(true); })
      driver_.set_gone_streams_undefined(true);
    streams_end_ = choice == 0 && driver_.feature_set().record_all;
    vmm::pool_options options = pool_->options();
    options.streams_forgotten = choice == 1;
    pool_ = std::make_unique<pool>(driver_, options);
  }
  // Each block has mappings of its own and goes back to the driver.
  void begin_off() {
    vmm::pool_options options = pool_->options();
    options.policy = vmm::pool_policy::off();
    pool_ = std::make_unique<pool>(driver_, options);
  }
  [[nodiscard]] bool is_off() const { return pool_->options().policy.tuning.keep_none; }
  // What is not among the operations of every program.
  void some_other_call(std::uint32_t choice) {
    const bool faulty = choice % 5 == 0;
    if (choice >= 76) return;
    if (faulty) {
      const std::uint32_t where = source_.byte();
      plan_fault(where, source_.byte(), !rights_);
    }
    if (choice < 20) {
      announce();
    } else if (choice < 25) {
      pool_->expect_memory_limit(source_.byte() * mib);
    } else if (choice < 30) {
      beside_listener([this] { suspend(); });
    } else if (choice < 35) {
      record();
    } else if (choice < 40) {
      free_again();
    } else if (choice < 44) {
      if (!pool_->synchronize()) ++failures_;
    } else if (choice >= 70) {
      set_rights();
    } else if (choice >= 60) {
      allocate_dedicated();
    } else {
      for (std::uint32_t left = source_.byte() % 16; left > 0 && wrong_ == nullptr; --left)
        left % 2 == 0 ? allocate() : free(false);
    }
    if (faulty) clear_faults();
  }
  void announce() {
    const std::size_t stream = source_.byte() % stream_count;
    const std::uint64_t size_bytes = some_size();
    const std::uint64_t struck_before = driver_.faults_struck();
    const vmm::pool_statistics before = pool_->statistics();
    const std::uint64_t held_bytes = driver_.resource_counts().memory_bytes;
    const vmm::preallocate_report done = pool_->preallocate(size_bytes, streams_[stream]);
    const vmm::pool_statistics after = pool_->statistics();
    const vmm::errc code = done.failure.code;
    const bool is_short = code == vmm::errc::out_of_memory || code == vmm::errc::over_budget;
    if (is_short) check_no_more(held_bytes);
    if (code != vmm::errc::none && !is_short && driver_.faults_struck() == struck_before)
      complain("an announcement failed without a reason", done.failure);
    if (after.device_wait_count != before.device_wait_count ||
        after.host_wait_count != before.host_wait_count)
      complain("an announcement has made a stream or thread wait");
    if (after.live_bytes != before.live_bytes || after.live_count != before.live_count)
      complain("an announcement has changed the live blocks");
    if (after.slow_count != before.slow_count) complain("an announcement counts as a growth");
    if (done.left_bytes > size_bytes + 2 * mib) complain("more is left than was announced");
    check_headroom(size_bytes, done, after);
    if (code == vmm::errc::none) ++done_.prepared;
    const bool is_ready = done.left_bytes == 0 && code == vmm::errc::none && !is_off();
    if (is_ready && driver_.faults_struck() == struck_before) take_announced(size_bytes, stream);
  }
  void check_headroom(std::uint64_t size_bytes, const vmm::preallocate_report& done,
                      const vmm::pool_statistics& now) {
    const vmm::pool_policy& policy = pool_->options().policy;
    const std::uint64_t live_bytes = now.live_bytes + now.captured_bytes + size_bytes + 2 * mib;
    const std::uint64_t peak_bytes = std::max(now.peak_live_bytes, live_bytes);
    const double raise = policy.tuning.move_budget_ns != 0 ? 0.23 : 0;  // at most
    const double most = (policy.headroom + raise) * static_cast<double>(peak_bytes) +
                        static_cast<double>(policy.tuning.slack_bytes);
    if (done.created_bytes != 0 && static_cast<double>(now.mapped_bytes) > most)
      complain("an announcement has created more than the headroom");
  }
  void take_announced(std::uint64_t size_bytes, std::size_t stream) {
    const std::uint64_t struck_before = driver_.faults_struck();
    const std::uint64_t created_count = pool_->statistics().created_count;
    const auto got = pool_->allocate(size_bytes, streams_[stream]);
    const bool struck = driver_.faults_struck() != struck_before;
    if (!got && !struck) complain("a request that was announced is refused");
    if (!got) return;
    if (!struck && pool_->statistics().created_count != created_count)
      complain("a request that was announced has created memory");
    check_overlap(got->value, size_bytes);
    blocks_.emplace(got->value, block{size_bytes, stream, fresh_tag_});
    live_bytes_ += size_bytes;
  }
  void allocate_dedicated() {
    const std::size_t stream = source_.byte() % stream_count;
    const std::uint64_t size_bytes = some_size();
    const std::uint64_t struck_before = driver_.faults_struck();
    const std::uint64_t held_bytes = driver_.resource_counts().memory_bytes;
    const auto got = pool_->allocate_dedicated(size_bytes, streams_[stream]);
    if (!got) {
      check_no_more(held_bytes);
      const vmm::errc code = got.error().code;
      const bool is_short = code == vmm::errc::out_of_memory || code == vmm::errc::over_budget;
      if (!is_short && driver_.faults_struck() == struck_before)
        complain("a whole block is refused without a reason");
      return;
    }
    check_overlap(got->value, size_bytes);
    const auto fresh = blocks_.emplace(got->value, block{size_bytes, stream, fresh_tag_}).first;
    fresh->second.is_whole = true;
    live_bytes_ += size_bytes;
    launch(*fresh);
  }
  void set_rights() {
    if (pool_->statistics().mapped_bytes == 0) return;  // nothing says whether the driver can
    if (rights_) return set_own_rights();
    const auto rights = source_.byte() % 2 == 0 ? vmm::access::read_write : vmm::access::read;
    const std::array<vmm::access_grant, 1> other{{{vmm::device(1), rights}}};
    (void)pool_->set_peers(other);
  }
  void set_own_rights() {
    if (!driver_.finish_all()) complain("work could not finish");  // rights may become less
    constexpr std::array all{vmm::access::none, vmm::access::read, vmm::access::read_write};
    const vmm::access_grant given{vmm::device(1), all[source_.byte() % all.size()]};
    if (blocks_.empty() || source_.byte() % 2 == 0) {
      if (pool_->set_peers({&given, 1})) peer_rights_ = given.rights;
      return;
    }
    auto& [at, of] = *some_block();
    const vmm::status done = pool_->set_access(vmm::address{at}, {&given, 1});
    if (!done) return;
    of.rights = given.rights;
    ++done_.rights;
  }
  [[nodiscard]] vmm::access rights_of(const block& of) const {
    return of.is_freed ? vmm::access::none : of.rights.value_or(peer_rights_);
  }
  // A freed one has those of all when its work has finished.
  void check_rights() {
    for (const auto& [at, each] : blocks_)
      for (std::uint64_t done = 0; !each.is_freed && done < each.size_bytes; done += 2 * mib)
        if (*driver_.get_access(vmm::address{at} + done, vmm::device(1)) != rights_of(each))
          return complain("the rights of another device are not those that were set");
  }
  // Nothing is in the way of it but work that the program finishes.
  void suspend() {
    for (const auto& [at, each] : blocks_)
      if (each.pins != 0) return;
    if (!driver_.finish_all()) complain("work could not finish");
    const std::uint32_t how = source_.byte();
    if (how % 3 != 0) return sleep(how % 3 == 1);
    vmm::suspension_list parts;
    if (!pool_->suspension().begin_suspend(streams_, parts)) return;
    if (pool_->allocate(512, streams_[0])) complain("a suspended pool hands out memory");
    pool_->suspension().end_suspend(parts, false);
  }
  // The memory goes to the driver and comes back, with or without what was in it.
  void sleep(bool keeps) {
    vmm::suspender sleeper;
    const auto contents = keeps ? vmm::suspend_contents::keep : vmm::suspend_contents::discard;
    if (!sleeper.add(*pool_, {.tag = "pool", .contents = contents})) return;
    const vmm::result<vmm::suspend_report> gone = sleeper.suspend({.streams = streams_});
    const vmm::result<bool> is_away = sleeper.is_suspended("pool");
    if (!is_away) return complain("the region of a suspension is gone", is_away.error());
    if (gone && !*is_away) complain("a suspension has suspended nothing");
    if (*is_away) ++done_.suspended;
    if (*is_away) wake(sleeper, gone.has_value());
    driver_.clear_faults();
    const vmm::status left = sleeper.remove(*pool_);
    if (!left) complain("a region could not be removed", left.error());
    if (keeps || !*is_away) return;
    ++discarded_count_;
    for (auto& [at, each] : blocks_) each.tag.reset();
  }
  void wake(vmm::suspender& sleeper, bool is_whole) {
    if (pool_->allocate(512, streams_[0])) complain("a suspended pool hands out memory");
    const std::uint32_t count = source_.byte() % 4;
    for (std::uint32_t i = 0; is_whole && i < count && !blocks_.empty(); ++i) {
      const auto victim = some_block();
      const bool is_unordered = unordered_ && may_free_unordered(victim->second);
      is_unordered ? free_unordered(victim) : free(victim, false);
    }
    if (sleeper.resume()) return;
    driver_.clear_faults();
    const vmm::status again = sleeper.resume();
    if (!again) complain("what was suspended does not come back", again.error());
  }
  // From one such call to the next: the live blocks are those at the history's end.
  void record() {
    if (!is_recorded_) {
      const std::uint64_t struck_before = driver_.faults_struck();
      const vmm::status begun = pool_->history().start({.event_count = 1024});
      if (!begun && driver_.faults_struck() == struck_before)
        complain("a history could not begin", begun.error());
      is_recorded_ = begun.has_value();
      return;
    }
    const vmm::result<vmm::history> seen = pool_->history().stop();
    if (!seen) return complain("a history could not end", seen.error());
    is_recorded_ = false;
    ++done_.histories;
    for (const vmm::history_region& each : seen->regions) {
      if (each.kind != vmm::history_region_kind::live &&
          overlaps_a_block(each.where.base.value, each.where.size_bytes))
        complain("a history ends with a live block where none is");
    }
  }
  // What was just freed is not live, whichever half of the free has been done; the numbers know.
  void free_again() {
    if (blocks_.empty()) return;
    const auto victim = some_block();
    if (victim->second.is_freed || victim->second.pins != 0) return;
    const vmm::address at{victim->first};
    const vmm::stream_handle stream = streams_[victim->second.stream];
    const std::uint64_t size_bytes = victim->second.size_bytes;
    bring_back(victim->second);
    const std::uint64_t struck_before = driver_.faults_struck();
    const bool is_exact =
        !pool_->options().policy.tuning.whole_pages && !victim->second.is_whole && !is_off();
    const bool counts = size_bytes > 512 && !victim->second.rights;
    const std::uint64_t live_before = counts ? pool_->statistics().live_bytes : 0;
    if (!pool_->free(at, stream)) {
      if (driver_.faults_struck() == struck_before) complain("a free has a wrong result");
      return;
    }
    forget_block(victim);
    const std::uint32_t how = source_.byte();
    if (how % 3 == 0) try_gone(at, how, "what was freed is live");
    if (how % 3 == 1 && size_bytes > 512)
      try_gone(vmm::address{at.value + 512}, how, "the inside of what was freed is live");
    if (live_before == 0) return;
    const std::uint64_t rounded = (size_bytes + 511) / 512 * 512;
    const std::uint64_t gone = live_before - pool_->statistics().live_bytes;
    if (gone < rounded || (gone != rounded && is_exact))
      complain("the live bytes are wrong after a free");
  }
  void try_gone(vmm::address at, std::uint32_t how, const char* what) {
    const std::uint64_t struck_before = driver_.faults_struck();
    const vmm::status answer =
        how % 2 == 0 ? pool_->free(at, streams_[how / 2 % stream_count]) : pool_->pin(at);
    const bool struck = driver_.faults_struck() != struck_before;
    if (answer || (!struck && answer.error().code != vmm::errc::not_allocated)) complain(what);
  }

  // At one of the next calls; the bytes say which, and how it fails.
  void plan_fault(std::uint32_t where, std::uint32_t how, bool may_last) {
    static constexpr std::array kinds{
        vmm::call::create,        vmm::call::map,           vmm::call::set_access,
        vmm::call::unmap,         vmm::call::release,       vmm::call::record_event,
        vmm::call::create_event,  vmm::call::query_event,   vmm::call::wait_event,
        vmm::call::reserve,       vmm::call::destroy_event, vmm::call::synchronize_event,
        vmm::call::query_capture,
    };
    vmm::fake::fault planned;
    planned.where = kinds[where % kinds.size()];
    if (unordered_ && where / kinds.size() % 4 == 3) planned.where = vmm::call::record_all;
    if (fresh_tag_ && how % 3 == 0) planned.where = vmm::call::fill;
    const bool is_kept = planned.where == vmm::call::unmap || planned.where == vmm::call::release;
    takes_back_ = takes_back_ && !is_kept;
    planned.nth = 1 + how % 4;
    planned.forever = may_last && (how & 64) != 0;
    const auto codes = driver_.possible_errors(planned.where);
    if (codes.empty()) return;
    planned.failure = codes[how % codes.size()];
    driver_.fail(planned);
  }

  [[nodiscard]] std::uint64_t some_size() {
    const std::uint32_t kind = source_.byte() % 4;
    const std::uint64_t value = 1 + source_.below(0xFFFF);
    if (kind == 0) return value % 4096 + 1;
    if (kind == 1) return value * 64;
    if (kind == 2) return value % 32 * mib + 1;
    return (value % 12 + 1) * 2 * mib;
  }

  [[nodiscard]] std::uint64_t some_alignment() {
    return aligned_ ? std::uint64_t{512} << source_.byte() % 13 : 512;
  }

  void allocate() {
    const std::uint32_t how = source_.byte();
    const std::size_t stream = how % stream_count;
    const std::uint64_t size_bytes = some_size();
    const std::uint64_t alignment_bytes = some_alignment();
    const std::uint64_t struck_before = driver_.faults_struck();
    const std::uint64_t held_bytes = driver_.resource_counts().memory_bytes;
    const auto got = pool_->allocate(size_bytes, alignment_bytes, streams_[stream]);
    const bool struck = driver_.faults_struck() != struck_before;
    if (!got) {
      check_no_more(held_bytes);
      ++failures_;
      const vmm::errc code = got.error().code;
      const bool short_of_memory =
          code == vmm::errc::out_of_memory || code == vmm::errc::over_budget;
      if (!struck && !short_of_memory)
        complain("an allocation failed without a reason", got.error());
      if (!struck && live_bytes_ + size_bytes * 2 + 80 * mib < free_to_have() && stuck_free())
        complain("an allocation failed with plenty of memory", got.error());
      return;
    }
    if (got->value % alignment_bytes != 0) complain("a block is not aligned");
    check_overlap(got->value, size_bytes);
    const auto fresh = blocks_.emplace(got->value, block{size_bytes, stream, fresh_tag_}).first;
    live_bytes_ += size_bytes;
    if ((how & 64) != 0) launch(*fresh);
  }
  // Small live blocks may pin every handle; then plenty of memory helps nothing.
  [[nodiscard]] bool stuck_free() const { return blocks_.size() < 4; }
  [[nodiscard]] std::uint64_t free_to_have() const {
    return budget_bytes_ != 0 ? budget_bytes_ : 192 * mib;
  }

  void check_overlap(std::uint64_t at, std::uint64_t size_bytes) {
    if (overlaps_a_block(at, size_bytes)) complain("two blocks overlap");
  }
  [[nodiscard]] bool overlaps_a_block(std::uint64_t at, std::uint64_t size_bytes) const {
    const auto next = blocks_.lower_bound(at);
    if (next != blocks_.end() && next->first < at + size_bytes) return true;
    if (next == blocks_.begin()) return false;
    const auto before = std::prev(next);
    return before->first + before->second.size_bytes > at;
  }

  [[nodiscard]] typename std::map<std::uint64_t, block>::iterator some_block() {
    auto found = blocks_.begin();
    std::advance(found, source_.below(static_cast<std::uint32_t>(blocks_.size())));
    return found;
  }

  void free(bool use_first) {
    if (blocks_.empty()) return;
    const auto victim = some_block();
    const std::uint32_t how = unordered_ ? source_.byte() : 0;
    if (how % 4 == 3) return use_outside(*victim);
    if (how % 4 == 0 || !may_free_unordered(victim->second)) return free(victim, use_first);
    if (use_first && how % 4 == 1) launch(*victim);
    if (how % 4 == 2) use_outside(*victim);
    free_unordered(victim);
  }
  // A driver without the event for all work marks the pool's streams. A block with rights of its
  // own is refused.
  [[nodiscard]] bool may_free_unordered(const block& gone) {
    return !gone.rights &&
           (driver_.feature_set().record_all || (gone.is_known && !gone.is_outside));
  }
  void free_unordered(typename std::map<std::uint64_t, block>::iterator victim) {
    block& gone = victim->second;
    const bool freed = pool_->free(vmm::address{victim->first}).has_value();
    if (freed == gone.is_freed) return complain("a device-wide free has a wrong result");
    if (gone.is_freed) return;
    ++done_.unordered;
    gone.is_freed = true;
    if (gone.pins == 0) forget_block(victim);
  }

  void begin_unordered() {
    unordered_ = announces_ = true;
    outside_ = *driver_.create_stream();
  }
  // Work behind that of the block's stream, and not ordered before what that is given next.
  void use_outside(std::pair<const std::uint64_t, block>& what) {
    if (!driver_.feature_set().record_all || what.second.is_orphaned) return;
    driver_.clear_faults();
    block& used = what.second;
    if (used.is_freed && used.pins == 0) return;
    vmm::fake_driver& fake = driver_;
    if (!fake.record_event(event_, streams_[used.stream]) || !fake.wait_event(outside_, event_))
      return complain("an outside stream could not wait");
    used.is_outside = true;
    launch_on(what, outside_);
  }
  // What the block's stream is given next comes behind the outside work.
  void bring_back(block& used) {
    if (!std::exchange(used.is_outside, false)) return;
    driver_.clear_faults();
    vmm::fake_driver& fake = driver_;
    if (!fake.record_event(event_, outside_) || !fake.wait_event(streams_[used.stream], event_))
      complain("a stream could not wait for an outside one");
  }
  void free(typename std::map<std::uint64_t, block>::iterator victim, bool use_first) {
    if (use_first) launch(*victim);
    block& gone = victim->second;
    bring_back(gone);
    const std::uint64_t struck_before = driver_.faults_struck();
    const vmm::status freed = pool_->free(vmm::address{victim->first}, streams_[gone.stream]);
    if (!freed && driver_.faults_struck() != struck_before) return;  // it is as it was
    const bool is_refused = gone.is_freed || (gone.pins != 0 && fills_freed());
    if (freed.has_value() == is_refused) return complain("a free has a wrong result");
    if (is_refused) return;
    gone.is_freed = true;
    if (gone.pins == 0) forget_block(victim);
  }
  void forget_block(typename std::map<std::uint64_t, block>::iterator gone) {
    live_bytes_ -= gone->second.size_bytes;
    blocks_.erase(gone);
  }

  void pin() {
    if (blocks_.empty()) return;
    const auto kept = some_block();
    const bool pinned = pool_->pin(vmm::address{kept->first}).has_value();
    if (pinned == kept->second.is_freed) return complain("a pin has a wrong result");
    if (pinned) ++kept->second.pins;
  }

  void unpin() {
    if (blocks_.empty()) return;
    unpin(some_block());
  }
  void unpin(typename std::map<std::uint64_t, block>::iterator kept) {
    if (kept->second.is_freed) bring_back(kept->second);  // the unpin means that its use is over
    const bool unpinned = pool_->unpin(vmm::address{kept->first}).has_value();
    if (unpinned != (kept->second.pins != 0)) return complain("an unpin has a wrong result");
    if (unpinned && --kept->second.pins == 0 && kept->second.is_freed) forget_block(kept);
  }

  // A stream goes and another one takes its place, which the program orders behind it.
  void forget() {
    const std::size_t which = source_.byte() % stream_count;
    for (auto& [at, each] : blocks_)
      if (each.stream == which && each.is_freed) bring_back(each);
    const bool is_announced = !streams_end_ || source_.byte() % 2 == 0;
    if (is_announced && !pool_->forget(streams_[which])) return;
    driver_.clear_faults();
    vmm::fake_driver& fake = driver_;
    const auto fresh = fake.create_stream();
    if (!fresh || !fake.record_event(event_, streams_[which]) || !fake.wait_event(*fresh, event_) ||
        !fake.destroy_stream(streams_[which]))
      return complain("a stream could not be replaced");
    streams_[which] = *fresh;
    for (auto& [at, each] : blocks_) {
      if (each.stream == which && each.is_freed) each.is_orphaned = true;
      if (each.stream == which) each.is_known = false;
    }
  }

  void launch(std::pair<const std::uint64_t, block>& what) {
    if (what.second.is_orphaned) return;
    bring_back(what.second);
    launch_on(what, streams_[what.second.stream]);
  }
  void launch_on(std::pair<const std::uint64_t, block>& what, vmm::stream_handle stream) {
    auto& [at, used] = what;
    const std::uint64_t size_bytes = used.size_bytes < 8 ? 8 : used.size_bytes / 8 * 8;
    const vmm::address_range range{vmm::address{at}, size_bytes};
    vmm::fake::kernel work{.name = "work", .duration_us = 5};
    work.writes = {&range, 1};
    if (used.tag) work.reads = {&range, 1};
    work.expected = used.tag;
    work.tag = ++last_tag_;
    if (rights_ && rights_of(used) == vmm::access::read_write && source_.byte() % 2 == 0)
      work.where = vmm::device(1);
    if (!driver_.launch(stream, work)) complain("a kernel could not be launched");
    used.tag = last_tag_;
  }

  // A block goes on to another stream, which the program orders behind the first.
  void hand_over() {
    if (blocks_.empty()) return;
    driver_.clear_faults();
    block& moved = some_block()->second;
    const std::size_t next = source_.byte() % stream_count;
    if (moved.is_freed) return;
    bring_back(moved);
    vmm::fake_driver& fake = driver_;  // what the program itself orders is not for a derived driver
    if (!fake.record_event(event_, streams_[moved.stream])) complain("no mark");
    if (!fake.wait_event(streams_[next], event_)) complain("no wait");
    moved.is_known = moved.is_known && moved.stream == next;
    moved.stream = next;
  }

  void finish_some() {
    for (std::uint32_t left = source_.byte() % 8; left > 0; --left) {
      const std::size_t ready = driver_.ready_count();
      if (ready == 0) return;
      if (!driver_.finish_ready(source_.byte() % ready)) complain("work could not finish");
    }
  }

  // A graph of one kernel on memory that is allocated and freed in its capture, played once. Only
  // the graph has that memory until it is released: every replay of it would show otherwise.
  void capture() {
    const std::size_t stream = source_.byte() % stream_count;
    const std::uint64_t size_bytes = some_size();
    if (graphs_.size() == 3) return;
    if (announces_ && !pool_->captures().begin()) complain("a capture could not be announced");
    capture_on(stream, size_bytes);
    if (announces_ && !pool_->captures().end()) complain("the end of a capture is not known");
  }
  void capture_on(std::size_t stream, std::uint64_t size_bytes) {
    if (!driver_.begin_capture(streams_[stream], vmm::capture_mode::any_thread)) return;
    if (unordered_ && !blocks_.empty()) {
      const auto gone = some_block();
      const bool is_stray = gone->second.stream == stream || gone->second.is_freed;
      if (!is_stray && may_free_unordered(gone->second)) free_unordered(gone);
    }
    const std::uint64_t alignment_bytes = some_alignment();
    const std::uint64_t struck_before = driver_.faults_struck();
    const std::uint64_t held_bytes = driver_.resource_counts().memory_bytes;
    const auto got = pool_->allocate(size_bytes, alignment_bytes, streams_[stream]);
    const bool struck = driver_.faults_struck() != struck_before;
    if (!got) check_no_more(held_bytes);
    driver_.clear_faults();
    const auto number = pool_->captures().number(streams_[stream]);
    if (got && !may_keep_) complain("memory was allocated in a capture that is refused");
    if (!got && !may_keep_ && !struck && got.error().code != vmm::errc::not_permitted)
      complain("a capture is refused with another code");
    if (got) {
      if (got->value % alignment_bytes != 0) complain("a graph's block is not aligned");
      check_overlap(got->value, size_bytes);
      const vmm::address_range range{*got, (size_bytes + 7) / 8 * 8};
      const vmm::fake::kernel work{.name = "graph", .duration_us = 5, .writes = {&range, 1}};
      if (!driver_.launch(streams_[stream], work)) complain("a kernel could not be captured");
      if (!pool_->free(*got, streams_[stream])) complain("a block of a capture could not be freed");
    }
    const auto made = driver_.end_capture(streams_[stream]);
    if (!made) return complain("a capture was spoiled");
    if (!got || !number) {
      if (got) complain("a capture without a number");
      if (!driver_.destroy_graph(*made)) complain("a graph could not be destroyed");
      return;
    }
    ++done_.graphs;
    graphs_.push_back({*made, *number, stream});
    play(graphs_.back());
  }
  struct graph {
    vmm::fake::graph_handle handle{};
    std::uint64_t number = 0;
    std::size_t stream = 0;
  };
  void play(const graph& what) {
    if (!driver_.launch_graph(what.handle, streams_[what.stream])) complain("a graph did not play");
  }
  void release_one() {
    if (graphs_.empty()) return;
    const std::size_t index = source_.byte() % graphs_.size();
    const graph last = graphs_[index];
    play(last);
    if (!pool_->captures().release(last.number, streams_[last.stream])) return;
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(index));
    if (!driver_.destroy_graph(last.handle)) complain("a graph could not be destroyed");
  }

  void clear_faults() {
    driver_.clear_faults();
    takes_back_ = true;
  }
  // What a failed call has created went back, where the driver took it.
  void check_no_more(std::uint64_t before_bytes) {
    if (takes_back_ && driver_.resource_counts().memory_bytes > before_bytes)
      complain("a failed call holds more memory than before");
  }
  void trim() { (void)pool_->trim(source_.byte() * mib); }

  void misuse() {
    const auto refused = pool_->free(vmm::address{8}, streams_[0]);
    if (refused) complain("a foreign address was freed");
    if (unordered_ && pool_->free(vmm::address{8})) complain("a foreign address was freed");
    if (blocks_.empty()) return;
    const auto inside = vmm::address{some_block()->first + 8};
    if (pool_->free(inside, streams_[0])) complain("an address inside a block was freed");
  }

  void validate() {
    if (driver_.misuse_count() != 0) complain(saw_misuse);
    if (const vmm::status valid = pool_->validate(); !valid) complain(valid.error().detail);
    const vmm::pool_statistics now = pool_->statistics();
    // A freed block with rights counts until they have ended.
    const bool is_right = graphs_.empty() && !rights_ ? now.live_count == blocks_.size()
                                                      : now.live_count >= blocks_.size();
    if (!is_right) complain("the number of live blocks is wrong");
    if (now.live_bytes < live_bytes_) complain("the live bytes are wrong");
    if (budget_bytes_ != 0 && driver_.resource_counts().memory_bytes > budget_bytes_)
      complain("the budget was exceeded");
    if (rights_) check_rights();
  }

  // The pool's destructor waits for its streams, and frees the live blocks.
  [[nodiscard]] bool make_known() {
    bool all_known = true;
    for (const vmm::stream_handle stream : streams_) {
      const auto small = pool_->allocate(1, stream);
      all_known = all_known && small.has_value();
    }
    return all_known;
  }

  void finish() {
    validate();
    const bool leave_alive = closing_fault_ % 3 == 0 && make_known();
    for (auto& [at, each] : blocks_) bring_back(each);
    while (!graphs_.empty() && wrong_ == nullptr && !leave_alive) release_one();
    while (!blocks_.empty() && wrong_ == nullptr && !leave_alive) {
      const auto last = blocks_.begin();
      if (last->second.pins != 0) {
        unpin(last);
      } else {
        free(last, false);
      }
    }
    last_ = pool_->statistics();
    done_.arenas = last_.arena_count;
    if (closing_fault_ % 4 == 0) plan_fault(closing_fault_ / 4, closing_how_, false);
    pool_.reset();
    driver_.clear_faults();
    if (!driver_.finish_all()) complain("work could not finish");
    for (const graph& left : graphs_) (void)driver_.destroy_graph(left.handle);
    (void)driver_.destroy_event(event_);
    for (const vmm::stream_handle stream : streams_) (void)driver_.destroy_stream(stream);
    if (unordered_) (void)driver_.destroy_stream(outside_);
    if (!driver_.check_empty()) complain("the driver still has something");
    for (const auto& misuse : driver_.misuses())
      detail_ += std::string(vmm::fake::name_of(misuse.kind)) + ", " + misuse.detail + "; ";
    if (driver_.misuse_count() != 0) complain(saw_misuse);
  }

  void complain(const char* what, const vmm::error& why) {
    detail_ += vmm::describe(why) + "; ";
    complain(what);
  }
  void complain(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
  }

  byte_source source_;
  Driver driver_;
  std::array<vmm::stream_handle, stream_count> streams_{};
  vmm::event_handle event_{};
  std::unique_ptr<pool> pool_;
  std::map<std::uint64_t, block> blocks_;
  std::vector<graph> graphs_;
  bool may_keep_ = false;  // a capture gets memory of its own
  bool unordered_ = false;
  bool all_calls_ = false;
  bool aligned_ = false;
  bool rights_ = false;
  vmm::access peer_rights_ = vmm::access::none;
  bool announces_ = false;                    // captures
  bool is_recorded_ = false;                  // a history
  bool streams_end_ = false;                  // every second one that goes, without forget()
  vmm::stream_handle outside_{};              // the pool does not know it
  std::optional<std::uint64_t> fresh_tag_{};  // of a new block, where blocks are filled
  std::optional<std::pair<std::uint64_t, block>> to_free_{};  // by the listener
  bool takes_back_ = true;                                    // no fault of the driver's is planned
  std::uint64_t discarded_count_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t budget_bytes_ = 0;
  std::uint32_t closing_fault_ = 0;  // what fails once while the pool goes away, in one of four
  std::uint32_t closing_how_ = 0;
  std::uint64_t last_tag_ = 0;
  std::uint64_t operations_ = 0;
  std::uint64_t failures_ = 0;
  const char* wrong_ = nullptr;
  std::string detail_;
  vmm::pool_statistics last_{};
  totals done_;
};

using stream_program = basic_stream_program<vmm::fake_driver>;
