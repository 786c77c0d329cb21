// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: under each policy of contents no block ever shows a byte of another one, whichever way the
// memory came to it: reuse, growth in place and a block cut off, memory given back and made anew,
// memory of the host when the device is full, blocks freed after everything or on other streams,
// and ranges that grow.
// Method: 1,000 reuses for each allocator and policy on the fake driver, whose memory keeps what
// was written, in an order drawn from a seed. Each block is read from end to end when it comes,
// and soiled by work that is still waiting when it goes; how often each way was taken is counted.
#include "../support/test.h"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.stream;

namespace {

using vmm::address, vmm::address_range, vmm::contents_rule;

constexpr int reuse_count = 1000;

struct block {
  address_range range;
  vmm::stream_handle stream;
};

// A small device with a host behind it, three streams, and the live blocks.
class world {
 public:
  explicit world(contents_rule rule)
      : rule_(rule), driver_([] {
          vmm::fake::profile small = vmm::fake::profile::cuda();
          small.device_memory_bytes = 48 * MiB;
          return small;
        }()) {
    for (vmm::stream_handle& each : streams_) each = *driver_.create_stream();
  }

  [[nodiscard]] std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  [[nodiscard]] vmm::stream_handle any_stream() { return streams_[draw(streams_.size())]; }
  // From a few bytes to some granules.
  [[nodiscard]] std::uint64_t any_size() {
    return draw(4) == 0 ? 1 + draw(6 * MiB) : 1 + draw(256 << 10);
  }
  void took(const char* way) { ++ways_[way]; }
  [[nodiscard]] int times(const std::string& way) const {
    const auto found = ways_.find(way);
    return found == ways_.end() ? 0 : found->second;
  }

  /// Reads every byte of memory that just came, and what the policy promises of it.
  void look(address_range range) {
    compare(range, rule_ == contents_rule::poison ? vmm::poison_byte : 0);
  }
  /// The same where zeros are promised, whatever the policy.
  void look_for_zeros(address_range range) { compare(range, 0); }
  /// Another stream, whose next work comes behind that of the first.
  [[nodiscard]] vmm::stream_handle behind(vmm::stream_handle first) {
    const vmm::stream_handle last = any_stream();
    const vmm::event_handle done = *driver_.create_event();
    EXPECT_TRUE(driver_.record_event(done, first) && driver_.wait_event(last, done));
    EXPECT_TRUE(driver_.destroy_event(done));
    took("freed on another stream");
    return last;
  }
  /// Takes any of the blocks out of the list.
  [[nodiscard]] block take_any(std::vector<block>& from) {
    const auto taken = from.begin() + static_cast<std::ptrdiff_t>(draw(from.size()));
    const block out = *taken;
    from.erase(taken);
    return out;
  }
  /// Work that writes all of it, and has not run yet.
  void soil(address_range range, vmm::stream_handle stream) {
    const auto value = static_cast<std::uint8_t>(1 + draw(0xDA));
    ASSERT_TRUE(driver_.fill({range, value, stream}));
  }

  contents_rule rule_;
  vmm::fake_driver driver_;
  std::uint64_t old_count_ = 0;

 private:
  void compare(address_range range, std::uint8_t promised) {
    ASSERT_TRUE(driver_.finish_all());
    seen_.resize(range.size_bytes);
    ASSERT_TRUE(driver_.read(seen_, range.base));
    promised_.assign(range.size_bytes, std::byte{promised});
    old_count_ += std::memcmp(seen_.data(), promised_.data(), seen_.size()) == 0 ? 0 : 1;
  }

  std::mt19937_64 random_{20'261'123};
  std::array<vmm::stream_handle, 3> streams_{};
  std::map<std::string, int> ways_;
  std::vector<std::byte> seen_;
  std::vector<std::byte> promised_;
};

[[nodiscard]] bool clears_on_release(contents_rule rule) {
  return rule == contents_rule::zero_on_release || rule == contents_rule::poison;
}

// ---- a manager -------------------------------------------------------------------------

class managed_world : public world {
 public:
  managed_world(contents_rule rule, const vmm::manager_policy& policy)
      : world(rule),
        managed_(driver_, {{.wait_when_short = true, .spill = vmm::host_node(0), .contents = rule},
                           policy}) {}

  void play() {
    for (int reuse = 0; reuse < reuse_count; ++reuse) {
      allocate();
      if (blocks_.size() > 3) let_one_go();
      if (reuse % 3 == 0) resize();
      if (reuse % 7 == 0) grow_range();
      if (reuse % 53 == 0) trim();
      if (reuse % 101 == 0) fill_the_device();
    }
    while (!blocks_.empty()) let_one_go();
    range_.reset();
  }

