// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: bytes written, filled and copied are the bytes that are read, however they were kept.
// Method: a plain array as the model of two mappings of several handles; random writes, fills, tags
// and copies of every size and alignment against it.
#include "bench.h"

namespace fake_test {
namespace {

struct Bytes : Fake {
  void SetUp() override {
    range = reserved(12 * MiB);
    mapped(range.base, created(4 * MiB), 4 * MiB);
    mapped(range.base + 4 * MiB, created(2 * MiB), 2 * MiB);
    mapped(range.base + 6 * MiB, created(6 * MiB), 6 * MiB);
    model.assign(12 * MiB, std::byte{});
  }
  std::uint64_t pick(std::uint64_t below) { return random() % below; }
  /// A part of the range: small and odd, or large and round.
  vmm::address_range part() {
    static constexpr std::uint64_t units[] = {1, 8, 512, 4096, 2 * MiB};
    const std::uint64_t unit = units[pick(5)];
    const std::uint64_t offset = pick(12 * MiB / unit) * unit;
    const std::uint64_t most = std::min<std::uint64_t>(12 * MiB - offset, unit * 40);
    return {range.base + offset, (1 + pick(most / unit)) * unit};
  }
  std::byte* in_model(vmm::address at) { return model.data() + (at - range.base); }
  void expect_same() {
    std::vector<std::byte> seen(model.size());
    ASSERT_TRUE(driver.read(seen, range.base));
    ASSERT_EQ(std::memcmp(seen.data(), model.data(), seen.size()), 0);
  }

  vmm::address_range range{};
  std::vector<std::byte> model;
  std::mt19937_64 random{20261121};
};

TEST_F(Bytes, AreWhatAModelSaysAfterRandomChanges) {
  for (int round = 0; round < 400; ++round) {
    const auto where = part();
    switch (pick(4)) {
      case 0: {
        std::vector<std::byte> source(where.size_bytes % 10'000 + 1);
        for (auto& each : source) each = static_cast<std::byte>(random());
        const std::uint64_t size = std::min<std::uint64_t>(source.size(), range.end() - where.base);
        ASSERT_TRUE(driver.write(where.base, {source.data(), size}));
        std::memcpy(in_model(where.base), source.data(), size);
        break;
      }
      case 1: {
        const auto value = static_cast<std::uint8_t>(random());
        ASSERT_TRUE(driver.fill({where, value}));
        std::memset(in_model(where.base), value, where.size_bytes);
        break;
      }
      case 2: {
        const std::uint64_t tag = random();
        ASSERT_TRUE(driver.finish_all());
        ASSERT_TRUE(driver.write_tag(where, tag));
        // The tag is repeated from the start of each handle, which is a multiple of 8 here.
        for (std::uint64_t i = 0; i < where.size_bytes; ++i) {
          const std::uint64_t at = where.base + i - range.base;
          model[at] = static_cast<std::byte>(tag >> (8 * (at % 8)));
        }
        break;
      }
      default: {
        const std::uint64_t size = where.size_bytes;
        const std::uint64_t to = pick(12 * MiB - size + 1);
        const vmm::address_range target{range.base + to, size};
        if (target.overlaps(where)) break;
        ASSERT_TRUE(driver.copy({target.base, where.base, size}));
        std::memcpy(in_model(target.base), in_model(where.base), size);
      }
    }
    ASSERT_TRUE(driver.synchronize_stream(vmm::stream_handle::default_stream));
    if (round % 20 == 0) expect_same();
  }
  expect_same();
  EXPECT_EQ(driver.misuse_count(), 0u);
}

// More pieces than have separate records, cut at unaligned bytes, and then joined again.
TEST_F(Bytes, AreWhatAModelSaysWhereAGranuleHasManyPieces) {
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::uint64_t offset = i * 37 % 500 * 1003;
    const vmm::address_range where{range.base + offset, 24 + i % 9};
    const std::uint64_t tag = random();
    ASSERT_TRUE(driver.write_tag(where, tag));
    for (std::uint64_t at = offset; at < offset + where.size_bytes; ++at)
      model[at] = static_cast<std::byte>(tag >> (8 * (at % 8)));
    if (i % 50 == 0) expect_same();
  }
  expect_same();
  ASSERT_TRUE(driver.fill({{range.base + 1, 2 * MiB - 2}, 7}));
  std::memset(model.data() + 1, 7, 2 * MiB - 2);
  expect_same();
  EXPECT_EQ(driver.read_tag(range.base + 8).value(), 0x0707'0707'0707'0707u);
}

TEST_F(Bytes, NothingIsWrittenWhenAPartCannotBe) {
  const std::vector<std::byte> source(2 * MiB, std::byte{1});
  ASSERT_TRUE(driver.unmap({range.base + 4 * MiB, 2 * MiB}));
  EXPECT_EQ(code(driver.write(range.base + 3 * MiB, source)), invalid_value);
  EXPECT_EQ(*driver.read_tag(range.base + 3 * MiB), 0u);
  EXPECT_EQ(code(driver.fill({{range.base + 3 * MiB, 2 * MiB}, 1})), invalid_value);
  EXPECT_EQ(code(driver.copy({range.base + 6 * MiB, range.base + 3 * MiB, 2 * MiB})),
            invalid_value);
  EXPECT_EQ(driver.misuse_count(vmm::fake::misuse_kind::use_after_unmap), 3u);
}

TEST_F(Bytes, AnUnknownStreamIsRefused) {
  const auto stream = static_cast<vmm::stream_handle>(77);
  EXPECT_EQ(code(driver.fill({range, 1, stream})), 400);
  EXPECT_EQ(code(driver.copy({range.base, range.base + 6 * MiB, MiB, stream})), 400);
}

}  // namespace
}  // namespace fake_test
