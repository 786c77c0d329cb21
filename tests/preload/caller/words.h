// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the caller program does, a word each. A word prints what it saw; `expect` prints WRONG where
// something is not as it must be, and the program then ends with 1.
#pragma once

#include "../../../tools/program/standard.hpp"

namespace caller {

using arguments = std::vector<std::string_view>;

void expect(bool holds, const char* what);

/// Whether each byte is `value`; by one call of memcmp, which no build makes slow.
[[nodiscard]] bool are_all(std::span<const unsigned char> bytes, unsigned char value);

/// The file name of the library that an address lies in; "none" for null.
[[nodiscard]] const char* owner_of(const void* address);

/// The words, and the functions that do them.
#define VMM_CALLER_WORDS(WORD)                                                                    \
  WORD(routes), WORD(entry_points), WORD(names), WORD(look_ups), WORD(two_drivers),               \
      WORD(null_parameters), WORD(nothing), WORD(work), WORD(fork_before), WORD(fork_after),      \
      WORD(fork_beside_ends), WORD(exec_self), WORD(exit_with_threads), WORD(free_at_the_end),    \
      WORD(close_library), WORD(own_signal), WORD(default_signal), WORD(ask_for_report),          \
      WORD(signal_storm), WORD(in_flight), WORD(captured), WORD(questions), WORD(foreign),        \
      WORD(pool_figures), WORD(copies), WORD(copy_and_grow), WORD(fork_storm), WORD(resize_loop), \
      WORD(copy_then_write), WORD(copy_then_read), WORD(devices), WORD(another_library),          \
      WORD(short_of_memory), WORD(budget), WORD(market), WORD(market_nvml), WORD(market_both),    \
      WORD(market_pair), WORD(reset), WORD(per_thread), WORD(failed_growth), WORD(kept),          \
      WORD(run_ahead), WORD(small_blocks), WORD(handles), WORD(shared_handles), WORD(shown),      \
      WORD(ipc), WORD(ipc_within), WORD(ipc_child), WORD(ipc_gone), WORD(ipc_captured),           \
      WORD(ipc_contexts), WORD(ipc_fork), WORD(dma_buf), WORD(ipc_reset), WORD(many),             \
      WORD(ipc_impostor), WORD(ipc_silent), WORD(ipc_stranger), WORD(early_pool),                 \
      WORD(early_access), WORD(pool_elsewhere), WORD(capture_storm), WORD(capture_races),         \
      WORD(allocation_sweep), WORD(lost_block), WORD(block_in_two_hands), WORD(contexts),         \
      WORD(refused_reset), WORD(reset_beside_frees), WORD(reset_beside_a_wait), WORD(pool_users), \
      WORD(random), WORD(programs_beside)
#define VMM_DECLARED(name) name(const arguments& all)
void VMM_CALLER_WORDS(VMM_DECLARED);

}  // namespace caller
