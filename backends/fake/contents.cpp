// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - what memory holds.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :contents;

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

contents::runs& contents::make_overlay(std::uint64_t granule) {
  check(granule < size_bytes_ / granule_bytes_, past_end);
  const auto found = overlays_.find(granule);
  if (found != overlays_.end()) return found->second;
  runs fresh(1);
  fresh.front().pattern = pattern_of(granule);
  return overlays_.emplace(granule, std::move(fresh)).first->second;
}

// ---- the runs of one granule

std::size_t contents::run_at(const runs& of, std::uint64_t inside) noexcept {
  check(!of.empty() && of.front().begin == 0, "I1: the runs of a granule are not all of it");
  const auto behind =
      std::upper_bound(of.begin(), of.end(), inside,
                       [](std::uint64_t at, const run& each) { return at < each.begin; });
  return static_cast<std::size_t>(behind - of.begin()) - 1;
}

std::uint64_t contents::end_of(const runs& of, std::size_t index) const noexcept {
  return index + 1 < of.size() ? of[index + 1].begin : granule_bytes_;
}

std::size_t contents::cut(runs& of, std::uint64_t inside) const {
  if (inside == granule_bytes_) return of.size();
  const std::size_t index = run_at(of, inside);
  if (of[index].begin == inside) return index;
  check(!of[index].bytes, "I2: a page of bytes is cut");
  run rest;
  rest.begin = inside;
  rest.pattern = of[index].pattern;
  of.insert(of.begin() + static_cast<std::ptrdiff_t>(index) + 1, std::move(rest));
  return index + 1;
}

std::byte* contents::make_bytes(runs& of, std::uint64_t inside) const {
  const std::uint64_t begin = inside - inside % page_bytes;
  const std::size_t there = run_at(of, begin);
  if (of[there].bytes) return of[there].bytes.get();
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(page_bytes);
  read_part(of, begin, {bytes.get(), page_bytes});
  const std::size_t first = cut(of, begin);
  const std::size_t behind = cut(of, begin + page_bytes);
  of[first].bytes = std::move(bytes);
  of.erase(of.begin() + static_cast<std::ptrdiff_t>(first) + 1,
           of.begin() + static_cast<std::ptrdiff_t>(behind));
  return of[first].bytes.get();
}

// A page of bytes of which the part holds only some stays one.
void contents::fill_part(runs& of, std::uint64_t inside, std::uint64_t size_bytes,
                         std::uint64_t pattern) const {
  std::uint64_t end = inside + size_bytes;
  check(size_bytes != 0 && end <= granule_bytes_, "a fill runs out of its granule");
  const auto is_bytes = [&](std::uint64_t at) {
    return of.size() >= runs_max || of[run_at(of, at)].bytes != nullptr;
  };
  if (inside % page_bytes != 0 && is_bytes(inside)) {
    const std::uint64_t step = std::min(end - inside, page_bytes - inside % page_bytes);
    spread({make_bytes(of, inside) + inside % page_bytes, step}, pattern, inside);
    inside += step;
  }
  if (inside < end && end % page_bytes != 0 && is_bytes(end - 1)) {
    const std::uint64_t begin = std::max(inside, end - end % page_bytes);
    spread({make_bytes(of, begin) + begin % page_bytes, end - begin}, pattern, begin);
    end = begin;
  }
  if (inside == end) return;
  std::size_t first = cut(of, inside);
  std::size_t behind = cut(of, end);
  of[first].pattern = pattern;
  of[first].bytes.reset();
  const auto goes_on = [&](std::size_t at) { return !of[at].bytes && of[at].pattern == pattern; };
  if (behind < of.size() && goes_on(behind)) ++behind;
  if (first > 0 && goes_on(first - 1)) --first;
  of.erase(of.begin() + static_cast<std::ptrdiff_t>(first) + 1,
           of.begin() + static_cast<std::ptrdiff_t>(behind));
}

void contents::read_part(const runs& of, std::uint64_t inside,
                         std::span<std::byte> target) const noexcept {
  check(inside + target.size() <= granule_bytes_, past_end);
  for (std::size_t i = run_at(of, inside); !target.empty(); ++i) {
    const auto step = std::min<std::uint64_t>(target.size(), end_of(of, i) - inside);
    if (of[i].bytes) {
      std::memcpy(target.data(), of[i].bytes.get() + (inside - of[i].begin), step);
    } else {
      spread(target.first(step), of[i].pattern, inside);
    }
    target = target.subspan(step);
    inside += step;
  }
}

