// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Pages for a browser: their programs as they stand in tools/view. The viewer's has its histories
// as base64 of the file format compressed by zlib, fit's has its document as it is.
module;
#include <zlib.h>

module vmm.history_tools;

import vmm.backend;
import vmm.observe;
import vmm.std;
import vmm.trace;

namespace vmm::tools {

// Generated from tools/view, in files that belong to no module.
extern "C++" {
extern const char* const page_parts[];
extern const std::size_t page_part_count;
extern const char* const fit_parts[];
extern const std::size_t fit_part_count;
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

// The page of these parts, with `data` in place of the mark.
[[nodiscard]] std::string filled(std::span<const char* const> parts, std::string_view mark,
                                 const std::string& data) {
  std::string page;
  for (const char* const each : parts) page += each;
  const std::size_t at = page.find(mark);
  if (at == std::string::npos) throw std::runtime_error("the page has no " + std::string(mark));
  return page.replace(at, mark.size(), data);
}

}  // namespace

std::string to_page(const std::vector<named_history>& shown) {
  std::string data;
  for (const named_history& each : shown) {
    const result<std::vector<std::byte>> bytes = encode_history(each.taken);
    if (!bytes) throw std::runtime_error(bytes.error().detail);
    if (!data.empty()) data += ",\n";
    data += "{name:\"" + script_text(each.name) + "\",data:\"" + base64(compressed(*bytes)) + "\"}";
  }
  return filled({page_parts, page_part_count}, "/*HISTORIES*/", data);
}

std::string to_fit_page(std::string_view document) {
  std::string data;
  for (const char each : to_utf8(document)) {
    if (each == '<') {
      data += "\\u003c";  // nothing in a string ends the script
    } else {
      data += each;
    }
  }
  return filled({fit_parts, fit_part_count}, "/*DOCUMENT*/null", data);
}

}  // namespace vmm::tools
