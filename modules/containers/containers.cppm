// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.containers - owners of an allocator's memory.
//
// :vector  a vector whose growth maps memory instead of copying elements
// :buffer  owners of blocks, and a reference to any allocator
// :pmr     a std::pmr resource on host memory
export module vmm.containers;

export import :buffer;
export import :pmr;
export import :vector;
