// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - what memory holds.
module vmm.fake;

import vmm.backend;
import :contents;
import vmm.std;
import vmm.support;

namespace vmm::fake {

namespace {

// One period of the pattern, then each time as much again as is there.
void spread(std::span<std::byte> target, std::uint64_t pattern, std::uint64_t phase) {
  static_assert(std::endian::native == std::endian::little);
  check(!target.empty(), "a pattern is spread over nothing");
  const std::uint64_t period = std::rotr(pattern, static_cast<int>(8 * (phase % 8)));
  std::size_t done = std::min(target.size(), sizeof period);
  std::memcpy(target.data(), &period, done);
  while (done < target.size()) {
    const std::size_t step = std::min(done, target.size() - done);
    std::memcpy(target.data() + done, target.data(), step);
    done += step;
  }
}

}  // namespace

void contents::set_granule(std::uint64_t granule, std::uint64_t pattern) {
  check(granule < size_bytes_ / granule_bytes_, past_end);
  if (patterns_.empty()) {
    if (pattern == uniform_) {
      overlays_.erase(granule);
      return;
    }
    patterns_.assign(size_bytes_ / granule_bytes_, uniform_);
  }
  check(patterns_.size() == size_bytes_ / granule_bytes_, "a granule has no pattern");
  patterns_[granule] = pattern;
  overlays_.erase(granule);
}

contents::pages& contents::make_overlay(std::uint64_t granule) {
  check(granule < size_bytes_ / granule_bytes_, past_end);
  const auto found = overlays_.find(granule);
  if (found != overlays_.end()) return found->second;
  pages fresh(granule_bytes_ / page_bytes);
  for (page& each : fresh) each.pattern = pattern_of(granule);
  return overlays_.emplace(granule, std::move(fresh)).first->second;
}

void contents::make_bytes(page& target) {
  if (target.bytes) return;
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(page_bytes);
  spread({bytes.get(), page_bytes}, target.pattern, 0);
  target.bytes = std::move(bytes);
}

void contents::fill(std::uint64_t offset, std::uint64_t size_bytes, std::uint64_t pattern) {
  check(has_all(offset, size_bytes), past_end);
  if (offset == 0 && size_bytes == size_bytes_) {
    uniform_ = pattern;
    patterns_.clear();
    overlays_.clear();
    return;
  }
  while (size_bytes > 0) {
    const std::uint64_t granule = offset / granule_bytes_;
    const std::uint64_t inside = offset % granule_bytes_;
    const std::uint64_t step = std::min(size_bytes, granule_bytes_ - inside);
    if (step == granule_bytes_) {
      set_granule(granule, pattern);
    } else {
      fill_part(make_overlay(granule), inside, step, pattern);
    }
    offset += step;
    size_bytes -= step;
  }
}

void contents::fill_part(pages& overlay, std::uint64_t inside, std::uint64_t size_bytes,
                         std::uint64_t pattern) {
  check(inside + size_bytes <= overlay.size() * page_bytes, "a fill runs out of its granule");
  while (size_bytes > 0) {
    page& target = overlay[inside / page_bytes];
    const std::uint64_t in_page = inside % page_bytes;
    const std::uint64_t step = std::min(size_bytes, page_bytes - in_page);
    if (step == page_bytes) {
      target.pattern = pattern;
      target.bytes.reset();
    } else if (target.bytes || target.pattern != pattern) {
      make_bytes(target);
      spread({target.bytes.get() + in_page, step}, pattern, in_page);
    }
    inside += step;
    size_bytes -= step;
  }
}

std::uint64_t contents::word(std::uint64_t offset) const noexcept {
  const place here = at(offset - offset % 8);
  const pages* overlay = overlay_of(here.granule);
  if (overlay == nullptr) return pattern_of(here.granule);
  check(here.page < overlay->size(), past_end);
  const page& from = (*overlay)[here.page];
  if (!from.bytes) return from.pattern;
  std::uint64_t value = 0;
  for (std::uint64_t i = 0; i < 8; ++i) {
    value |= std::to_integer<std::uint64_t>(from.bytes[here.in_page + i]) << (8 * i);
  }
  return value;
}

void contents::write(std::uint64_t offset, std::span<const std::byte> source) {
  check(has_all(offset, source.size()), past_end);
  while (!source.empty()) {
    const place here = at(offset);
    const auto step = std::min<std::uint64_t>(source.size(), page_bytes - here.in_page);
    page& target = make_overlay(here.granule)[here.page];
    make_bytes(target);
    std::memcpy(target.bytes.get() + here.in_page, source.data(), step);
    source = source.subspan(step);
    offset += step;
  }
}

void contents::read(std::uint64_t offset, std::span<std::byte> target) const noexcept {
  check(has_all(offset, target.size()), past_end);
  while (!target.empty()) {
    const place here = at(offset);
    const auto step = std::min<std::uint64_t>(target.size(), page_bytes - here.in_page);
    const pages* overlay = overlay_of(here.granule);
    if (overlay != nullptr && (*overlay)[here.page].bytes) {
      std::memcpy(target.data(), (*overlay)[here.page].bytes.get() + here.in_page, step);
    } else {
      const std::uint64_t pattern =
          overlay != nullptr ? (*overlay)[here.page].pattern : pattern_of(here.granule);
      spread(target.first(step), pattern, offset);
    }
    target = target.subspan(step);
    offset += step;
  }
}

std::optional<std::uint64_t> contents::uniform(std::uint64_t offset,
                                               std::uint64_t size_bytes) const noexcept {
  check(has_all(offset, size_bytes), past_end);
  std::optional<std::uint64_t> all;
  while (size_bytes > 0) {
    const place here = at(offset);
    const pages* overlay = overlay_of(here.granule);
    std::uint64_t pattern = 0;
    std::uint64_t step = granule_bytes_ - offset % granule_bytes_;
    if (overlay == nullptr) {
      pattern = pattern_of(here.granule);
    } else if ((*overlay)[here.page].bytes) {
      return std::nullopt;
    } else {
      pattern = (*overlay)[here.page].pattern;
      step = page_bytes - here.in_page;
    }
    if (all && *all != pattern) return std::nullopt;
    all = pattern;
    step = std::min(step, size_bytes);
    offset += step;
    size_bytes -= step;
  }
  return all;
}

void contents::copy_granule(std::uint64_t granule, const contents& source,
                            std::uint64_t source_granule) {
  check(granule_bytes_ == source.granule_bytes_, "granules of two sizes are copied as wholes");
  check(granule < size_bytes_ / granule_bytes_, past_end);
  const pages* overlay = source.overlay_of(source_granule);
  if (overlay == nullptr) {
    set_granule(granule, source.pattern_of(source_granule));
    return;
  }
  check(overlay->size() == granule_bytes_ / page_bytes, "the pages of a granule are not all of it");
  pages copied(overlay->size());
  for (std::size_t i = 0; i < copied.size(); ++i) {
    const page& from = (*overlay)[i];
    copied[i].pattern = from.pattern;
    if (!from.bytes) continue;
    copied[i].bytes = std::make_unique<std::byte[]>(page_bytes);
    std::memcpy(copied[i].bytes.get(), from.bytes.get(), page_bytes);
  }
  overlays_.insert_or_assign(granule, std::move(copied));
}

void contents::copy_part(std::uint64_t offset, const contents& source, std::uint64_t source_offset,
                         std::uint64_t size_bytes) {
  check(has_all(offset, size_bytes), past_end);
  if (const auto pattern = source.uniform(source_offset, size_bytes)) {
    const int shift = static_cast<int>(8 * ((offset - source_offset) % 8));
    fill(offset, size_bytes, std::rotl(*pattern, shift));
    return;
  }
  std::byte buffer[page_bytes];
  while (size_bytes > 0) {
    const auto step = std::min(size_bytes, page_bytes - offset % page_bytes);
    if (const auto pattern = source.uniform(source_offset, step)) {
      const int shift = static_cast<int>(8 * ((offset - source_offset) % 8));
      fill(offset, step, std::rotl(*pattern, shift));
    } else {
      source.read(source_offset, {buffer, step});
      write(offset, {buffer, step});
    }
    offset += step;
    source_offset += step;
    size_bytes -= step;
  }
}

void contents::copy(std::uint64_t offset, const contents& source, std::uint64_t source_offset,
                    std::uint64_t size_bytes) {
  check(has_all(offset, size_bytes) && source.has_all(source_offset, size_bytes), past_end);
  const bool same_granules = granule_bytes_ == source.granule_bytes_;
  while (size_bytes > 0) {
    const std::uint64_t in_granule = offset % granule_bytes_;
    const std::uint64_t step = std::min(size_bytes, granule_bytes_ - in_granule);
    if (same_granules && step == granule_bytes_ && source_offset % granule_bytes_ == 0) {
      copy_granule(offset / granule_bytes_, source, source_offset / granule_bytes_);
    } else {
      copy_part(offset, source, source_offset, step);
    }
    offset += step;
    source_offset += step;
    size_bytes -= step;
  }
}

}  // namespace vmm::fake
