// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a pool's reports agree with the requests: its statistics, its regions, the notifications of
// its listeners, its history, the access of other devices, the memory at the spill, and the
// driver's state.
// Method: random programs from fixed seeds beside a model that has only the calls and their
// results, on a fake driver whose work finishes when the program says so. No call of the driver is
// made to fail, so that the sums are exact; program.hpp is for faults, captures and hazards.
// VMM_SCHEDULES sets how many.
#include <numeric>

#include "../support/byte_source.hpp"
#include "../support/test.h"

import vmm.fake;
import vmm.observe;
import vmm.stream;

namespace {

using vmm::access, vmm::address, vmm::address_range, vmm::errc;

constexpr std::uint64_t device_bytes = 192 * MiB;

vmm::fake::profile machine_of(std::uint64_t choice) {
  vmm::fake::profile plays = vmm::fake::profile::cuda();
  plays.device_count = 2;
  plays.device_memory_bytes = device_bytes;
  if (choice % 4 == 3) plays.can.alias = vmm::alias_level::none;
  return plays;
}

// The mapped ranges, by the listeners' notifications. A range notified as moved stays mapped.
class notified_mappings final : public vmm::remap_listener {
 public:
  void before_change(const vmm::remap_notice& notice) noexcept override {
    EXPECT_GE(notice.epoch, last_);
    last_ = notice.epoch;
    const auto found = ranges_.find(notice.range.base.value);
    const bool is_known = found != ranges_.end() && found->second == notice.range.size_bytes;
    EXPECT_TRUE(is_known) << "a change of a mapping without a notification";
    if (is_known && notice.kind != vmm::remap_kind::moved) ranges_.erase(found);
  }
  void after_change(const vmm::remap_notice& notice) noexcept override {
    EXPECT_EQ(notice.kind, vmm::remap_kind::mapped);
    const auto [place, is_new] = ranges_.emplace(notice.range.base.value, notice.range.size_bytes);
    EXPECT_TRUE(is_new) << "mapped over a mapping";
    const auto next = std::next(place);
    EXPECT_TRUE(next == ranges_.end() || notice.range.end().value <= next->first);
    if (place == ranges_.begin()) return;
    const auto before = std::prev(place);
    EXPECT_LE(before->first + before->second, place->first);
  }
  [[nodiscard]] std::uint64_t size_bytes() const {
    return std::accumulate(ranges_.begin(), ranges_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const auto& each) { return sum + each.second; });
  }
  // Whether all of it is mapped, by mappings side by side.
  [[nodiscard]] bool covers(address_range range) const {
    auto at = ranges_.upper_bound(range.base.value);
    if (at == ranges_.begin()) return false;
    --at;
    std::uint64_t end = at->first + at->second;
    for (++at; end < range.end().value && at != ranges_.end() && at->first == end; ++at)
      end += at->second;
    return end >= range.end().value;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;
  std::uint64_t last_ = 0;
};

// How often programs came to what is rare: a test of nothing else but empty pools passes, too.
using rare_events = std::map<std::string, std::uint64_t>;

class model_program {
 public:
  /// With arenas no history is recorded, since arenas are off meanwhile.
  explicit model_program(std::uint64_t seed, bool arenas = false)
      : random_(seed), driver_(machine_of(below(4))), arenas_(arenas) {
    driver_.set_manual(true);
    for (vmm::stream_handle& each : streams_) each = *driver_.create_stream();
    event_ = *driver_.create_event();
    tag_numbers_ = {0, vmm::history_tag("weights"), vmm::history_tag("activations")};
    ring_ = *vmm::history_ring::make({.event_count = 1 << 14});
    pool_ = std::make_unique<vmm::stream_pool>(driver_, chosen_options());
    EXPECT_TRUE(pool_->set_up());
    subscription_ = *pool_->remaps().subscribe(notified_);
  }

