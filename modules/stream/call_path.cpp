// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../sync/thread_annotations.h"

module vmm.stream;

import vmm.backend;
import vmm.std;
import vmm.support;
import vmm.sync;

namespace vmm {

bool call_path::free_in_arena(const front_set& fronts, address at, stream_handle stream) noexcept {
  front* const own = fronts.find(stream);
  return own != nullptr && own->give(stream, at);
}

status call_path::free_on_new_stream(pool_state& state, address at, stream_handle stream) {
  if (status named = check_stream(driver_, stream); !named) return named;
  if (status live = locked_blocks(state).check_live(at); !live) return live;
  const result<std::uint32_t> added =
      stream_memory(state).add_stream(driver_.feature_set().canonical(stream));
  if (!added) return added.error();
  check(state.find_stream(stream) == *added, "a new stream is not found");
  // A quick call of the driver, under the lock: the first request of the stream compares it.
  if (has_identity(stream)) state.progress().set_identity(*added, driver_.stream_identity(stream));
  return state.free(at, *added);
}

}  // namespace vmm
