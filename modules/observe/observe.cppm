// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe - the events, statistics and driver calls of allocators.
//
// :block_observer  the reservations, mappings and blocks of a pool, one call for each
// :call_log        calls of a driver counted, logged, made to fail
// :history         an allocator's events in bounded memory, and in a file
// :nvtx            blocks for memory checkers, and events for Nsight Systems
// :peak_record     the peak of an allocator, from one run of a program to the next
// :top             statistics of this process's allocators, for other processes
export module vmm.observe;

export import :block_observer;
export import :call_log;
export import :history;
export import :nvtx;
export import :peak_record;
export import :top;