  void run(rare_events& reached) {
    constexpr int operation_count = 150;
    for (int i = 0; i < operation_count && !testing::Test::HasFailure(); ++i) {
      operation();
      check_numbers();
      if (i % 16 == 15) check_places();
    }
    check_places();
    if (!arenas_) check_history();
    const vmm::pool_statistics now = pool_->statistics();
    for (const auto& [name, count] : seen_) reached[name] += count;
    reached["spilled"] += now.spilled_bytes != 0 ? 1U : 0U;
    reached["moved"] += now.moved_count;
    reached["other stream"] += now.other_stream_count;
    reached["device wait"] += now.device_wait_count;
    reached["host wait"] += now.host_wait_count;
    if (!testing::Test::HasFailure()) end();
  }

 private:
  struct block {
    std::uint64_t size_bytes = 0;
    std::size_t stream = 0;
    std::uint16_t tag = 0;
    std::optional<std::uint64_t> written{};
    std::uint32_t pins = 0;
    bool is_freed = false;  // while pinned
  };
  using block_place = std::map<std::uint64_t, block>::iterator;

  [[nodiscard]] std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  vmm::pool_options chosen_options() {
    vmm::pool_options options;
    if (below(3) == 0) options.policy = vmm::pool_policy::vpmm();
    whole_pages_ = options.policy.tuning.whole_pages;
    if (!whole_pages_) {
      options.policy.handle_bytes_max = (below(2) + 1) * 8 * MiB;
      options.policy.tuning.growth_gap_bytes = below(2) * 64 * MiB;
      options.policy.tuning.min_move_share = below(2) == 0 ? 0 : 16;
      options.policy.tuning.growth_share = below(2) == 0 ? 0 : 4;
    }
    options.reservation_bytes = below(2) == 0 ? 256 * MiB : 1024 * MiB;
    if (below(2) == 0) options.budget_bytes = (below(3) + 2) * 32 * MiB;
    if (below(3) == 0) options.spill = vmm::host_node(0);
    options.wait_when_short = below(4) != 0;
    if (arenas_) options.stream_arenas = vmm::arena_rule::always;
    if (!arenas_) options.recorder = ring_.get();
    options.leak_hook.hook = nullptr;
    options_ = options;
    return options;
  }

  void operation() {
    const std::uint64_t choice = below(100);
    if (choice < 40) return allocate();
    if (choice < 62) return free_one();
    if (choice < 72) return use();
    if (choice < 82) return finish_some();
    if (choice < 85) return hand_over();
    if (choice < 89) return pin();
    if (choice < 92) return unpin();
    if (choice < 94) return trim();
    if (choice < 96) return set_peers();
    if (choice < 97) return forget();
    if (choice < 98) return synchronize();
    wrong_calls();
  }

  // ---- calls ----

  [[nodiscard]] std::uint64_t rounded(std::uint64_t size_bytes) const {
    const std::uint64_t unit = whole_pages_ && size_bytes >= 2 * MiB ? 2 * MiB : 512;
    return (size_bytes + unit - 1) / unit * unit;
  }

  void allocate() {
    constexpr std::array<std::uint64_t, 4> most{4096, MiB, 8 * MiB, 48 * MiB};
    const std::uint64_t size_bytes = 1 + below(most[below(most.size())]);
    const std::size_t stream = below(streams_.size());
    const std::uint16_t tag = tag_numbers_[below(tag_numbers_.size())];
    const vmm::history_label label({.tag = tag});
    const std::uint64_t alignment_bytes = std::uint64_t{1} << below(22);
    const bool is_aligned = below(2) != 0;
    const auto got = is_aligned ? pool_->allocate(size_bytes, alignment_bytes, streams_[stream])
                                : pool_->allocate(size_bytes, streams_[stream]);
    if (!got) return check_refusal(got.error(), size_bytes, stream);
    EXPECT_EQ(got->value % 512, 0u);
    EXPECT_TRUE(!is_aligned || got->value % alignment_bytes == 0) << alignment_bytes;
    const auto [place, is_new] = blocks_.emplace(got->value, block{size_bytes, stream, tag});
    ASSERT_TRUE(is_new) << "an address that is live was handed out";
    const std::uint64_t end = got->value + rounded(size_bytes);
    const auto next = std::next(place);
    EXPECT_TRUE(next == blocks_.end() || end <= next->first);
    if (place != blocks_.begin()) {
      const auto& [at, before] = *std::prev(place);
      EXPECT_LE(at + rounded(before.size_bytes), got->value);
    }
    EXPECT_TRUE(notified_.covers({*got, size_bytes})) << "a block lies outside of the notified "
                                                         "mappings";
    peak_bytes_ = std::max(peak_bytes_, live_bytes());
    ++allocated_count_;
  }

