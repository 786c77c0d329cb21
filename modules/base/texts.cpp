// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.base;

import vmm.std;

namespace vmm {
namespace {

// Filled from the start; an entry that is set stays as it is.
constinit std::array<std::atomic<const char*>, kept_count_max> kept{};

const char* copy_of(std::string_view text) noexcept {
  check(text.size() < detail_bytes_max, "a detail exceeds the largest text");
  char* const copy = new (std::nothrow) char[text.size() + 1];
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace

detail_text& detail_text::add(std::string_view part) noexcept {
  check(size_ <= room_bytes + cut_mark.size(), "a text is longer than its room");
  if (is_cut_) return *this;
  const std::size_t fitting = std::min(part.size(), room_bytes - size_);
  if (fitting != 0) std::memcpy(text_ + size_, part.data(), fitting);
  size_ += fitting;
  if (fitting == part.size()) return *this;
  is_cut_ = true;
  std::memcpy(text_ + size_, cut_mark.data(), cut_mark.size());
  size_ += cut_mark.size();
  return *this;
}

detail_text& detail_text::add_number(std::uint64_t number) noexcept {
  char digits[20] = {};
  std::size_t first = sizeof digits;
  for (std::uint64_t left = number; first == sizeof digits || left != 0; left /= 10) {
    check(first > 0, "a number of 64 bits has more than 20 digits");
    digits[--first] = static_cast<char>('0' + left % 10);
  }
  return add({digits + first, sizeof digits - first});
}

const char* detail_text::keep(const char* otherwise) const noexcept {
  check(otherwise != nullptr, "keep() has no text to return when it is full");
  const char* mine = nullptr;
  for (std::atomic<const char*>& each : kept) {
    const char* there = each.load(std::memory_order_acquire);
    if (there == nullptr) {
      if (mine == nullptr) mine = copy_of(text());
      if (mine == nullptr) return otherwise;
      if (each.compare_exchange_strong(there, mine, std::memory_order_acq_rel)) return mine;
      check(there != nullptr, "an entry failed to be set but is empty");
    }
    if (text() != there) continue;
    delete[] mine;
    return there;
  }
  delete[] mine;
  return otherwise;
}

}  // namespace vmm
