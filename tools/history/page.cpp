// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The viewer's page: its program as it stands in tools/view, and the histories behind it as base64
// of
// what zlib makes of the file format.
module;
#include <zlib.h>

module vmm.history_tools;

import vmm.backend;
import vmm.history;
import vmm.std;

namespace vmm::tools {

// Generated from tools/view/page.html, in a file that belongs to no module.
extern "C++" {
extern const char* const page_parts[];
extern const std::size_t page_part_count;
}

namespace {

[[nodiscard]] std::string compressed(std::span<const std::byte> bytes) {
  uLongf size = ::compressBound(static_cast<uLong>(bytes.size()));
  std::string out(size, '\0');
  const int done = ::compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                               reinterpret_cast<const Bytef*>(bytes.data()),
                               static_cast<uLong>(bytes.size()), 6);
  if (done != Z_OK) throw std::runtime_error("zlib does not compress a history");
  out.resize(size);
  return out;
}

[[nodiscard]] std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve(bytes.size() / 3 * 4 + 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    const std::size_t count = bytes.size() - i < 3 ? bytes.size() - i : 3;
    for (std::size_t j = 0; j < 3; ++j)
      word = word << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j) out += j <= count ? digits[word >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

// In a script of a page: nothing in it ends the string or the script.
[[nodiscard]] std::string script_text(std::string_view text) {
  std::string out;
  for (const char each : text) {
    const bool is_plain = (each >= ' ' && each <= '~') && each != '"' && each != '\\' &&
                          each != '<' && each != '>' && each != '&';
    out += is_plain ? each : '_';
  }
  return out;
}

// What the page's numbers hold without rounding.
constexpr std::uint64_t page_number_max = std::uint64_t{1} << 53;

[[nodiscard]] bool has_address(history_kind kind) noexcept {
  return kind < history_kind::grow || kind == history_kind::served;
}

// A history whose addresses are too high for the page, with addresses that are lower by a multiple
// of 1 GiB, which a fact names. Others are returned as they are.
[[nodiscard]] history lowered(const history& taken) {
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t highest = 0;
  const auto see = [&](std::uint64_t at) {
    if (at == 0) return;
    lowest = std::min(lowest, at);
    highest = std::max(highest, at);
  };
  for (const history_event& each : taken.events) {
    if (has_address(each.kind)) see(each.at.value);
  }
  for (const history_region& each : taken.regions) see(each.where.base.value);
  for (const history_mapping& each : taken.mappings) see(each.where.base.value);
  history out = taken;
  if (highest < page_number_max || highest - lowest > page_number_max / 2) return out;
  const std::uint64_t offset = (lowest >> 30 << 30) - (std::uint64_t{1} << 30);
  const auto lower = [&](std::uint64_t& at) { at -= at >= offset ? offset : 0; };
  for (history_event& each : out.events) {
    if (!has_address(each.kind)) continue;
    lower(each.at.value);
    const bool has_other = each.kind == history_kind::resized ||
                           each.kind == history_kind::mapped || each.kind == history_kind::remapped;
    if (has_other) lower(each.detail);
  }
  for (history_region& each : out.regions) lower(each.where.base.value);
  for (history_mapping& each : out.mappings) lower(each.where.base.value);
  out.facts.push_back({"addresses_shown_from", hexadecimal(offset)});
  return out;
}

}  // namespace

std::string to_page(const std::vector<named_history>& shown) {
  std::string page;
  for (std::size_t i = 0; i < page_part_count; ++i) page += page_parts[i];
  std::string data;
  for (const named_history& each : shown) {
    const result<std::vector<std::byte>> bytes = encode_history(lowered(each.taken));
    if (!bytes) throw std::runtime_error(bytes.error().detail);
    if (!data.empty()) data += ",\n";
    data += "{name:\"" + script_text(each.name) + "\",data:\"" + base64(compressed(*bytes)) + "\"}";
  }
  constexpr std::string_view mark = "/*HISTORIES*/";
  const std::size_t at = page.find(mark);
  if (at == std::string::npos) throw std::runtime_error("the page has no place for histories");
  page.replace(at, mark.size(), data);
  return page;
}

}  // namespace vmm::tools