  // Memory was short, as the report says. An empty pool whose work may be waited for has it all.
  void check_refusal(const vmm::error& why, std::uint64_t size_bytes, std::size_t stream) {
    const bool is_short = why.code == errc::out_of_memory || why.code == errc::over_budget;
    EXPECT_TRUE(is_short) << vmm::describe(why);
    ++seen_["refused"];
    const vmm::shortage_report report = pool_->last_shortage();
    EXPECT_EQ(report.failure, why.code);
    EXPECT_EQ(report.request_bytes, rounded(size_bytes));
    EXPECT_EQ(report.stream, streams_[stream]);
    EXPECT_EQ(report.live_bytes, live_bytes());
    EXPECT_EQ(report.budget_bytes, options_.budget_bytes);
    EXPECT_EQ(report.held_bytes, device_used() + host_used());
    if (why.code == errc::over_budget) EXPECT_NE(options_.budget_bytes, 0u);
    const bool is_empty = blocks_.empty() && options_.wait_when_short;
    EXPECT_FALSE(is_empty && size_bytes <= 48 * MiB) << "all memory is free, and none was found";
  }

  [[nodiscard]] block_place some_block() {
    return std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(below(blocks_.size())));
  }

  void free_one() {
    if (blocks_.empty()) return;
    const block_place victim = some_block();
    const address at{victim->first};
    block& gone = victim->second;
    const vmm::stream_handle stream = streams_[gone.stream];
    if (gone.is_freed) {
      EXPECT_EQ(pool_->free(at, stream).error().code, errc::not_allocated);
      return;
    }
    switch (below(4)) {
      case 0: EXPECT_TRUE(pool_->free(at, stream)); break;
      case 1: EXPECT_TRUE(pool_->free(at)); break;
      case 2: pool_->deallocate(at, gone.size_bytes, 256, stream); break;
      default: pool_->deallocate(at, gone.size_bytes, 256); break;
    }
    gone.is_freed = true;
    if (gone.pins != 0) ++seen_["freed pinned"];
    if (gone.pins == 0) drop(victim);
  }
  void drop(block_place gone) {
    blocks_.erase(gone);
    ++freed_count_;
  }

  void pin() {
    if (blocks_.empty()) return;
    const block_place kept = some_block();
    const vmm::status pinned = pool_->pin(address{kept->first});
    EXPECT_EQ(pinned.has_value(), !kept->second.is_freed);
    if (pinned) ++kept->second.pins;
  }
  void unpin() {
    if (!blocks_.empty()) unpin(some_block());
  }
  void unpin(block_place kept) {
    const vmm::status unpinned = pool_->unpin(address{kept->first});
    EXPECT_EQ(unpinned.has_value(), kept->second.pins != 0);
    if (unpinned && --kept->second.pins == 0 && kept->second.is_freed) drop(kept);
  }

  // Bytes released are bytes that the driver has again.
  void trim() {
    const std::uint64_t before = device_used() + host_used();
    const vmm::trim_report report = pool_->trim(below(3) * 16 * MiB);
    EXPECT_EQ(report.failure.code, errc::none);
    EXPECT_EQ(before - (device_used() + host_used()), report.released_bytes);
    EXPECT_EQ(report.released_count == 0, report.released_bytes == 0);
    if (report.released_bytes != 0) ++seen_["trimmed"];
  }

