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

void routes(const arguments& all);
void entry_points(const arguments& all);
void names(const arguments& all);
void look_ups(const arguments& all);
void two_drivers(const arguments& all);
void null_parameters(const arguments& all);

void nothing(const arguments& all);
void work(const arguments& all);
void fork_before(const arguments& all);
void fork_after(const arguments& all);
void fork_beside_ends(const arguments& all);
void exec_self(const arguments& all);
void exit_with_threads(const arguments& all);
void free_at_the_end(const arguments& all);
void close_library(const arguments& all);
void own_signal(const arguments& all);
void default_signal(const arguments& all);
void ask_for_report(const arguments& all);
void signal_storm(const arguments& all);

void in_flight(const arguments& all);
void captured(const arguments& all);
void questions(const arguments& all);
void foreign(const arguments& all);
void pool_figures(const arguments& all);
void copies(const arguments& all);
void copy_and_grow(const arguments& all);
void fork_storm(const arguments& all);
void resize_loop(const arguments& all);
void copy_then_write(const arguments& all);
void copy_then_read(const arguments& all);
void devices(const arguments& all);
void another_library(const arguments& all);
void short_of_memory(const arguments& all);
void budget(const arguments& all);
void market(const arguments& all);
void market_nvml(const arguments& all);
void market_both(const arguments& all);
void market_pair(const arguments& all);
void reset(const arguments& all);
void per_thread(const arguments& all);
void failed_growth(const arguments& all);
void kept(const arguments& all);
void run_ahead(const arguments& all);
void small_blocks(const arguments& all);
void handles(const arguments& all);
void shared_handles(const arguments& all);
void shown(const arguments& all);
void ipc(const arguments& all);
void ipc_within(const arguments& all);
void ipc_child(const arguments& all);
void ipc_gone(const arguments& all);
void ipc_captured(const arguments& all);
void ipc_contexts(const arguments& all);
void ipc_fork(const arguments& all);
void dma_buf(const arguments& all);

void ipc_reset(const arguments& all);
void many(const arguments& all);
void ipc_impostor(const arguments& all);
void ipc_silent(const arguments& all);
void ipc_stranger(const arguments& all);
void early_pool(const arguments& all);
void early_access(const arguments& all);
void pool_elsewhere(const arguments& all);
void capture_storm(const arguments& all);

void capture_races(const arguments& all);

void allocation_sweep(const arguments& all);
void lost_block(const arguments& all);
void block_in_two_hands(const arguments& all);

void contexts(const arguments& all);
void refused_reset(const arguments& all);
void reset_beside_frees(const arguments& all);
void reset_beside_a_wait(const arguments& all);
void pool_users(const arguments& all);

void random_programs(const arguments& all);
void programs_beside(const arguments& all);

}  // namespace caller
