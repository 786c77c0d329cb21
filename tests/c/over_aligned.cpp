// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an array of elements that are aligned to more than its memory is refused by the compiler.
// Method: this file is compiled by a test that expects both assertions of vmm.hpp.
#include "vmm.hpp"

struct alignas(4 << 20) wider_than_a_block {
  char bytes[4 << 20];
};
struct alignas(8192) wider_than_a_page {
  char bytes[8192];
};

template class vmm::device_array<wider_than_a_block>;
template class vmm::growing_array<wider_than_a_page>;