  void set_peers() {
    constexpr std::array all{access::none, access::read, access::read_write};
    const access rights = all[below(all.size())];
    const vmm::access_grant grant{vmm::device(1), rights};
    ASSERT_TRUE(pool_->set_peers({&grant, 1}));
    peer_rights_ = rights;
  }

  // The stream that takes its place is ordered behind it.
  void forget() {
    const std::size_t which = below(streams_.size());
    ASSERT_TRUE(pool_->forget(streams_[which]));
    const vmm::stream_handle fresh = *driver_.create_stream();
    ASSERT_TRUE(driver_.record_event(event_, streams_[which]));
    ASSERT_TRUE(driver_.wait_event(fresh, event_));
    ASSERT_TRUE(driver_.destroy_stream(streams_[which]));
    streams_[which] = fresh;
  }

  void synchronize() {
    ASSERT_TRUE(pool_->synchronize());
    EXPECT_LE(pool_->statistics().pending_bytes, pool_->statistics().reusable_bytes);
  }

  void wrong_calls() {
    const vmm::stream_handle stream = streams_[0];
    EXPECT_EQ(pool_->allocate(0, stream).error().code, errc::invalid_argument);
    EXPECT_EQ(pool_->allocate(512, 3, stream).error().code, errc::invalid_argument);
    EXPECT_EQ(pool_->allocate(512, 4 * MiB, stream).error().code, errc::not_supported);
    EXPECT_EQ(pool_->free(address{}, stream).error().code, errc::unknown_address);
    EXPECT_EQ(pool_->pin(address{512}).error().code, errc::unknown_address);
    if (blocks_.empty()) return;
    const auto& [at, inside] = *some_block();
    if (inside.size_bytes <= 512) return;
    const errc expected = inside.is_freed ? errc::not_allocated : errc::invalid_argument;
    EXPECT_EQ(pool_->free(address{at} + 512, stream).error().code, expected);
    EXPECT_EQ(pool_->unpin(address{at} + 1).error().code, expected);
  }

  // ---- work ----

  void use() {
    if (!blocks_.empty()) use(*some_block());
  }
  void use(std::pair<const std::uint64_t, block>& what) {
    auto& [at, used] = what;
    // Freed memory may be used by the pin's owner, behind the stream on which it was freed.
    const address_range range{{at}, std::max<std::uint64_t>(used.size_bytes / 8 * 8, 8)};
    vmm::fake::kernel work{.duration_us = 5, .writes = {&range, 1}};
    if (used.written) work.reads = work.writes;
    work.expected = used.written;
    work.tag = ++last_written_;
    ASSERT_TRUE(driver_.launch(streams_[used.stream], work));
    used.written = last_written_;
  }
  void finish_some() {
    for (std::uint64_t left = below(8); left > 0 && driver_.ready_count() != 0; --left)
      ASSERT_TRUE(driver_.finish_ready(below(driver_.ready_count())));
  }
  void hand_over() {
    if (blocks_.empty()) return;
    block& moved = some_block()->second;
    if (moved.is_freed) return;
    const std::size_t next = below(streams_.size());
    ASSERT_TRUE(driver_.record_event(event_, streams_[moved.stream]));
    ASSERT_TRUE(driver_.wait_event(streams_[next], event_));
    moved.stream = next;
  }

  // ---- what must be so ----

