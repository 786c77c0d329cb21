// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.va - address space: the allocation of ranges. It makes no driver call; its callers reserve
// and map.
//
// :range_allocator        ranges of granules out of one range
// :address_space          bytes and addresses over several ranges
// :region_map             regions of several kinds that tile one range
// :size_bins              free blocks by size
// :first_fit              the lowest place with room
// :first_region_by_page   the first region of each page
// :host_memory            the arrays that records lie in
// :block_records          the records of a range's blocks and holes
// :records                the records of blocks, holes and regions
//
// A block is found by its id, not by its address: from address to allocation is vmm.tracker's.
export module vmm.va;

export import vmm.backend;
export import :address_space;
export import :block_records;
export import :first_fit;
export import :first_region_by_page;
export import :host_memory;
export import :range_allocator;
export import :records;
export import :region_map;
export import :size_bins;
import vmm.base;
