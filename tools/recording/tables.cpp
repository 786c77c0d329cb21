// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.recording - tables and bytes.
module vmm.recording;

import vmm.std;

namespace vmm::tools {

namespace {

constexpr std::uint64_t text_bytes_each = 65536;
constexpr std::uint64_t frames_each = 1024;
constexpr std::uint16_t last_number = 0xffff;

[[nodiscard]] std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccd;
}

}  // namespace

const recorded_setting* recording::find_setting(std::string_view name) const {
  for (const recorded_setting& each : settings)
    if (each.name == name) return &each;
  return nullptr;
}

std::uint32_t recording_tables::text(std::string_view what) {
  if (what.empty()) return 0;
  what = what.substr(0, text_bytes_each);
  if (const auto found = texts_.find(what); found != texts_.end()) return found->second;
  const bool has_room = into_.texts.size() < recording_limits::texts &&
                        text_bytes_ + what.size() <= recording_limits::text_bytes;
  if (!has_room) {
    ++into_.dropped_text_count;
    return 0;
  }
  text_bytes_ += what.size();
  const auto number = static_cast<std::uint32_t>(into_.texts.size());
  into_.texts.emplace_back(what);
  texts_.emplace(into_.texts.back(), number);
  return number;
}

std::uint32_t recording_tables::frame(const recorded_frame& what) {
  const auto [found, is_new] = frames_.try_emplace({what.file, what.function, what.line},
                                                   static_cast<std::uint32_t>(into_.frames.size()));
  if (is_new) into_.frames.push_back(what);
  return found->second;
}

bool recording_tables::is_stack(std::uint32_t number, std::span<const std::uint32_t> frames) const {
  const recorded_range& known = into_.stacks[number];
  return known.count == frames.size() &&
         std::equal(frames.begin(), frames.end(),
                    into_.stack_frames.begin() + static_cast<std::ptrdiff_t>(known.first));
}

std::uint32_t recording_tables::stack(std::span<const std::uint32_t> frames) {
  if (frames.empty()) return 0;
  frames = frames.first(std::min<std::size_t>(frames.size(), frames_each));
  std::uint64_t hash = frames.size();
  for (const std::uint32_t each : frames) hash = mix(hash, each);
  auto found = stacks_.find(hash);
  while (found != stacks_.end() && !is_stack(found->second, frames))
    found = stacks_.find(hash = mix(hash, 1));
  if (found != stacks_.end()) return found->second;
  if (into_.stack_frames.size() + frames.size() > recording_limits::stack_frames) {
    ++into_.dropped_stack_count;
    return 0;
  }
  const auto number = static_cast<std::uint32_t>(into_.stacks.size());
  into_.stacks.push_back({into_.stack_frames.size(), frames.size()});
  into_.stack_frames.insert(into_.stack_frames.end(), frames.begin(), frames.end());
  stacks_.emplace(hash, number);
  return number;
}

std::uint32_t recording_tables::context(const recorded_context& what) {
  if (what.stack == 0 && what.tag == 0) return 0;
  const auto [found, is_new] =
      contexts_.try_emplace(std::uint64_t{what.stack} << 32 | what.tag,
                            static_cast<std::uint32_t>(into_.contexts.size()));
  if (is_new) into_.contexts.push_back(what);
  return found->second;
}

// More streams or pools than numbers share the last number.
std::uint16_t recording_tables::stream(std::uint64_t handle) {
  if (const auto found = streams_.find(handle); found != streams_.end()) return found->second;
  if (into_.streams.size() > last_number) return last_number;
  const auto number = static_cast<std::uint16_t>(into_.streams.size());
  into_.streams.push_back(handle);
  streams_.emplace(handle, number);
  return number;
}

std::uint16_t recording_tables::pool(std::uint64_t owner, std::uint64_t number) {
  const std::pair name{owner, number};
  if (const auto found = pools_.find(name); found != pools_.end()) return found->second;
  if (into_.pools.size() > last_number) return last_number;
  const auto place = static_cast<std::uint16_t>(into_.pools.size());
  into_.pools.push_back(name);
  pools_.emplace(name, place);
  return place;
}

// Another device may have begun before: the origin lies half of the range back.
std::uint64_t recording_tables::time(std::uint64_t us) {
  constexpr std::uint64_t half = std::uint64_t{1} << 47;
  if (!has_origin_) into_.time_origin_us = us > half ? us - half : 0;
  has_origin_ = true;
  const std::uint64_t since = us > into_.time_origin_us ? us - into_.time_origin_us : 0;
  return std::min(since, 2 * half - 1);
}

// ---- bytes ----------------------------------------------------------------------------

std::string_view byte_reader::peek() {
  if (!left_.empty()) return left_;
  left_ = source_.next();
  fetched_bytes_ += left_.size();
  if (progress_ && ++block_count_ % 256 == 0) progress_(source_.read_bytes(), source_.size_bytes());
  return left_;
}

bool byte_reader::take(std::uint64_t count, std::uint64_t kept_max, std::string& into) {
  into.clear();
  while (count != 0) {
    const std::string_view some = peek();
    if (some.empty()) return false;
    const std::size_t used = std::min<std::uint64_t>(count, some.size());
    const std::uint64_t room = kept_max - into.size();
    into.append(some.substr(0, std::min<std::uint64_t>(used, room)));
    skip(used);
    count -= used;
  }
  return true;
}

bool byte_reader::take_number(std::size_t count, std::uint64_t& into) {
  into = 0;
  for (std::size_t i = 0; i < count; ++i) {
    unsigned char byte = 0;
    if (!take(byte)) return false;
    into |= std::uint64_t{byte} << (8 * i);
  }
  return true;
}

}  // namespace vmm::tools
