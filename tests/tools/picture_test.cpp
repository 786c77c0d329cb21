// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the picture is an SVG of bounded size, and an area of a colour stands for that many bytes.
// program_test.py sees that it is well-formed.
// Method: hand-made address spaces; the rectangles of each colour are read back from the document
// and added up; texts with every awkward character; a million small extents.
#include "../support/test.h"

import vmm.replay;

namespace {

using vmm::tools::extent, vmm::tools::extent_kind;

constexpr std::uint64_t base = 0x7000'0000'0000;
constexpr const char* live_colour = "#2166ac";
constexpr const char* kept_colour = "#f4a442";
constexpr std::uint64_t row_height = 20;

extent at(std::uint64_t offset_bytes, std::uint64_t size_bytes, extent_kind kind) {
  return {{vmm::address{base + offset_bytes}, size_bytes}, kind};
}

/// Square pixels of a colour's path.
std::uint64_t area_of(const std::string& svg, const std::string& colour) {
  const std::size_t path = svg.find("<path fill=\"" + colour + "\" d=\"");
  if (path == std::string::npos) return 0;
  const std::size_t end = svg.find("\"/>", path);
  std::uint64_t area = 0;
  for (std::size_t i = svg.find('M', path); i < end; i = svg.find('M', i + 1)) {
    unsigned x = 0, y = 0, width = 0, height = 0, back = 0;
    EXPECT_EQ(std::sscanf(svg.c_str() + i, "M%u %uh%uv%uh-%uz", &x, &y, &width, &height, &back), 5);
    EXPECT_EQ(width, back);
    EXPECT_LE(x + width, 1024u);
    EXPECT_LE(y % 26 + height, row_height);
    area += std::uint64_t{width} * height;
  }
  return area;
}

TEST(Picture, SumsBytesAndExtentsOfEachKind) {
  const auto sums = vmm::tools::sum_of(
      {at(0, 5 * MiB, extent_kind::hole),  // before the first memory: left out
       at(5 * MiB, 2 * MiB, extent_kind::live), at(7 * MiB, MiB, extent_kind::kept),
       // 2 MiB unspoken of: a hole, one with the next
       at(10 * MiB, MiB, extent_kind::hole), at(11 * MiB, MiB, extent_kind::live),
       at(12 * MiB, MiB, extent_kind::stale),
       at(13 * MiB, 1 << 30, extent_kind::hole)});  // behind the last: left out
  EXPECT_EQ(sums.size_bytes, (std::array<std::uint64_t, 5>{3 * MiB, 0, MiB, MiB, 3 * MiB}));
  EXPECT_EQ(sums.count, (std::array<std::uint64_t, 5>{2, 0, 1, 1, 1}));
}

TEST(Picture, AreasStandForBytes) {
  // 16 MiB in 16 rows of 1 MiB: a pixel column is 1 KiB and 20 pixels high.
  vmm::tools::picture what;
  what.title = "t";
  what.extents = {at(0, 6 * MiB, extent_kind::live),
                  at(6 * MiB, 4 * MiB + 512 * 1024, extent_kind::kept),
                  at(12 * MiB, 4 * MiB, extent_kind::live)};
  const std::string svg = vmm::tools::draw_svg(what);
  EXPECT_EQ(area_of(svg, live_colour), 10 * 1024 * row_height);
  EXPECT_EQ(area_of(svg, kept_colour), 9 * 512 * row_height);
  EXPECT_TRUE(contains(svg, ">10.00 MiB</text>"));
  EXPECT_TRUE(contains(svg, ">4.50 MiB</text>"));
  EXPECT_NE(svg.find(">Each row is 1 MiB of addresses;"), std::string::npos);
}

// Alone, 16 MiB are drawn in rows of 1 MiB; beside 64 MiB they are in rows of 4 MiB, too.
TEST(Picture, TwoOnOneScale) {
  std::array<vmm::tools::picture, 2> both;
  both[0].title = "the first";
  both[0].extents = {at(0, 16 * MiB, extent_kind::live)};
  both[1].title = "the second";
  both[1].extents = {at(0, 64 * MiB, extent_kind::kept)};
  const std::string svg = vmm::tools::draw_svg(both);
  EXPECT_EQ(area_of(svg, live_colour), 4 * 1024 * row_height);
  EXPECT_EQ(area_of(svg, kept_colour), 16 * 1024 * row_height);
  EXPECT_LT(svg.find(">the first<"), svg.find(">the second<"));
  const std::string alone = vmm::tools::draw_svg(both[0]);
  EXPECT_EQ(area_of(alone, live_colour), 16 * 1024 * row_height);
}

TEST(Picture, ExtentsBelowAPixelStackInProportion) {
  // 16 MiB of alternating 512-byte extents: every 1 KiB column is half live and half kept.
  vmm::tools::picture what;
  for (std::uint64_t i = 0; i < 16 * MiB / 512; ++i)
    what.extents.push_back(at(i * 512, 512, i % 2 == 0 ? extent_kind::live : extent_kind::kept));
  const std::string svg = vmm::tools::draw_svg(what);
  EXPECT_EQ(area_of(svg, live_colour), 16 * 1024 * row_height / 2);
  EXPECT_EQ(area_of(svg, kept_colour), 16 * 1024 * row_height / 2);
  EXPECT_LT(svg.size(), 16'000u);
}

TEST(Picture, StaysSmallWhateverTheExtents) {
  // Widths from a fixed sequence, so that neighbouring columns all differ.
  vmm::tools::picture what;
  std::uint64_t offset = 0;
  std::uint64_t state = 1;
  for (int i = 0; i < 1'000'000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t size_bytes = 512 * (1 + (state >> 60)) * (1 + (state >> 40) % 9);
    what.extents.push_back(at(offset, size_bytes, static_cast<extent_kind>((state >> 33) % 5)));
    offset += size_bytes;
  }
  const std::string svg = vmm::tools::draw_svg(what);
  EXPECT_LT(svg.size(), 500'000u);
  EXPECT_GT(area_of(svg, live_colour), 0u);
}

TEST(Picture, FoldsHolesLongerThanAllMemory) {
  vmm::tools::picture what;
  what.extents = {at(0, MiB, extent_kind::live), at(MiB, std::uint64_t{1} << 40, extent_kind::hole),
                  at((std::uint64_t{1} << 40) + MiB, MiB, extent_kind::kept)};
  const std::string svg = vmm::tools::draw_svg(what);
  EXPECT_TRUE(contains(
      svg, "Dashed lines: 1 longer stretches without memory, 1.00 TiB in all, are not drawn."));
  EXPECT_EQ(area_of(svg, live_colour), area_of(svg, kept_colour));
  EXPECT_EQ(area_of(svg, live_colour), 8u * 1024 * row_height);  // 2 MiB in 16 rows of 128 KiB
}

TEST(Picture, SharesAreOfMemoryAndNotOfAddresses) {
  vmm::tools::picture what;
  what.extents = {at(0, 3 * MiB, extent_kind::live), at(3 * MiB, 8 * MiB, extent_kind::stale),
                  at(11 * MiB, 5 * MiB, extent_kind::hole), at(16 * MiB, MiB, extent_kind::kept)};
  const std::string svg = vmm::tools::draw_svg(what);
  for (const char* share : {">75.0 %<", ">25.0 %<"}) EXPECT_TRUE(contains(svg, share)) << share;
  EXPECT_TRUE(contains(svg, "they cost nothing"));
}

TEST(Picture, NothingToDrawIsStillADocument) {
  EXPECT_TRUE(contains(vmm::tools::draw_svg(vmm::tools::picture{}), "</svg>"));
  EXPECT_TRUE(contains(vmm::tools::draw_svg(std::span<const vmm::tools::picture>{}), "</svg>"));
}

TEST(Picture, TextsMayHoldAnything) {
  vmm::tools::picture what;
  what.title = "<a & \"b\">\x01\xff";
  what.captions = {"</svg>"};
  what.notes = {"&amp;"};
  const std::string svg = vmm::tools::draw_svg(what);
  EXPECT_NE(svg.find("&lt;a &amp; &quot;b&quot;&gt; \xef\xbf\xbd</text>"), std::string::npos);
  EXPECT_NE(svg.find(">&amp;amp;</text>"), std::string::npos);
}

}  // namespace
