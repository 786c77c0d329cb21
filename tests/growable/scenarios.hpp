// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Every operation of a growable range in the situations that take different ways through it, for
// the sweeps that make each driver call and each host allocation in them fail. Two ranges of one
// manager; a world records the contents of each segment. It imports what it uses, so it is the last
// include except others with imports.
#pragma once

#include "../manager/scenarios.h"

namespace growth {

inline constexpr std::uint64_t segments = 3;
inline constexpr std::uint64_t granule = 2 * MiB;

template <class B>
struct world {
  struct shown {
    std::uint64_t size_bytes = 0;
    std::uint64_t tag = 0;
    std::uint64_t tagged_bytes = 0;
  };

  B driver;
  std::unique_ptr<vmm::manager> managed;
  std::unique_ptr<vmm::growable_range> ranges[2];
  std::vector<shown> segments_of[2];

  world(B&& made, std::uint64_t budget_bytes) : driver(std::move(made)) {
    vmm::manager_options options;
    options.reservation_bytes = 1024 * MiB;
    options.budget_bytes = budget_bytes;
    managed = std::make_unique<vmm::manager>(driver, options);
    for (int i = 0; i < 2; ++i) {
      const vmm::growable_options wanted{.segment_bytes_max = 64 * MiB, .segment_count = segments};
      ranges[i] = std::make_unique<vmm::growable_range>(*managed, wanted);
      segments_of[i].resize(segments);
    }
  }

  [[nodiscard]] vmm::fake_driver& fake() { return sweeps::fake_of(driver); }

  vmm::status resize(int which, const vmm::growable_request& request) {
    const vmm::status done = ranges[which]->resize(request);
    if (!done) return done;
    const std::uint64_t end =
        request.segment_count == 0 ? segments : request.first_segment + request.segment_count;
    for (std::uint64_t i = request.first_segment; i < end; ++i) {
      shown& each = segments_of[which][i];
      each.size_bytes = request.size_bytes;
      each.tagged_bytes = std::min(each.tagged_bytes, request.size_bytes);
    }
    return done;
  }
  vmm::status close(int which) {
    const vmm::status done = ranges[which]->close();
    if (done) segments_of[which].clear();
    return done;
  }
  void tag_all() {
    synchronize();
    for (int which = 0; which < 2; ++which) {
      for (std::size_t i = 0; i < segments_of[which].size(); ++i) {
        shown& each = segments_of[which][i];
        if (each.size_bytes == 0) continue;
        each.tag = 100 * static_cast<std::uint64_t>(which + 1) + i;
        each.tagged_bytes = each.size_bytes;
        ASSERT_TRUE(fake().write_tag({*ranges[which]->segment(i), each.size_bytes}, each.tag));
      }
    }
  }
  // Work that has not finished on a range's first segment.
  void keep_busy(int which) {
    if (!fake().feature_set().streams) return;
    const vmm::address_range used{*ranges[which]->segment(0), segments_of[which][0].size_bytes};
    ASSERT_TRUE(fake().launch(vmm::stream_handle::default_stream,
                              {.duration_us = 1e6, .reads = {&used, 1}}));
  }
  void synchronize() {
    if (fake().feature_set().streams)
      EXPECT_TRUE(fake().synchronize_stream(vmm::stream_handle::default_stream));
  }

  void expect_intact(const std::string& what) {
    synchronize();
    for (int which = 0; which < 2; ++which) {
      for (std::size_t i = 0; i < segments_of[which].size(); ++i) {
        const shown& each = segments_of[which][i];
        const auto size_bytes = ranges[which]->size_bytes(i);
        EXPECT_EQ(size_bytes.value_or(0), each.size_bytes) << what;
        if (each.tagged_bytes == 0) continue;
        const vmm::address at = *ranges[which]->segment(i);
        for (std::uint64_t byte = 0; byte < each.tagged_bytes; byte += granule) {
          const auto tag = fake().read_tag(at + byte);
          ASSERT_TRUE(tag) << what;
          ASSERT_EQ(*tag, each.tag) << what << ", segment " << i << ", byte " << byte;
        }
      }
      EXPECT_TRUE(ranges[which]->validate()) << what;
    }
    EXPECT_TRUE(managed->validate()) << what;
  }
  void finish(const std::string& what) {
    fake().clear_faults();
    synchronize();
    for (auto& each : ranges) each.reset();
    managed.reset();
    EXPECT_TRUE(fake().check_empty()) << what << '\n' << fake().report();
    EXPECT_EQ(fake().misuse_count(), 0u) << what;
    for (const auto& each : fake().misuses()) ADD_FAILURE() << what << ": " << each.detail;
  }
};

template <class B>
struct scenario {
  const char* name;
  std::function<void(world<B>&)> prepare;
  std::function<vmm::status(world<B>&)> operation;
  std::uint64_t budget_bytes = 0;
};

template <class B>
std::vector<scenario<B>> all() {
  const auto nothing = [](world<B>&) {};
  const auto resize = [](std::uint64_t granules) {
    return [granules](world<B>& w) { return w.resize(0, {.size_bytes = granules * granule}); };
  };
  const auto grown = [](world<B>& w) {
    ASSERT_TRUE(w.resize(0, {.size_bytes = 4 * granule}));
    w.tag_all();
  };
  const auto grown_busy = [grown](world<B>& w) {
    grown(w);
    w.keep_busy(0);
  };
  const auto given_up = [grown](world<B>& w) {
    grown(w);
    ASSERT_TRUE(w.resize(0, {.size_bytes = granule}));
  };
  const auto given_up_busy = [grown_busy](world<B>& w) {
    grown_busy(w);
    ASSERT_TRUE(w.resize(0, {.size_bytes = granule}));
  };
  const auto uneven = [grown](world<B>& w) {
    grown(w);
    ASSERT_TRUE(w.resize(0, {.size_bytes = 7 * granule, .first_segment = 1, .segment_count = 1}));
    w.tag_all();
  };
  const auto other_has_it = [](world<B>& w) {
    ASSERT_TRUE(w.resize(0, {.size_bytes = granule}));
    ASSERT_TRUE(w.resize(1, {.size_bytes = 7 * granule}));
    w.tag_all();
    w.keep_busy(1);
    ASSERT_TRUE(w.resize(1, {.size_bytes = 2 * granule}));
  };
  const auto close = [](world<B>& w) {
    // Closed before: the call is over, and the sweep repeats it.
    return w.segments_of[0].empty() ? vmm::status{} : w.close(0);
  };
  return {
      {"first growth", nothing, resize(2)},
      {"growth", grown, resize(6)},
      {"growth inside of a granule", grown,
       [](world<B>& w) { return w.resize(0, {.size_bytes = 4 * granule + 100}); }},
      {"growth with released memory", given_up, resize(3)},
      {"growth over what is in use", given_up_busy, resize(3)},
      {"shrink", grown, resize(2)},
      {"shrink under work", grown_busy, resize(2)},
      {"release", grown, resize(0)},
      {"some grow and one shrinks", uneven, resize(5)},
      {"one handle", nothing,
       [](world<B>& w) { return w.resize(0, {.size_bytes = 4 * granule, .one_handle = true}); }},
      {"memory of the other range, in use", other_has_it, resize(5), 24 * granule},
      {"close", grown, close},
      {"close under work", given_up_busy, close},
  };
}

}  // namespace growth
