// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the models of PyTorch's two policies hold, split, reuse and release what PyTorch does.
// Method: requests whose outcome was worked out by hand from the published rules; a published run
// of expandable segments; the peaks that sixteen recorded programs had on an H100; and random
// requests, after which the model's own invariants are checked.
#include "../support/test.h"

import vmm.fit;
import vmm.replay;
import vmm.trace;

namespace {

using vmm::tools::block_number, vmm::tools::caching_device, vmm::tools::caching_model,
    vmm::tools::caching_options, vmm::tools::segment_action;

constexpr caching_options native{};
constexpr caching_options expandable{.expandable_segments = true};

block_number take(caching_model& from, std::uint64_t size_bytes, std::uint16_t stream = 0,
                  std::uint16_t pool = 0) {
  const block_number got = from.allocate({size_bytes, stream, pool});
  EXPECT_EQ(from.validate(), "");
  return got;
}

// The memory held after these requests, in MiB.
std::uint64_t held(const caching_options& options, const std::vector<std::uint64_t>& sizes) {
  caching_model model(options);
  for (const std::uint64_t each : sizes) (void)take(model, each);
  EXPECT_EQ(model.held_bytes() % MiB, 0U);
  return model.held_bytes() / MiB;
}

std::uint64_t block_bytes(const caching_options& options, std::uint64_t size_bytes) {
  caching_model model(options);
  return model.size_bytes(take(model, size_bytes));
}

TEST(Caching, SegmentsHaveTheSizesOfTheTable) {
  struct row {
    std::vector<std::uint64_t> sizes;
    std::uint64_t native_mib;
    std::uint64_t expandable_mib;
  };
  const std::vector<row> rows = {{{1}, 2, 2},
                                 {{MiB}, 2, 2},
                                 {{MiB + 1}, 20, 20},
                                 {{10 * MiB - 512}, 20, 20},
                                 {{10 * MiB}, 10, 20},
                                 {{10 * MiB + 512}, 12, 20},
                                 {{11 * MiB + MiB / 2}, 12, 20},
                                 {{9 * MiB, 9 * MiB}, 20, 20},
                                 {{2 * MiB, 30 * MiB}, 50, 40},
                                 {{30 * MiB, 2 * MiB}, 50, 40}};
  for (const row& each : rows) {
    EXPECT_EQ(held(native, each.sizes), each.native_mib) << each.sizes.front();
    EXPECT_EQ(held(expandable, each.sizes), each.expandable_mib) << each.sizes.front();
  }
}

TEST(Caching, ABlockIsSplitWhereEnoughIsLeft) {
  EXPECT_EQ(block_bytes(native, 10 * MiB + 512), 10 * MiB + 512);
  EXPECT_EQ(block_bytes(native, 11 * MiB + MiB / 2), 12 * MiB);
  EXPECT_EQ(block_bytes(expandable, 11 * MiB + MiB / 2), 11 * MiB + MiB / 2);
  EXPECT_EQ(block_bytes(native, 2 * MiB), 2 * MiB);
  for (const caching_options& options : {native, expandable}) {
    caching_model model(options);
    model.free(take(model, 5 * MiB));
    const block_number got = take(model, 19 * MiB);
    EXPECT_EQ(model.held_bytes(), 20 * MiB);
    EXPECT_EQ(model.size_bytes(got), options.expandable_segments ? 19 * MiB : 20 * MiB);
  }
}

TEST(Caching, DivisionsOfAPowerOfTwoRoundLargeRequests) {
  caching_options options;
  options.roundup_divisions.fill(4);
  EXPECT_EQ(block_bytes(options, 5000), 5120U);
  EXPECT_EQ(block_bytes(options, 1200), 1536U);
  EXPECT_EQ(block_bytes(options, 33 * MiB), 40 * MiB);
  EXPECT_EQ(block_bytes(options, 32 * MiB), 32 * MiB);
  options.roundup_divisions[0] = 0;
  EXPECT_EQ(block_bytes(options, 5000), 5120U);  // 512 anyhow
  EXPECT_EQ(block_bytes(options, 4608), 4608U);
  options.expandable_segments = true;
  options.roundup_divisions.fill(4);
  EXPECT_EQ(block_bytes(options, 5000), 5120U);
}

TEST(Caching, AnOversizeBlockServesWhatIsNearlyAsLarge) {
  const caching_options options{.max_split_bytes = 128 * MiB};
  for (const auto& [asked_mib, held_mib] :
       {std::pair{100, 250}, std::pair{131, 150}, std::pair{130, 280}}) {
    caching_model model(options);
    model.free(take(model, 150 * MiB));
    (void)take(model, static_cast<std::uint64_t>(asked_mib) * MiB);
    EXPECT_EQ(model.held_bytes() / MiB, static_cast<std::uint64_t>(held_mib)) << asked_mib;
  }
}

// One block that is large enough goes, else the largest ones until they are; the 40 stay.
TEST(Caching, OversizeBlocksAreReleasedBeforeTheCache) {
  const caching_options options{.max_split_bytes = 128 * MiB};
  for (const auto& [asked_mib, held_mib] : {std::pair{100, 290}, std::pair{200, 240}}) {
    caching_model model(options, {.limit_bytes = 360 * MiB});
    const block_number first = take(model, 150 * MiB);
    model.free(take(model, 150 * MiB));
    model.free(first);
    model.free(take(model, 40 * MiB));
    EXPECT_NE(take(model, static_cast<std::uint64_t>(asked_mib) * MiB), block_number::none);
    EXPECT_EQ(model.held_bytes() / MiB, static_cast<std::uint64_t>(held_mib));
    EXPECT_EQ(model.retry_count(), 0U);
  }
}

// Waiting for events frees the block, but the pool is not searched again.
TEST(Caching, WhatAWaitFreesServesTheNextRequest) {
  caching_model model(native, {.limit_bytes = 40 * MiB});
  model.free(take(model, 40 * MiB));
  const block_number large = take(model, 30 * MiB);
  (void)take(model, 10 * MiB);
  const std::uint64_t pending = model.free_pending(large);
  EXPECT_EQ(take(model, 30 * MiB), block_number::none);
  EXPECT_NE(take(model, 30 * MiB), block_number::none);
  model.complete(pending);  // has ended already
  EXPECT_EQ(model.validate(), "");
}

TEST(Caching, APendingBlockIsReusedOnlyAfterItsCompletion) {
  caching_model model(native);
  const std::uint64_t pending = model.free_pending(take(model, 30 * MiB));
  (void)take(model, 30 * MiB);
  EXPECT_EQ(model.held_bytes(), 60 * MiB);
  model.complete(pending);
  (void)take(model, 30 * MiB);
  EXPECT_EQ(model.held_bytes(), 60 * MiB);
}

TEST(Caching, StreamsAndPrivatePoolsShareNothing) {
  for (const caching_options& options : {native, expandable}) {
    caching_model model(options);
    model.free(take(model, 5 * MiB));
    model.free(take(model, 5 * MiB, 1));
    EXPECT_EQ(model.held_bytes(), 40 * MiB);
    model.free(take(model, 5 * MiB, 0, 7));
    EXPECT_EQ(model.held_bytes(), 60 * MiB);
    model.empty_cache();  // a private pool in use gives nothing back
    EXPECT_EQ(model.held_bytes(), 20 * MiB);
    EXPECT_EQ(model.validate(), "");
  }
}

TEST(Caching, PrivatePoolsHaveNativeSegmentsBefore25) {
  for (const std::uint32_t minor : {4U, 5U}) {
    caching_options options = expandable;
    options.minor_version = minor;
    caching_model model(options);
    (void)take(model, 30 * MiB, 0, 1);
    EXPECT_EQ(model.held_bytes() / MiB, minor == 4 ? 30U : 40U);
  }
}

TEST(Caching, ALargerSegmentIsAnOption) {
  caching_options options;
  options.large_segment_bytes = 64 * MiB;
  EXPECT_EQ(held(options, {2 * MiB}), 64U);
  options.expandable_segments = true;
  EXPECT_EQ(held(options, {2 * MiB, 63 * MiB}), 128U);
}

// Held: 30 old, 30 young, 30 live. The threshold of 60 makes the older one go.
TEST(Caching, GarbageCollectionNeedsAFraction) {
  for (const double fraction : {1.0, 0.5}) {
    const caching_options options{.garbage_collection_threshold = 0.5, .memory_fraction = fraction};
    caching_model model(options, {.device_bytes = 240 * MiB});
    const block_number old = take(model, 30 * MiB);
    (void)take(model, 31 * MiB);
    model.free(old);
    (void)take(model, 40 * MiB);
    const std::uint64_t gone_mib = fraction < 1 ? 30U : 0U;
    EXPECT_EQ(model.held_bytes() / MiB, 30 + 32 + 40 - gone_mib) << fraction;
  }
}

TEST(Caching, AFractionRefusesSegmentsOfBothPolicies) {
  for (caching_options options : {native, expandable}) {
    options.memory_fraction = 0.5;
    caching_model model(options, {.device_bytes = 100 * MiB});
    EXPECT_NE(take(model, 40 * MiB), block_number::none);
    EXPECT_EQ(take(model, 11 * MiB), block_number::none);
    EXPECT_EQ(take(model, 9 * MiB), block_number::none);  // a segment of 20 MiB
    // The segment of native counts, not the pages that are mapped.
    EXPECT_NE(take(model, 10 * MiB), block_number::none);
    EXPECT_EQ(model.held_bytes() / MiB, options.expandable_segments ? 60U : 50U);
  }
}

TEST(Caching, ARefusalMayBeFinal) {
  const caching_options options{.throw_on_refusal = true};
  caching_model model(options, {.limit_bytes = 50 * MiB});
  model.free(take(model, 30 * MiB));
  EXPECT_EQ(take(model, 40 * MiB), block_number::none);
  EXPECT_EQ(model.held_bytes(), 30 * MiB);
}

// pytorch/pytorch 193400: 64 MiB are kept; each cycle takes 91, 45.5 and 2 MiB, and keeps the last.
// On a device of 16 GiB, less the context, memory ran out in cycle 115.
TEST(Caching, ExpandableSegmentsGrowAsInAPublishedRun) {
  const caching_options options{.expandable_segments = true, .max_split_bytes = 128 * MiB};
  caching_model model(options, {.limit_bytes = 16 * GiB - 300 * MiB, .device_bytes = 16 * GiB});
  (void)take(model, 64 * MiB);
  std::vector<std::uint64_t> held_mib;
  std::optional<std::uint64_t> retry_cycle;
  for (std::uint64_t cycle = 0; cycle <= 115; ++cycle) {
    const block_number first = model.allocate({91 * MiB, 0, 0});
    const block_number second = model.allocate({45 * MiB + MiB / 2, 0, 0});
    ASSERT_NE(model.allocate({2 * MiB, 0, 0}), block_number::none);
    model.free(first);
    model.free(second);
    if (cycle % 20 == 0) held_mib.push_back(model.held_bytes() / MiB);
    if (model.retry_count() != 0 && !retry_cycle) retry_cycle = cycle;
  }
  EXPECT_EQ(held_mib, (std::vector<std::uint64_t>{220, 2980, 5760, 8520, 11300, 14060}));
  EXPECT_EQ(retry_cycle, 115U);
  EXPECT_EQ(model.held_bytes() / MiB, 2680U);
  EXPECT_EQ(model.validate(), "");
}

// ---- recorded programs ----------------------------------------------------------------

class played_model {
 public:
  explicit played_model(const caching_options& options) : model_(options) {}
  vmm::result<vmm::address> allocate(const vmm::tools::replay_request& request) {
    const block_number got = model_.allocate({request.size_bytes, request.stream, 0});
    return vmm::address{static_cast<std::uint64_t>(got)};
  }
  vmm::status free(vmm::address at) {
    model_.free(static_cast<block_number>(at.value));
    return {};
  }
  std::uint64_t held_bytes() const { return model_.held_bytes(); }

