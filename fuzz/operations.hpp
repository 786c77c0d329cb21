// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// How many operations a fuzz program has run: inputs a second say little where inputs differ in
// length. The sum is printed when the program ends, for fuzz/speed.sh.
#ifndef VMM_FUZZ_OPERATIONS_HPP
#define VMM_FUZZ_OPERATIONS_HPP

#include <cstdint>
#include <cstdio>

struct operation_count {
  std::uint64_t sum = 0;
  ~operation_count() {
    std::fprintf(stderr, "stat::operations: %llu\n", static_cast<unsigned long long>(sum));
  }
};

inline operation_count operations;

#endif
