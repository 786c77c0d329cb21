// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: generated traces are traces, differ by kind and seed, and by nothing else.
// Method: the strict reader takes them; texts are compared; what each kind promises is counted.
#include "../support/test.h"

import vmm.trace;
import vmm.trace_generator;

namespace {

using vmm::tools::generate_trace, vmm::tools::trace;

trace read(const std::string& kind, std::uint64_t seed) {
  const std::string text = generate_trace(kind, seed);
  auto outcome = vmm::tools::parse_trace(kind, std::as_bytes(std::span(text)));
  EXPECT_TRUE(outcome) << vmm::tools::describe(outcome.trouble);
  return outcome ? std::move(*outcome.value) : trace{};
}

std::uint64_t largest_request(const trace& input) {
  std::uint64_t size_bytes = 0;
  for (const auto& each : input.events) size_bytes = std::max(size_bytes, each.size_bytes);
  return size_bytes;
}

TEST(GeneratedTrace, OfEveryKindIsATraceThatADeviceHolds) {
  for (const auto& kind : vmm::tools::trace_kinds()) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const trace made = read(kind.name, seed);
      EXPECT_GT(made.allocation_count, 5'000u) << kind.name;
      EXPECT_GE(made.iterations.size(), 10u) << kind.name;
      EXPECT_GT(made.peak_live_bytes, std::uint64_t{1} << 28) << kind.name;
      EXPECT_LT(made.peak_live_bytes, std::uint64_t{140} << 30) << kind.name;
      EXPECT_LT(largest_request(made), made.peak_live_bytes / 2) << kind.name;
    }
  }
}

TEST(GeneratedTrace, DependsOnKindAndSeedAlone) {
  std::set<std::string> texts;
  for (const auto& kind : vmm::tools::trace_kinds()) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const std::string text = generate_trace(kind.name, seed);
      EXPECT_EQ(text, generate_trace(kind.name, seed));
      EXPECT_TRUE(texts.insert(text).second) << kind.name << " " << seed;
    }
  }
}

TEST(GeneratedTrace, IsEmptyForAnUnknownKind) { EXPECT_EQ(generate_trace("poetry", 1), ""); }

TEST(GeneratedTrace, OfServingTakesPagesOfOneSize) {
  const trace made = read("serving", 1);
  const auto pages =
      std::count_if(made.events.begin(), made.events.end(), [](const vmm::tools::event& each) {
        return each.kind == vmm::tools::event_kind::allocate && each.size_bytes == 2u << 20;
      });
  EXPECT_GT(static_cast<std::uint64_t>(pages), made.allocation_count / 4);
}

}  // namespace