 private:
  caching_model model_;
};

double ratio_of(const vmm::tools::trace& input, const caching_options& options) {
  played_model model(options);
  const auto seen = vmm::tools::replayer(model, input).observe();
  return static_cast<double>(seen.peak_held_bytes) / static_cast<double>(input.peak_live_bytes);
}

// Most held over most live, measured with PyTorch's allocators on an H100
// (docs/results/data/pool-h100.csv). What native holds depends a little on where the driver puts
// segments: 1.177 and 1.200 of beam_kv with places that go up and down, 1.141 to 1.191 with places
// at random.
TEST(Caching, PeaksAreThoseMeasured) {
  struct row {
    const char* name;
    double native_ratio;
    double expandable_ratio;
  };
  for (const row& each :
       {row{"gpt_train", 1.201, 1.045}, row{"llama_generate", 1.293, 1.044},
        row{"maskrcnn_train", 1.921, 1.073}, row{"beam_kv", 1.173, 1.113},
        row{"diffusion", 1.853, 1.032}, row{"experts", 1.248, 1.077}, row{"speech", 2.655, 1.459},
        row{"serving", 1.137, 1.079}, row{"neighbours", 2.867, 1.086},
        row{"feedback", 1.454, 1.220}, row{"folding", 1.187, 1.069}, row{"rays", 2.672, 1.191},
        row{"search", 2.364, 1.154}, row{"recommend", 1.571, 1.116}, row{"points", 1.143, 1.010},
        row{"video", 1.122, 1.029}}) {
    const std::string path = std::string(VMM_TRACES_FOLDER) + "/" + each.name + ".trace.gz";
    const vmm::tools::read_outcome input = vmm::tools::read_trace(path);
    ASSERT_TRUE(input) << vmm::tools::describe(input.trouble);
    EXPECT_NEAR(ratio_of(*input.value, native) / each.native_ratio, 1, 0.01) << each.name;
    EXPECT_NEAR(ratio_of(*input.value, expandable), each.expandable_ratio, 0.001) << each.name;
  }
}

// ---- random requests ------------------------------------------------------------------

TEST(Caching, InvariantsHoldUnderRandomRequests) {
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    caching_options options;
    options.expandable_segments = seed % 2 == 1;
    if (seed % 3 == 0) options.max_split_bytes = 32 * MiB;
    if (seed % 4 == 0) options.garbage_collection_threshold = 0.5;
    if (seed % 4 == 0) options.memory_fraction = 0.9;
    caching_model model(options, {.limit_bytes = 120 * MiB,
                                  .device_bytes = 130 * MiB,
                                  .has_descending_addresses = seed % 5 == 0});
    std::uint64_t notified_bytes = 0;
    model.set_listener([&](const vmm::tools::segment_change& change) {
      const bool is_more =
          change.action == segment_action::alloc || change.action == segment_action::map;
      notified_bytes =
          is_more ? notified_bytes + change.size_bytes : notified_bytes - change.size_bytes;
    });
    std::vector<block_number> live;
    std::vector<std::uint64_t> pending;
    for (int step = 0; step < 1500; ++step) {
      const std::uint32_t dice = random() % 100;
      if (dice < 52) {
        const std::uint64_t size_bytes = random() % (std::uint64_t{1} << (random() % 26)) + 1;
        const block_number got =
            model.allocate({size_bytes, static_cast<std::uint16_t>(random() % 2),
                            static_cast<std::uint16_t>(random() % 9 == 0)});
        if (got != block_number::none) live.push_back(got);
      } else if (dice < 95 && !live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        if (dice < 85) model.free(live.back());
        if (dice >= 85) pending.push_back(model.free_pending(live.back()));
        live.pop_back();
      } else if (dice < 99 && !pending.empty()) {
        model.complete(pending.front());
        pending.erase(pending.begin());
      } else if (dice == 99) {
        model.empty_cache();
      }
      if (step % 16 == 0) ASSERT_EQ(model.validate(), "") << seed << " " << step;
    }
    EXPECT_EQ(notified_bytes, model.held_bytes()) << seed;
    EXPECT_LE(model.peak_held_bytes(), 120 * MiB);
    EXPECT_GT(model.retry_count(), 0U) << seed;
    for (const std::uint64_t each : pending) model.complete(each);
    for (const block_number each : live) model.free(each);
    EXPECT_EQ(model.validate(), "");
  }
}

}  // namespace
