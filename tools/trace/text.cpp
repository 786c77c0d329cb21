// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a file as text.
module vmm.trace;

import vmm.std;

namespace vmm::tools {

namespace {

// The number of bytes of the first character; 0 if it is invalid: a byte out of place, one that is
// cut short, one in more bytes than it needs, a surrogate, or one behind the last.
[[nodiscard]] std::size_t length_of_character(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) < 0xc0   ? 0
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf8 ? 4
                                              : 0;
  if (length == 0 || bytes.size() < length) return 0;
  std::uint32_t code = byte(0) & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t least[] = {0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= least[length - 2] && code <= 0x10ffff && !is_surrogate ? length : 0;
}

}  // namespace

std::string to_utf8(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t length = length_of_character(bytes);
    out += length != 0 ? bytes.substr(0, length) : "\xef\xbf\xbd";
    bytes.remove_prefix(length != 0 ? length : 1);
  }
  return out;
}

std::string one_line(std::string_view bytes) {
  std::string out = to_utf8(bytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto code = static_cast<unsigned char>(out[i]);
    if (code < 0x20 || code == 0x7f) out[i] = '?';
    const bool is_c1 = code == 0xc2 && static_cast<unsigned char>(out[i + 1]) < 0xa0;
    if (is_c1) out.replace(i, 2, "?");
  }
  return out;
}

}  // namespace vmm::tools