  [[nodiscard]] std::uint64_t live_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [at, each] : blocks_) sum += rounded(each.size_bytes);
    return sum;
  }
  [[nodiscard]] std::uint64_t used_at(vmm::location where) {
    const vmm::memory_info now = *driver_.query_memory(where);
    return now.total_bytes - now.free_bytes;
  }
  [[nodiscard]] std::uint64_t device_used() { return used_at(vmm::device(0)); }
  [[nodiscard]] std::uint64_t host_used() { return used_at(vmm::host_node(0)); }

  void check_numbers() {
    const vmm::pool_statistics now = pool_->statistics();
    EXPECT_EQ(now.live_count, blocks_.size());
    EXPECT_EQ(now.live_bytes, live_bytes());
    EXPECT_LE(now.peak_live_bytes, peak_bytes_);  // of the arenas' blocks, as far as it was seen
    EXPECT_GE(now.peak_live_bytes, arenas_ ? now.live_bytes : peak_bytes_);
    const auto pinned =
        std::ranges::count_if(blocks_, [](const auto& each) { return each.second.pins != 0; });
    EXPECT_EQ(now.pinned_count, static_cast<std::uint64_t>(pinned));
    EXPECT_EQ(now.captured_bytes, 0u);
    EXPECT_EQ(now.mapped_bytes, now.live_bytes + now.reusable_bytes);
    EXPECT_EQ(now.reserved_bytes, now.mapped_bytes + now.stale_bytes + now.hole_bytes);
    EXPECT_EQ(notified_.size_bytes(), now.mapped_bytes + now.stale_bytes);
    EXPECT_LE(now.pending_bytes, now.reusable_bytes);
    if (now.pending_bytes != 0) ++seen_["unordered"];
    EXPECT_LE(now.stream_count, streams_.size() + 1);
    const std::uint64_t held = device_used() + host_used();
    EXPECT_GE(held, now.mapped_bytes) << "what is not mapped is cached";
    if (options_.budget_bytes != 0) EXPECT_LE(held, options_.budget_bytes);
    EXPECT_EQ(pool_->statistics().spilled_bytes, host_used());
    if (!options_.spill) EXPECT_EQ(host_used(), 0u);
  }

  void check_places() {
    const vmm::status valid = pool_->validate();
    ASSERT_TRUE(valid) << valid.error().detail;
    const auto regions = *pool_->regions();
    std::map<vmm::pool_region_kind, std::uint64_t> sums;
    std::map<std::uint64_t, std::uint64_t> live;
    for (const vmm::pool_region& each : regions) {
      sums[each.kind] += each.range.size_bytes;
      if (each.kind == vmm::pool_region_kind::live)
        live.emplace(each.range.base.value, each.range.size_bytes);
    }
    const vmm::pool_statistics now = pool_->statistics();
    EXPECT_EQ(sums[vmm::pool_region_kind::live], now.live_bytes);
    EXPECT_EQ(sums[vmm::pool_region_kind::free], now.reusable_bytes);
    EXPECT_EQ(sums[vmm::pool_region_kind::hole], now.hole_bytes);
    EXPECT_EQ(sums[vmm::pool_region_kind::stale], now.stale_bytes);
    EXPECT_EQ(sums[vmm::pool_region_kind::busy], 0u);
    std::map<std::uint64_t, std::uint64_t> wanted;
    for (const auto& [at, each] : blocks_) wanted.emplace(at, rounded(each.size_bytes));
    EXPECT_EQ(live, wanted);
    for (const auto& [at, each] : blocks_) check_block({at}, each);
  }

  // Its mappings cover it, side by side, and device 1 has the rights that were given last.
  void check_block(address at, const block& of) {
    const auto parts = pool_->segments({at, of.size_bytes});
    ASSERT_TRUE(parts && !parts->empty());
    EXPECT_LE(parts->front().range.base, at);
    EXPECT_GE(parts->back().range.end(), at + of.size_bytes);
    for (std::size_t i = 1; i < parts->size(); ++i)
      EXPECT_EQ((*parts)[i].range.base, (*parts)[i - 1].range.end());
    EXPECT_TRUE(notified_.covers({at, of.size_bytes}));
    EXPECT_EQ(*driver_.get_access(at, vmm::device(1)), peer_rights_);
    EXPECT_EQ(*driver_.get_access(at, vmm::device(0)), access::read_write);
  }

  // The events, replayed, leave the live blocks, each with the tag of its allocation.
  void check_history() {
    const auto taken = *pool_->history().take();
    ASSERT_EQ(taken.lost_count, 0u);
    std::map<std::uint64_t, std::uint16_t> live;
    std::uint64_t allocated = 0;
    std::uint64_t freed = 0;
    for (const vmm::history_event& each : taken.events) {
      if (each.kind == vmm::history_kind::allocated) {
        ++allocated;
        EXPECT_TRUE(live.emplace(each.at.value, each.tag).second);
      }
      if (each.kind == vmm::history_kind::freed) {
        ++freed;
        EXPECT_EQ(live.erase(each.at.value), 1u);
      }
    }
    EXPECT_EQ(allocated, allocated_count_);
    EXPECT_EQ(freed, freed_count_);
    std::map<std::uint64_t, std::uint16_t> wanted;
    for (const auto& [at, each] : blocks_) wanted.emplace(at, each.tag);
    EXPECT_EQ(live, wanted);
  }

  // When everything was freed and has finished, trim gives all of it back.
  void end() {
    while (!blocks_.empty() && !testing::Test::HasFailure()) {
      const block_place first = blocks_.begin();
      if (first->second.pins != 0) {
        unpin(first);
      } else {
        EXPECT_TRUE(pool_->free(address{first->first}, streams_[first->second.stream]));
        drop(first);
      }
    }
    check_numbers();
    ASSERT_TRUE(driver_.finish_all());
    ASSERT_TRUE(pool_->synchronize());
    EXPECT_EQ(pool_->trim(0).failure.code, errc::none);
    EXPECT_EQ(pool_->statistics().mapped_bytes, 0u);
    EXPECT_EQ(device_used() + host_used(), 0u);
    EXPECT_TRUE(pool_->remaps().unsubscribe(subscription_));
    pool_.reset();
    for (const vmm::stream_handle each : streams_) EXPECT_TRUE(driver_.destroy_stream(each));
    EXPECT_TRUE(driver_.destroy_event(event_));
    EXPECT_TRUE(driver_.check_empty()) << driver_.report();
    for (const auto& misuse : driver_.misuses()) ADD_FAILURE() << misuse.detail;
  }

  std::mt19937_64 random_;
  vmm::fake_driver driver_;
  const bool arenas_;
  std::array<vmm::stream_handle, 4> streams_{};
  vmm::event_handle event_{};
  std::array<std::uint16_t, 3> tag_numbers_{};
  std::unique_ptr<vmm::history_ring> ring_;
  vmm::pool_options options_{};
  bool whole_pages_ = false;
  notified_mappings notified_;
  std::unique_ptr<vmm::stream_pool> pool_;
  vmm::remap_subscription subscription_{};
  std::map<std::uint64_t, block> blocks_;
  access peer_rights_ = access::none;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t last_written_ = 0;
  std::uint64_t allocated_count_ = 0;
  std::uint64_t freed_count_ = 0;
  rare_events seen_;
};

TEST(Model, SaysWhatItWasAskedFor) {
  const std::uint64_t count = wish("VMM_SCHEDULES", 60);
  rare_events reached;
  for (std::uint64_t seed = 1; seed <= count && !HasFailure(); ++seed) {
    SCOPED_TRACE("program " + std::to_string(seed));
    model_program(seed).run(reached);
  }
  if (count < 60) return;
  for (const char* const each : {"refused", "spilled", "trimmed", "moved", "other stream",
                                 "device wait", "host wait", "unordered", "freed pinned"})
    EXPECT_NE(reached[each], 0u) << each;
}

// The same programs with an arena for each stream.
TEST(Model, SaysTheSameWithArenas) {
  rare_events reached;
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE("program " + std::to_string(seed));
    model_program(seed, true).run(reached);
  }
  for (const char* const each :
       {"moved", "other stream", "device wait", "unordered", "freed pinned"})
    EXPECT_NE(reached[each], 0u) << each;
}

}  // namespace