 private:
  void add(address at, std::uint64_t size_bytes, vmm::stream_handle stream) {
    blocks_.push_back({{at, size_bytes}, stream});
    look(blocks_.back().range);
    soil(blocks_.back().range, stream);
  }
  void allocate() {
    const std::uint64_t size_bytes = any_size();
    const vmm::stream_handle stream = any_stream();
    const auto at = managed_.allocate(
        {.size_bytes = size_bytes, .growth_bytes = draw(2) * 8 * MiB, .stream = stream});
    ASSERT_TRUE(at) << vmm::describe(at.error());
    add(*at, size_bytes, stream);
  }
  void let_one_go() {
    const block gone = take_any(blocks_);
    const std::uint64_t way = draw(3);
    if (way == 0) {
      ASSERT_TRUE(managed_.free(gone.range.base));
    } else if (way == 1) {
      ASSERT_TRUE(managed_.free(gone.range.base, behind(gone.stream)));
    } else {
      ASSERT_TRUE(driver_.finish_all());
      ASSERT_TRUE(managed_.free_idle(gone.range.base));
      took("freed idle");
    }
  }
  // What a block grows by is new to it; what it is cut by serves others.
  void resize() {
    block& one = blocks_[draw(blocks_.size())];
    const std::uint64_t before = one.range.size_bytes;
    const std::uint64_t after = any_size();
    const std::uint64_t mapped = managed_.find(one.range.base)->sizes.mapped_bytes;
    const auto at = managed_.resize({one.range.base, after});
    if (!at) return took("could not be resized");
    took(after > mapped ? "grown" : "cut");
    one.range = {*at, after};
    // Bytes of the block's own, in the granule that it had, are not old ones of another.
    if (after > mapped && rule_ != contents_rule::none) look({*at + mapped, after - mapped});
    if (after > before) soil(one.range, one.stream);
  }
  void grow_range() {
    const vmm::stream_handle stream = any_stream();
    if (!range_) {
      keeps_zeros_ = !keeps_zeros_;
      range_.emplace(managed_, vmm::growable_options{.segment_bytes_max = 16 * MiB,
                                                     .segment_count = 2,
                                                     .zero_new = keeps_zeros_});
      size_ = 0;
    }
    const std::uint64_t after = draw(4) == 0 ? 0 : 1 + draw(12 * MiB);
    ASSERT_TRUE(driver_.finish_all());
    const auto done = range_->resize({.size_bytes = after, .stream = stream});
    if (!done) return took("range could not grow");
    for (std::uint64_t index = 0; after > size_ && index < 2; ++index) {
      const address_range added{
          range_->statistics().base + index * range_->statistics().stride_bytes + size_,
          after - size_};
      if (keeps_zeros_)
        look_for_zeros(added);
      else
        look(added);
      soil(added, stream);
      took("range grown");
    }
    if (after < size_) took("range cut");
    size_ = after;
    if (draw(5) != 0) return;
    ASSERT_TRUE(range_->close(stream));
    range_.reset();
    took("range closed");
  }
  void trim() {
    ASSERT_TRUE(driver_.finish_all());
    (void)managed_.trim(0);
    took("trimmed");
  }
  // Until the host lends memory, and back.
  void fill_the_device() {
    std::vector<address> more;
    while (managed_.statistics().spilled_bytes == 0 && more.size() < 20) {
      const auto at = managed_.allocate(8 * MiB);
      if (!at) break;
      look({*at, 8 * MiB});
      soil({*at, 8 * MiB}, {});
      more.push_back(*at);
    }
    if (managed_.statistics().spilled_bytes != 0) took("spilled");
    for (const address at : more) ASSERT_TRUE(managed_.free(at));
  }

  vmm::manager managed_;
  std::vector<block> blocks_;
  std::optional<vmm::growable_range> range_;
  std::uint64_t size_ = 0;
  bool keeps_zeros_ = false;
};

// ---- a pool ----------------------------------------------------------------------------

class pooled_world : public world {
 public:
  pooled_world(contents_rule rule, const vmm::pool_policy& policy)
      : world(rule),
        pool_(driver_,
              {{.wait_when_short = true, .spill = vmm::host_node(0), .contents = rule}, policy}) {}

  void play() {
    for (int reuse = 0; reuse < reuse_count; ++reuse) {
      allocate(any_size());
      if (blocks_.size() > 6) let_one_go();
      if (reuse % 53 == 0) trim();
      if (reuse % 101 == 0) fill_the_device();
    }
    while (!blocks_.empty()) let_one_go();
  }

