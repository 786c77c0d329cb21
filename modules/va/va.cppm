// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va - address space: who has which range. It makes no driver call; its callers reserve and
// map. [B1-B4]
//
// :range_allocator  ranges of granules out of one range
// :address_space    bytes and addresses over several ranges
// :size_bins        free blocks by size
// :address_index    blocks by address
// :host_memory      the arrays that records lie in
export module vmm.va;

export import vmm.backend;
export import :address_index;
export import :address_space;
export import :host_memory;
export import :range_allocator;
export import :size_bins;
