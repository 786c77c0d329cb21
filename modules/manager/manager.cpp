// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

module vmm.manager;

import vmm.backend;
import vmm.intrusive;
import vmm.optimizer;
import vmm.sync;

namespace vmm {

policy policy::va_pool() noexcept { return policy{}; }

policy policy::keep_mapped() noexcept {
  policy rules;
  rules.name = "keep_mapped";
  rules.on_free = free_rule::keep_mapped;
  return rules;
}

policy policy::virtual_caching() noexcept {
  policy rules;
  rules.name = "virtual_caching";
  rules.on_free = free_rule::keep_mapped;
  rules.grow_cached = true;
  rules.unbind_cached = true;
  rules.fragment_ratio = 0;
  rules.chunk_bytes = std::uint64_t{20} << 20;
  return rules;
}

result<policy> policy::by_name(std::string_view name) noexcept {
  for (const policy& known : {va_pool(), keep_mapped(), virtual_caching()}) {
    if (name == known.name) return known;
  }
  return refuse(errc::bad_option, "a policy is one of va_pool, keep_mapped, virtual_caching");
}

namespace {

// No device has more address space.
constexpr std::uint64_t option_bytes_max = std::uint64_t{1} << 56;

}  // namespace

status manager_options::validate() const noexcept {
  // Not a number compares false with everything.
  if (!(rules.fragment_ratio >= 0 && rules.fragment_ratio <= 1)) {
    return refuse(errc::bad_option, "policy::fragment_ratio is a number from 0 to 1");
  }
  if (rules.chunk_bytes > option_bytes_max) {
    return refuse(errc::bad_option, "policy::chunk_bytes is at most 2^56, or 0 for no chunks");
  }
  if (reservation_bytes == 0 || reservation_bytes > option_bytes_max) {
    return refuse(errc::bad_option, "manager_options::reservation_bytes is from 1 to 2^56");
  }
  return {};
}

result<manager_options> manager_options::from_environment(const manager_options& base) noexcept {
  manager_options options = base;
  if (const char* name = std::getenv("VMM_POLICY"); name != nullptr && *name != '\0') {
    const result<policy> rules = policy::by_name(name);
    if (!rules) {
      return refuse(errc::bad_option,
                    "VMM_POLICY takes one of va_pool, keep_mapped, virtual_caching");
    }
    options.rules = *rules;
  }
  constexpr const char* ratio_detail = "VMM_FRAG_RATIO takes a number from 0 to 1, such as 0.25";
  status read = read_number_option("VMM_FRAG_RATIO", options.rules.fragment_ratio, ratio_detail);
  if (read && !(options.rules.fragment_ratio >= 0 && options.rules.fragment_ratio <= 1)) {
    read = refuse(errc::bad_option, ratio_detail);
  }
  constexpr const char* chunk_detail =
      "VMM_CHUNK_SIZE takes bytes with a unit, such as 20MiB, at most 64PiB, or 0 for no chunks";
  if (read) read = read_bytes_option("VMM_CHUNK_SIZE", options.rules.chunk_bytes, chunk_detail);
  if (read && options.rules.chunk_bytes > option_bytes_max) {
    read = refuse(errc::bad_option, chunk_detail);
  }
  constexpr const char* space_detail =
      "VMM_VA_SIZE takes bytes with a unit, such as 8TiB, not 0 and at most 64PiB";
  if (read) read = read_bytes_option("VMM_VA_SIZE", options.reservation_bytes, space_detail);
  if (read && (options.reservation_bytes == 0 || options.reservation_bytes > option_bytes_max)) {
    read = refuse(errc::bad_option, space_detail);
  }
  if (read) {
    read =
        read_bytes_option("VMM_BUDGET", options.budget_bytes,
                          "VMM_BUDGET takes bytes with a unit, such as 40GiB, or 0 for no budget");
  }
  if (read) read = options.validate();
  if (!read) return read.error();
  return options;
}

void range_cache::put(block& freed) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  by_size_.insert(freed, freed.sizes.mapped_bytes);
  size_bytes_ += freed.sizes.mapped_bytes;
}

block* range_cache::take(index_node* found) noexcept {
  if (found == nullptr) return nullptr;
  auto& taken = static_cast<block&>(*found);
  by_size_.erase(taken);
  size_bytes_ -= taken.sizes.mapped_bytes;
  return &taken;
}

block* range_cache::take_exact(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  index_node* const found = by_size_.at_least(mapped_bytes);
  return take(found != nullptr && found->key == mapped_bytes ? found : nullptr);
}

block* range_cache::take_smaller(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return mapped_bytes == 0 ? nullptr : take(by_size_.at_most(mapped_bytes - 1));
}

block* range_cache::take_larger(std::uint64_t mapped_bytes) noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return take(by_size_.at_least(mapped_bytes + 1));
}

block* range_cache::take_largest() noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return take(by_size_.last());
}

std::size_t range_cache::size() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return by_size_.size();
}

std::uint64_t range_cache::size_bytes() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  return size_bytes_;
}

bool range_cache::validate() const noexcept {
  const sync::lock_guard<sync::mutex> lock(mutex_);
  if (!by_size_.validate()) return false;
  std::uint64_t sum_bytes = 0;
  for (const index_node* node = by_size_.first(); node != nullptr; node = by_size_.next(*node)) {
    const auto& cached = static_cast<const block&>(*node);
    if (cached.key != cached.sizes.mapped_bytes || !cached.holds_pieces || cached.claimed)
      return false;
    sum_bytes += cached.sizes.mapped_bytes;
  }
  return sum_bytes == size_bytes_;
}

}  // namespace vmm
