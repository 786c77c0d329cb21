// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The picture is made in three steps: lay the extents out on a strip without gaps (folding holes
// that are too long to draw), sum the strip into cells, and turn runs of equal cells into
// rectangles.
module vmm.replay;

import vmm.std;
import vmm.trace;

namespace vmm::tools {
namespace {

constexpr std::uint64_t left_px = 96;
constexpr std::uint64_t row_px =
    1024;  // a power of two, so that a pixel is a round number of bytes
constexpr std::uint64_t right_px = 40;
constexpr std::uint64_t row_height_px = 20;
constexpr std::uint64_t row_pitch_px = 26;
constexpr std::uint64_t rows_max = 24;
constexpr std::size_t svg_bytes_max = 480'000;

struct style {
  const char* name;
  const char* colour;
  const char* meaning;
};
constexpr std::array<style, extent_kind_count> styles = {{
    {"live", "#2166ac", "handed out to the program"},
    {"rounding", "#92c5de", "mapped beyond the requested sizes: blocks take whole granules"},
    {"free but mapped", "#f4a442", "memory retained for the next request, unused now"},
    {"stale", "#ddd3ea", "addresses that memory has left; not reused yet: they cost nothing"},
    {"hole", "#e6e8eb", "addresses with no memory behind them: they cost nothing"},
}};
constexpr std::array drawn_upwards = {extent_kind::live, extent_kind::rounding, extent_kind::stale,
                                      extent_kind::kept};

std::size_t index_of(extent_kind kind) { return static_cast<std::size_t>(kind); }

/// A piece of the strip: addresses as drawn, from 0 on without gaps.
struct piece_drawn {
  std::uint64_t begin_bytes = 0;
  std::uint64_t size_bytes = 0;
  extent_kind kind = extent_kind::hole;
};

/// The strip, and where holes were folded.
struct strip {
  std::vector<piece_drawn> pieces;
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> folds;
  std::uint64_t folded_bytes = 0;

