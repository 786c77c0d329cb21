// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer - moving without copying: plans of mappings, and blocks that change by remapping.
//
// :contents        bytes that are filled when memory is handed out and when it is freed
// :core            the common base of allocators, opened and closed in one place
// :engine          blocks over addresses, pieces and mappings; each change is a transaction
// :memory_options  the options of memory and addresses that every allocator has
// :relief          allocators of one device, whose idle memory serves one another
// :remapper        maps, unmaps and exchanges whole plans, all or nothing
// :reservation     address space, reserved in few large ranges and handed out in extents
// :rights          a change of the devices that may use an allocator's memory, or one block
// :suspension      memory released for a while, and new memory at the same addresses
// :unmap_queue     ranges that wait until no work uses them
export module vmm.optimizer;

export import :contents;
export import :core;
export import :engine;
export import :memory_options;
export import :relief;
export import :remapper;
export import :reservation;
export import :rights;
export import :suspension;
export import :unmap_queue;
import vmm.base;