// ---- the whole

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

std::uint64_t contents::word(std::uint64_t offset) const noexcept {
  const std::uint64_t first = offset - offset % 8;
  check(first < size_bytes_, past_end);
  const runs* overlay = overlay_of(first / granule_bytes_);
  if (overlay == nullptr) return pattern_of(first / granule_bytes_);
  const std::uint64_t inside = first % granule_bytes_;
  const std::size_t index = run_at(*overlay, inside);
  const run& from = (*overlay)[index];
  if (!from.bytes && end_of(*overlay, index) - inside >= 8) return from.pattern;
  std::uint64_t value = 0;
  read_part(*overlay, inside, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

void contents::write(std::uint64_t offset, std::span<const std::byte> source) {
  check(has_all(offset, source.size()), past_end);
  while (!source.empty()) {
    const std::uint64_t inside = offset % granule_bytes_;
    const auto step = std::min<std::uint64_t>(source.size(), page_bytes - inside % page_bytes);
    std::byte* const page = make_bytes(make_overlay(offset / granule_bytes_), inside);
    std::memcpy(page + inside % page_bytes, source.data(), step);
    source = source.subspan(step);
    offset += step;
  }
}

void contents::read(std::uint64_t offset, std::span<std::byte> target) const noexcept {
  check(has_all(offset, target.size()), past_end);
  while (!target.empty()) {
    const std::uint64_t granule = offset / granule_bytes_;
    const std::uint64_t inside = offset % granule_bytes_;
    const auto step = std::min<std::uint64_t>(target.size(), granule_bytes_ - inside);
    const runs* overlay = overlay_of(granule);
    if (overlay != nullptr) {
      read_part(*overlay, inside, target.first(step));
    } else {
      spread(target.first(step), pattern_of(granule), inside);
    }
    target = target.subspan(step);
    offset += step;
  }
}

contents::part contents::part_at(std::uint64_t offset, std::uint64_t limit_bytes) const noexcept {
  check(limit_bytes != 0 && has_all(offset, limit_bytes), past_end);
  const std::uint64_t granule = offset / granule_bytes_;
  const std::uint64_t inside = offset % granule_bytes_;
  const runs* overlay = overlay_of(granule);
  if (overlay == nullptr)
    return {std::min(limit_bytes, granule_bytes_ - inside), pattern_of(granule), false};
  const std::size_t index = run_at(*overlay, inside);
  const run& at = (*overlay)[index];
  return {std::min(limit_bytes, end_of(*overlay, index) - inside), at.pattern, at.bytes != nullptr};
}

void contents::copy_granule(std::uint64_t granule, const contents& source,
                            std::uint64_t source_granule) {
  check(granule_bytes_ == source.granule_bytes_, "granules of two sizes are copied as wholes");
  check(granule < size_bytes_ / granule_bytes_, past_end);
  const runs* overlay = source.overlay_of(source_granule);
  if (overlay == nullptr) {
    set_granule(granule, source.pattern_of(source_granule));
    return;
  }
  runs copied(overlay->size());
  for (std::size_t i = 0; i < copied.size(); ++i) {
    const run& from = (*overlay)[i];
    copied[i].begin = from.begin;
    copied[i].pattern = from.pattern;
    if (!from.bytes) continue;
    copied[i].bytes = std::make_unique_for_overwrite<std::byte[]>(page_bytes);
    std::memcpy(copied[i].bytes.get(), from.bytes.get(), page_bytes);
  }
  overlays_.insert_or_assign(granule, std::move(copied));
}

void contents::copy_part(std::uint64_t offset, const contents& source, std::uint64_t source_offset,
                         std::uint64_t size_bytes) {
  check(has_all(offset, size_bytes), past_end);
  std::byte buffer[page_bytes];
  while (size_bytes > 0) {
    const part next = source.part_at(source_offset, size_bytes);
    if (next.is_bytes) {
      const std::span<std::byte> moved(buffer, next.size_bytes);
      source.read(source_offset, moved);
      write(offset, moved);
    } else {
      const int shift = static_cast<int>(8 * ((offset - source_offset) % 8));
      fill(offset, next.size_bytes, std::rotl(next.pattern, shift));
    }
    offset += next.size_bytes;
    source_offset += next.size_bytes;
    size_bytes -= next.size_bytes;
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