 private:
  void allocate(std::uint64_t size_bytes) {
    const vmm::stream_handle stream = any_stream();
    const auto at = pool_.allocate(size_bytes, stream);
    ASSERT_TRUE(at) << vmm::describe(at.error());
    blocks_.push_back({{*at, size_bytes}, stream});
    look(blocks_.back().range);
    soil(blocks_.back().range, stream);
  }
  void let_one_go() {
    const block gone = take_any(blocks_);
    const std::uint64_t way = draw(3);
    if (way == 0 && !clears_on_release(rule_)) {
      ASSERT_TRUE(pool_.free(gone.range.base));
      return took("freed after everything");
    }
    const vmm::stream_handle last = way == 1 ? behind(gone.stream) : gone.stream;
    ASSERT_TRUE(pool_.free(gone.range.base, last));
  }
  void trim() {
    ASSERT_TRUE(driver_.finish_all());
    (void)pool_.trim(0);
    took("trimmed");
  }
  // Large blocks between small ones: free memory is moved to where it is wanted.
  void fill_the_device() {
    std::vector<block> more;
    for (int count = 1; pool_.statistics().spilled_bytes == 0 && count < 40; ++count) {
      const std::uint64_t size_bytes = (1 + draw(4)) * 3 * MiB;
      const vmm::stream_handle stream = any_stream();
      const auto at = pool_.allocate(size_bytes, stream);
      if (!at) break;
      look({*at, size_bytes});
      soil({*at, size_bytes}, stream);
      more.push_back({{*at, size_bytes}, stream});
      if (count % 3 != 0) continue;
      ASSERT_TRUE(pool_.free(more.front().range.base, more.front().stream));
      more.erase(more.begin());
    }
    if (pool_.statistics().spilled_bytes != 0) took("spilled");
    for (const block& each : more) ASSERT_TRUE(pool_.free(each.range.base, each.stream));
    if (pool_.statistics().moved_bytes != 0) took("moved");
  }

  vmm::stream_pool pool_;
  std::vector<block> blocks_;
};

constexpr std::array all_rules{contents_rule::zero_on_acquire, contents_rule::zero_on_release,
                               contents_rule::poison};

TEST(OldBytes, AreNeverSeenInAManager) {
  vmm::manager_policy caching = vmm::manager_policy::virtual_caching();
  caching.chunk_bytes = 4 * MiB;  // the device is small
  for (const contents_rule rule : all_rules) {
    for (const vmm::manager_policy& policy :
         {vmm::manager_policy::va_pool(), vmm::manager_policy::keep_mapped(), caching}) {
      SCOPED_TRACE(std::string(policy.name) + ", rule " + std::to_string(static_cast<int>(rule)));
      managed_world one(rule, policy);
      ASSERT_NO_FATAL_FAILURE(one.play());
      EXPECT_EQ(one.old_count_, 0u);
      for (const char* const way :
           {"freed on another stream", "freed idle", "grown", "cut", "range grown", "range cut",
            "range closed", "trimmed", "spilled"})
        EXPECT_GT(one.times(way), 0) << way;
      EXPECT_EQ(one.driver_.misuse_count(), 0u) << one.driver_.report();
    }
  }
}

TEST(OldBytes, AreNeverSeenInAPool) {
  int moved_count = 0;
  for (const contents_rule rule : all_rules) {
    for (const vmm::pool_policy& policy :
         {vmm::pool_policy::near_live(), vmm::pool_policy::vpmm()}) {
      SCOPED_TRACE(std::string(policy.name) + ", rule " + std::to_string(static_cast<int>(rule)));
      pooled_world one(rule, policy);
      ASSERT_NO_FATAL_FAILURE(one.play());
      EXPECT_EQ(one.old_count_, 0u);
      EXPECT_EQ(one.times("freed after everything") == 0, clears_on_release(rule));
      moved_count += one.times("moved");
      for (const char* const way : {"freed on another stream", "trimmed", "spilled"})
        EXPECT_GT(one.times(way), 0) << way;
      EXPECT_EQ(one.driver_.misuse_count(), 0u) << one.driver_.report();
    }
  }
  EXPECT_GT(moved_count, 0);
}

// Or the two tests above could not fail.
TEST(OldBytes, AreSeenWhereNothingIsPromised) {
  managed_world managed(contents_rule::none, vmm::manager_policy::va_pool());
  ASSERT_NO_FATAL_FAILURE(managed.play());
  EXPECT_GT(managed.old_count_, 100u);
  pooled_world pooled(contents_rule::none, vmm::pool_policy::near_live());
  ASSERT_NO_FATAL_FAILURE(pooled.play());
  EXPECT_GT(pooled.old_count_, 100u);
}

}  // namespace
