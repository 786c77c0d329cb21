// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.observe - the events, statistics and driver calls of allocators.
//
// :history   an allocator's events in bounded memory, and in a file
// :top       statistics of this process's allocators, for other processes
// :call_log  calls of a driver counted, logged, made to fail
// :peak_record  the peak of an allocator, from one run of a program to the next
export module vmm.observe;

export import :call_log;
export import :history;
export import :peak_record;
export import :top;
