// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a graph and other work never share memory unordered, whatever the order of calls. Method:
// random work, eager and captured, on four streams of the fake driver; kernels read again the tags
// that were written, and the driver lists misuses.
#include "../support/byte_source.hpp"
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::address_range, vmm::capture_mode, vmm::capture_rule, vmm::stream_handle;
using graph = vmm::fake::graph_handle;

// Random work, eager and captured, with graphs played at any time. A kernel that writes a block
// reads it back later; what was captured does so too each time it is played.
class RandomCaptures {
 public:
  explicit RandomCaptures(std::uint64_t seed) : random_(seed) {
    for (stream_handle& stream : streams_) stream = *driver_.create_stream();
    vmm::pool_options options = rules(seed);
    if (seed % 2 == 0) options.stream_arenas = vmm::arena_rule::always;
    options.captures_announced = seed % 4 < 2;
    pool_ = std::make_unique<vmm::stream_pool>(driver_, options);
  }
  void run() {
    for (int step = 0; step < 400; ++step) {
      const std::uint64_t choice = random_() % 100;
      if (choice < 40) {
        allocate();
      } else if (choice < 65) {
        free_one();
      } else if (choice < 80) {
        use();
      } else if (choice < 86) {
        toggle_capture();
      } else if (choice < 94) {
        play();
      } else if (choice < 96) {
        release();
      } else if (choice < 98) {
        (void)pool_->trim(random_() % (32 * MiB));
      } else {
        ASSERT_TRUE(driver_.advance_us(static_cast<double>(random_() % 200)));
      }
      ASSERT_EQ(driver_.misuse_count(), 0u) << driver_.misuses().front().detail;
      if (step % 16 == 0) ASSERT_TRUE(pool_->validate());
    }
    finish();
  }

 private:
  struct block {
    address at{};
    std::uint64_t size_bytes = 0;
    std::size_t stream = 0;
    bool captured = false;  // allocated in the capture under way
  };
  struct played {
    graph what{};
    std::uint64_t number = 0;
  };

  [[nodiscard]] static vmm::pool_options rules(std::uint64_t seed) {
    vmm::pool_options options;
    options.capture = capture_rule::private_memory;
    options.policy.handle_bytes_max = (seed % 3 + 1) * 2 * MiB;
    options.policy.headroom = seed % 2 == 0 ? 0 : 1.02;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.min_move_share = 0;
    if (seed % 5 == 0) options.policy = vmm::pool_policy::vpmm();
    return options;
  }
  [[nodiscard]] std::size_t any_stream() { return random_() % streams_.size(); }
  [[nodiscard]] bool capturing(std::size_t stream) const { return stream == 0 && is_capturing_; }

  void allocate() {
    const std::size_t stream = any_stream();
    const std::uint64_t size = (1 + random_() % 2000) * 4096;
    const auto at = pool_->allocate(size, streams_[stream]);
    ASSERT_TRUE(at) << vmm::describe(at.error());
    blocks_.push_back({*at, size, stream, capturing(stream)});
  }
  void free_one() {
    if (blocks_.empty()) return;
    const std::size_t index = random_() % blocks_.size();
    const block gone = blocks_[index];
    // A block of the capture under way is freed in it, any other on its stream, captured or not.
    ASSERT_TRUE(pool_->free(gone.at, streams_[gone.stream]));
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  // Writes and reads back, on the block's stream. In a capture only its own blocks are used: what
  // is outside would be shared with eager work that the graph is not ordered with.
  void use() {
    if (blocks_.empty()) return;
    const block& used = blocks_[random_() % blocks_.size()];
    if (capturing(used.stream) != used.captured) return;
    const address_range range{used.at, used.size_bytes / 8 * 8};
    const std::uint64_t tag = ++last_tag_;
    const stream_handle stream = streams_[used.stream];
    ASSERT_TRUE(driver_.launch(stream, {.duration_us = 20, .writes = {&range, 1}, .tag = tag}));
    ASSERT_TRUE(driver_.launch(stream, {.duration_us = 5, .reads = {&range, 1}, .expected = tag}));
  }
  void toggle_capture() {
    if (!is_capturing_) {
      const auto mode = static_cast<capture_mode>(random_() % 3);
      ASSERT_TRUE(pool_->captures().begin());
      ASSERT_TRUE(driver_.begin_capture(streams_[0], mode));
      is_capturing_ = true;
      return;
    }
    const std::uint64_t number = pool_->captures().number(streams_[0]).value_or(0);
    ASSERT_NE(number, 0u) << "the capture was spoiled";
    const auto made = driver_.end_capture(streams_[0]);
    ASSERT_TRUE(made) << vmm::describe(made.error());
    ASSERT_TRUE(pool_->captures().end());
    is_capturing_ = false;
    graphs_.push_back({*made, number});
    // The graph's live blocks stay with it: only the program uses and frees them.
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      if (!blocks_[i].captured) continue;
      ASSERT_TRUE(pool_->free(blocks_[i].at, streams_[any_stream_outside()]));
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  [[nodiscard]] std::size_t any_stream_outside() { return 1 + random_() % (streams_.size() - 1); }
  // One after the other, on one stream: graphs share no memory, but each with itself.
  void play() {
    if (graphs_.empty()) return;
    ASSERT_TRUE(driver_.launch_graph(graphs_[random_() % graphs_.size()].what, streams_[1]));
  }
  void release() {
    if (graphs_.empty()) return;
    const std::size_t index = random_() % graphs_.size();
    ASSERT_TRUE(pool_->captures().release(graphs_[index].number, streams_[1]));
    ASSERT_TRUE(driver_.destroy_graph(graphs_[index].what));
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void finish() {
    if (is_capturing_) toggle_capture();
    while (!graphs_.empty()) release();
    EXPECT_EQ(pool_->statistics().captured_bytes, 0u);
    while (!blocks_.empty()) free_one();
    EXPECT_EQ(pool_->statistics().live_count, 0u);
    EXPECT_TRUE(pool_->validate());
    pool_.reset();
    ASSERT_TRUE(driver_.finish_all());
    for (const stream_handle stream : streams_) ASSERT_TRUE(driver_.destroy_stream(stream));
    EXPECT_TRUE(driver_.check_empty()) << driver_.report();
    EXPECT_EQ(driver_.misuse_count(), 0u);
  }

  std::mt19937_64 random_;
  vmm::fake_driver driver_;
  std::array<stream_handle, 4> streams_{};
  std::unique_ptr<vmm::stream_pool> pool_;
  std::vector<block> blocks_;
  std::vector<played> graphs_;
  bool is_capturing_ = false;
  std::uint64_t last_tag_ = 0;
};

TEST(CapturesAtRandom, ShareNoMemoryWithOtherWork) {
  const std::uint64_t count = wish("VMM_SCHEDULES", 200);
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE(seed);
    RandomCaptures(seed).run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
