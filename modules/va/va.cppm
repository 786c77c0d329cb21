// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va - address space: who has which range. It makes no driver call; its callers reserve and
// map. [B1-B4]
//
// :range_allocator  ranges of granules out of one range            :address_space  bytes and
// addresses, several ranges :size_bins        free blocks by size (not exported) :address_index
// blocks by address (not exported) :host_memory      the arrays that records lie in (not exported)
export module vmm.va;

export import vmm.backend;
export import :address_index;
export import :host_memory;
export import :range_allocator;
export import :size_bins;