  void add(std::uint64_t bytes, extent_kind kind) {
    if (bytes == 0) return;
    pieces.push_back({size_bytes, bytes, kind});
    size_bytes += bytes;
  }
};

/// The extents from the first to the last that has memory.
std::vector<extent> used_part(const std::vector<extent>& extents) {
  const auto has_memory = [](const extent& e) {
    return e.kind != extent_kind::hole && !e.range.empty();
  };
  const auto first = std::ranges::find_if(extents, has_memory);
  auto last = extents.end();
  while (last != first && !has_memory(*(last - 1))) --last;
  return {first, last};
}

/// Holes longer than all memory together would leave no room for the rest.
strip lay_out(const std::vector<extent>& extents) {
  std::uint64_t memory_bytes = 0;
  for (const extent& e : extents)
    memory_bytes += e.kind == extent_kind::hole ? 0 : e.range.size_bytes;
  strip out;
  std::uint64_t hole_bytes = 0;
  address expected = extents.empty() ? address{} : extents.front().range.base;
  for (const extent& e : extents) {
    hole_bytes += e.range.base - expected;
    expected = e.range.end();
    if (e.kind == extent_kind::hole) {
      hole_bytes += e.range.size_bytes;
      continue;
    }
    if (hole_bytes > memory_bytes) {
      out.folds.push_back(out.size_bytes);
      out.folded_bytes += hole_bytes;
    } else {
      out.add(hole_bytes, extent_kind::hole);
    }
    hole_bytes = 0;
    out.add(e.range.size_bytes, e.kind);
  }
  return out;
}

struct scale {
  std::uint64_t row_bytes = 0;
  std::uint64_t row_count = 0;
};

scale scale_of(std::uint64_t size_bytes, std::uint64_t row_bytes) {
  return {row_bytes, size_bytes == 0 ? 1 : (size_bytes - 1) / row_bytes + 1};
}

/// The smallest power of two that needs at most rows_max rows.
scale fit(std::uint64_t size_bytes) {
  std::uint64_t row_bytes = row_px;
  while (row_bytes < size_bytes && (size_bytes - 1) / row_bytes + 1 > rows_max) row_bytes *= 2;
  return scale_of(size_bytes, row_bytes);
}

/// Bytes of each kind in one cell.
using cell = std::array<std::uint64_t, extent_kind_count>;

std::vector<cell> sum_cells(const strip& drawn, std::uint64_t cell_bytes) {
  std::vector<cell> cells(drawn.size_bytes == 0 ? 0 : (drawn.size_bytes - 1) / cell_bytes + 1);
  for (const piece_drawn& piece : drawn.pieces) {
    const std::uint64_t end = piece.begin_bytes + piece.size_bytes;
    for (std::uint64_t at = piece.begin_bytes; at < end;) {
      const std::uint64_t index = at / cell_bytes;
      const std::uint64_t stop = std::min(end, (index + 1) * cell_bytes);
      cells[index][index_of(piece.kind)] += stop - at;
      at = stop;
    }
  }
  return cells;
}

/// Where each colour begins above the foot of the row, in pixels; the last entry is where the stack
/// ends.
using stack = std::array<std::uint64_t, drawn_upwards.size() + 1>;

stack stack_of(const cell& sums, std::uint64_t cell_bytes) {
  stack out{};
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i < drawn_upwards.size(); ++i) {
    so_far += sums[index_of(drawn_upwards[i])];
    out[i + 1] = (so_far * row_height_px + cell_bytes / 2) / cell_bytes;
  }
  return out;
}

/// "M12 34h3v10h-3z": a rectangle in an SVG path.
std::string rectangle(std::uint64_t x, std::uint64_t y, std::uint64_t width, std::uint64_t height) {
  const std::string across = std::to_string(width);
  return "M" + std::to_string(x) + " " + std::to_string(y) + "h" + across + "v" +
         std::to_string(height) + "h-" + across + "z";
}

/// One path for each colour of drawn_upwards.
using paths = std::array<std::string, drawn_upwards.size()>;

/// A run of equal cells in one row, in cells from the row's start.
struct run {
  std::uint64_t row = 0;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

void add_run(paths& out, const run& where, const stack& heights, std::uint64_t cell_px) {
  const std::uint64_t foot = where.row * row_pitch_px + row_height_px;
  for (std::size_t i = 0; i < drawn_upwards.size(); ++i) {
    const std::uint64_t height = heights[i + 1] - heights[i];
    if (height == 0) continue;
    out[i] += rectangle(where.first * cell_px, foot - heights[i + 1],
                        (where.last - where.first) * cell_px, height);
  }
}

paths draw_cells(const std::vector<cell>& cells, std::uint64_t cell_bytes, std::uint64_t cell_px) {
  const std::uint64_t cells_a_row = row_px / cell_px;
  paths out;
  for (std::uint64_t i = 0; i < cells.size();) {
    const std::uint64_t row = i / cells_a_row;
    const std::uint64_t row_end = std::min<std::uint64_t>((row + 1) * cells_a_row, cells.size());
    const stack heights = stack_of(cells[i], cell_bytes);
    std::uint64_t end = i + 1;
    while (end < row_end && stack_of(cells[end], cell_bytes) == heights) ++end;
    add_run(out, {row, i % cells_a_row, end - row * cells_a_row}, heights, cell_px);
    i = end;
  }
  return out;
}

/// The paths with the finest cells whose text stays below the limit.
paths draw_paths(const strip& drawn, const scale& fitted) {
  paths out;
  for (std::uint64_t cell_px = 1; cell_px <= 8; cell_px *= 2) {
    const std::uint64_t cell_bytes = fitted.row_bytes / row_px * cell_px;
    out = draw_cells(sum_cells(drawn, cell_bytes), cell_bytes, cell_px);
    std::size_t text_bytes = 0;
    for (const std::string& path : out) text_bytes += path.size();
    if (text_bytes <= svg_bytes_max) break;
  }
  return out;
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : to_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

struct point {
  std::uint64_t x = 0;
  std::uint64_t y = 0;
};

std::string text_at(point at, std::string_view text, const char* style_class = "") {
  std::string out = "<text x=\"" + std::to_string(at.x) + "\" y=\"" + std::to_string(at.y) + "\"";
  if (*style_class != '\0') out += std::string(" class=\"") + style_class + "\"";
  return out + ">" + xml_text(text) + "</text>\n";
}

/// "12.5 GiB" in the unit that fits `whole_bytes`, without needless zeros.
std::string axis_label(std::uint64_t at_bytes, std::uint64_t whole_bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double divisor = 1;
  while (unit + 1 < units.size() && static_cast<double>(whole_bytes) >= divisor * 1024) {
    divisor *= 1024;
    ++unit;
  }
  std::string text = show_number(static_cast<double>(at_bytes) / divisor, 4);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " " + units[unit];
}

/// Rounding and stale addresses are listed only if they occur.
bool is_in_legend(const picture_sums& sums, std::size_t kind) {
  const bool is_always =
      kind != index_of(extent_kind::rounding) && kind != index_of(extent_kind::stale);
  return is_always || sums.count[kind] != 0;
}

/// Addresses of other kinds have no memory of their own.
bool is_memory(std::size_t kind) {
  return kind != index_of(extent_kind::hole) && kind != index_of(extent_kind::stale);
}

struct legend_row {
  const char* name;
  const char* swatch;  ///< what fills it, as SVG attributes
  std::string amount;
  std::string share;
  std::string count;
  const char* meaning;
};

/// Moves `at` to the next row.
std::string draw_legend_row(const legend_row& row, point& at) {
  std::string out = "<rect x=\"" + std::to_string(at.x) + "\" y=\"" + std::to_string(at.y - 12) +
                    "\" width=\"22\" height=\"14\" " + row.swatch + "/>\n";
  out += text_at({at.x + 34, at.y}, row.name, "bold");
  out += text_at({at.x + 270, at.y}, row.amount, "end");
  out += text_at({at.x + 330, at.y}, row.share, "end");
  out += text_at({at.x + 430, at.y}, row.count, "end");
  out += text_at({at.x + 450, at.y}, row.meaning, "soft");
  at.y += 22;
  return out;
}

/// Moves `at` below the legend.
std::string draw_legend(const picture_sums& sums, std::uint64_t unmapped_bytes, point& at) {
  std::uint64_t memory_bytes = 0;
  for (std::size_t i = 0; i < styles.size(); ++i)
    memory_bytes += is_memory(i) ? sums.size_bytes[i] : 0;
  std::string out;
  for (std::size_t i = 0; i < styles.size(); ++i) {
    if (!is_in_legend(sums, i)) continue;
    const double share = memory_bytes == 0 ? 0
                                           : 100 * static_cast<double>(sums.size_bytes[i]) /
                                                 static_cast<double>(memory_bytes);
    const std::string swatch = std::string("fill=\"") + styles[i].colour + "\" class=\"frame\"";
    out +=
        draw_legend_row({styles[i].name, swatch.c_str(), show_bytes(sums.size_bytes[i]),
                         is_memory(i) ? show_number(share, 1) + " %" : "",
                         show_count(sums.count[i]) + (sums.count[i] == 1 ? " extent" : " extents"),
                         styles[i].meaning},
                        at);
  }
  if (unmapped_bytes != 0) {
    out += draw_legend_row({"free, unmapped", "class=\"outside\"", show_bytes(unmapped_bytes), "",
                            "", "memory kept without an address: it is not in the rows below"},
                           at);
  }
  at.y += 6;
  return out;
}

/// The rows' backgrounds (holes), their addresses, and the colours on them, in a group moved to
/// `at`.
std::string draw_rows(const strip& drawn, const scale& fitted, point at) {
  std::string out =
      "<g transform=\"translate(" + std::to_string(at.x) + " " + std::to_string(at.y) + ")\">\n";
  const std::uint64_t pixel_bytes = fitted.row_bytes / row_px;
  std::string ground;
  for (std::uint64_t row = 0; row < fitted.row_count; ++row) {
    const std::uint64_t begin = row * fitted.row_bytes;
    const std::uint64_t bytes =
        std::min(fitted.row_bytes, drawn.size_bytes - std::min(begin, drawn.size_bytes));
    const std::uint64_t width = (bytes + pixel_bytes - 1) / pixel_bytes;
    if (width != 0) ground += rectangle(0, row * row_pitch_px, width, row_height_px);
  }
  out += "<path fill=\"" + std::string(styles[index_of(extent_kind::hole)].colour) + "\" d=\"" +
         ground + "\"/>\n";
  const paths colours = draw_paths(drawn, fitted);
  for (std::size_t i = 0; i < colours.size(); ++i) {
    if (colours[i].empty()) continue;
    out += "<path fill=\"" + std::string(styles[index_of(drawn_upwards[i])].colour) + "\" d=\"" +
           colours[i] + "\"/>\n";
  }
  for (const std::uint64_t fold : drawn.folds) {
    const std::uint64_t x = fold % fitted.row_bytes / pixel_bytes;
    const std::uint64_t y = fold / fitted.row_bytes * row_pitch_px;
    out += "<path class=\"fold\" d=\"M" + std::to_string(x) + " " + std::to_string(y) + "v" +
           std::to_string(row_height_px) + "\"/>\n";
  }
  return out + "</g>\n";
}

std::string draw_axis(const strip& drawn, const scale& fitted, point at) {
  std::string out;
  for (std::uint64_t row = 0; row < fitted.row_count; ++row) {
    const std::uint64_t y = at.y + row * row_pitch_px + 15;
    out += text_at({at.x - 10, y}, axis_label(row * fitted.row_bytes, drawn.size_bytes), "end");
  }
  const std::uint64_t foot = at.y + fitted.row_count * row_pitch_px;
  constexpr std::uint64_t ticks = 4;
  for (std::uint64_t tick = 0; tick <= ticks; ++tick) {
    const std::uint64_t x = at.x + row_px * tick / ticks;
    out += "<path class=\"tick\" d=\"M" + std::to_string(x) + " " + std::to_string(foot - 2) +
           "v6\"/>\n";
    const std::string label = "+" + axis_label(fitted.row_bytes / ticks * tick, fitted.row_bytes);
    out += text_at({x, foot + 18}, label, "middle");
  }
  return out;
}

std::vector<std::string> reading_notes(const strip& drawn, const scale& fitted) {
  std::vector<std::string> out;
  out.push_back(
      "Each row is " + axis_label(fitted.row_bytes, fitted.row_bytes) +
      " of addresses; read them like text, left to right, then the next row. One pixel is " +
      axis_label(fitted.row_bytes / row_px, fitted.row_bytes / row_px) + " wide.");
  out.push_back(
      "Where extents are smaller than a pixel their colours stack in proportion, so an area always "
      "stands for its bytes.");
  if (!drawn.folds.empty()) {
    out.push_back("Dashed lines: " + show_count(drawn.folds.size()) +
                  " longer stretches without memory, " + show_bytes(drawn.folded_bytes) +
                  " in all, are not drawn.");
  }
  return out;
}

constexpr const char* style_sheet =
    "<style>\n"
    "text{font:13px 'DejaVu Sans',Verdana,sans-serif;fill:#1c1f23}\n"
    ".title{font-size:20px;font-weight:bold}.bold{font-weight:bold}.soft{fill:#5a6068}\n"
    ".end{text-anchor:end}.middle{text-anchor:middle}\n"
    ".frame{stroke:#9aa0a6}.outside{fill:none;stroke:#f4a442;stroke-width:2}.tick{stroke:#5a6068}."
    "fold{stroke:#1c1f23;stroke-width:2;stroke-"
    "dasharray:3 2}\n"
    "</style>\n";

/// A picture, laid out.
struct panel {
  const picture* what = nullptr;
  picture_sums sums;
  strip drawn;
};

/// Moves `at` below the picture.
std::string draw_panel(const panel& shown, std::uint64_t row_bytes, point& at) {
  const scale fitted = scale_of(shown.drawn.size_bytes, row_bytes);
  std::string body = text_at(at, shown.what->title, "title");
  at.y += 8;
  for (const std::string& line : shown.what->captions) body += text_at({at.x, at.y += 20}, line);
  at.y += 34;
  body += draw_legend(shown.sums, shown.what->unmapped_bytes, at);
  body += draw_rows(shown.drawn, fitted, {left_px, at.y});
  body += draw_axis(shown.drawn, fitted, {left_px, at.y});
  at.y += fitted.row_count * row_pitch_px + 34;
  for (const std::string& line : reading_notes(shown.drawn, fitted))
    body += text_at({at.x, at.y += 20}, line, "soft");
  for (const std::string& line : shown.what->notes)
    body += text_at({at.x, at.y += 20}, line, "soft");
  return body;
}

}  // namespace

picture_sums sum_of(const std::vector<extent>& extents) {
  picture_sums out;
  const std::vector<extent> used = used_part(extents);
  const auto hole = index_of(extent_kind::hole);
  bool in_hole = false;
  address expected = used.empty() ? address{} : used.front().range.base;
  for (const extent& e : used) {
    const std::uint64_t gap_bytes = e.range.base - expected;
    expected = e.range.end();
    out.size_bytes[hole] += gap_bytes;
    out.size_bytes[index_of(e.kind)] += e.range.size_bytes;
    const bool is_hole = e.kind == extent_kind::hole;
    if ((gap_bytes != 0 || is_hole) && !in_hole) ++out.count[hole];
    if (!is_hole) ++out.count[index_of(e.kind)];
    in_hole = is_hole;
  }
  return out;
}

std::string draw_svg(std::span<const picture> pictures) {
  std::vector<panel> panels;
  std::uint64_t row_bytes = 0;
  for (const picture& what : pictures) {
    const std::vector<extent> used = used_part(what.extents);
    panels.push_back({&what, sum_of(used), lay_out(used)});
    row_bytes = std::max(row_bytes, fit(panels.back().drawn.size_bytes).row_bytes);
  }
  std::string body;
  point at{40, 42};
  for (const panel& each : panels) {
    if (&each != &panels.front()) at.y += 64;
    body += draw_panel(each, row_bytes, at);
  }
  const std::string title = pictures.empty() ? "" : xml_text(pictures.front().title);
  const std::string width = std::to_string(left_px + row_px + right_px);
  const std::string height = std::to_string(at.y + 28);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
         "\" viewBox=\"0 0 " + width + " " + height + "\" role=\"img\">\n<title>" + title +
         "</title>\n" + style_sheet + "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
         body + "</svg>\n";
}

}  // namespace vmm::tools
