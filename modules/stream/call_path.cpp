// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../base/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

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
