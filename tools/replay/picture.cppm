// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.replay:picture - draws an address space as an SVG.
//
// Addresses run like text: left to right, then down. A cell is one pixel column of a row; within a
// cell the colours stack in proportion to the bytes, so that an area of a colour always stands for
// that many bytes, however small the extents are. Runs of equal cells become one rectangle, which
// keeps the file small.
//
// Thread safety: values only. Cost: linear in extents and cells.
export module vmm.replay:picture;

import vmm.backend;
import vmm.std;

namespace vmm::tools {

export enum class extent_kind : std::uint8_t {
  live,      // handed out, up to the requested size
  rounding,  // behind a live block, beyond the requested size
  kept,      // mapped and free: the next request may have it without a driver call
  stale,     // addresses that memory has left
  hole,      // addresses with nothing behind them
};
export inline constexpr std::size_t extent_kind_count = 5;

export struct extent {
  address_range range{};
  extent_kind kind = extent_kind::hole;
};

/// What to draw. `extents` ascend and do not overlap; addresses between them count as holes.
export struct picture {
  std::string title;
  std::vector<std::string> captions;  ///< lines under the title
  std::vector<std::string> notes;     ///< lines at the foot
  std::vector<extent> extents;
  std::uint64_t unmapped_bytes = 0;  ///< memory held without an address: in the legend only
};

/// Bytes and extents of each kind, holes behind the last extent with memory left out.
export struct picture_sums {
  std::array<std::uint64_t, extent_kind_count> size_bytes{};
  std::array<std::uint64_t, extent_kind_count> count{};
};
export [[nodiscard]] picture_sums sum_of(const std::vector<extent>& extents);

/// The whole SVG document, at most about 500 KB a picture. Several pictures stand one below the
/// other on one scale: a pixel is as many bytes in each. Texts may hold any characters.
export [[nodiscard]] std::string draw_svg(std::span<const picture> pictures);
export [[nodiscard]] inline std::string draw_svg(const picture& what) {
  return draw_svg(std::span<const picture>(&what, 1));
}

}  // namespace vmm::tools
