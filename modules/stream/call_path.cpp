// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

bool stream_identities::has_beside(stream_handle stream, std::uint64_t identity) const noexcept {
  const auto line = std::span(known_).subspan(place_of(stream) / ways * ways, ways);
  return std::any_of(line.begin(), line.end(), [&](const auto& each) {
    return each.load(std::memory_order_acquire) == identity;
  });
}

// The former identity of the place may be that of a stream in use: it stays beside it, in an empty
// place or else in each in turn.
void stream_identities::add(stream_handle stream, std::uint64_t identity) noexcept {
  check(identity != 0, "a stream without an identity is recorded");
  const std::size_t home = place_of(stream);
  const std::uint64_t former = known_[home].exchange(identity, std::memory_order_acq_rel);
  if (former == 0) return;
  const std::size_t first = home / ways * ways;
  std::size_t beside =
      first + (home + 1 + turn_.fetch_add(1, std::memory_order_relaxed) % (ways - 1)) % ways;
  for (std::size_t place = first; place < first + ways; ++place)
    if (known_[place].load(std::memory_order_acquire) == 0) beside = place;
  known_[beside].store(former, std::memory_order_release);
}

bool call_path::free_in_arena(const arena_table& arenas, address at,
                              stream_handle stream) noexcept {
  arena* const own = arenas.find(stream);
  return own != nullptr && own->give(stream, at);
}

// The driver is called without the lock.
status call_path::free_on_new_stream(address at, stream_handle stream) {
  if (status named = check_stream(driver_, stream); !named) return named;
  const std::uint64_t identity = identity_of(stream);
  const table_lock state(state_);
  if (status live = locked_blocks(*state).check_live(at); !live) return live;
  const result<std::uint32_t> number =
      stream_memory(*state).enter(driver_.feature_set().canonical(stream), identity);
  if (!number) return number.error();
  return state->free(at, *number);
}

}  // namespace vmm
