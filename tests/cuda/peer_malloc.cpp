// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A library of peers for the tests of bench_pool and bench_sharing: the C library's malloc, with
// its bytes counted; and the same as an allocator that uses no memory twice, whose peak grows with
// each pass.
#include <unordered_map>

#include "../../benchmarks/peers/peer.h"
#include "../../tools/program/standard.hpp"

namespace {

// No host memory is taken for what a GPU would hold; AddressSanitizer marks each byte of a block.
constexpr std::uint64_t bytes_max = 4096;

std::mutex guard;  // of all below

std::unordered_map<void*, std::uint64_t>& sizes() {
  static std::unordered_map<void*, std::uint64_t> all;
  return all;
}
std::uint64_t held_bytes = 0;
std::uint64_t peak_bytes = 0;
std::uint64_t given_bytes = 0;  // all requests since open

int open() {
  const std::lock_guard held(guard);
  peak_bytes = held_bytes;
  given_bytes = 0;
  return 0;
}

void* allocate(std::uint64_t size_bytes, void*) {
  void* const at = std::malloc(std::min(size_bytes, bytes_max));
  if (at == nullptr) return nullptr;
  const std::lock_guard held(guard);
  sizes()[at] = size_bytes;
  held_bytes += size_bytes;
  given_bytes += size_bytes;
  peak_bytes = std::max(peak_bytes, held_bytes);
  return at;
}

int release(void* at, void*) {
  const std::lock_guard held(guard);
  const auto found = sizes().find(at);
  if (found == sizes().end()) return 1;
  held_bytes -= found->second;
  sizes().erase(found);
  std::free(at);
  return 0;
}

std::uint64_t peak_reserved_bytes() {
  const std::lock_guard held(guard);
  return peak_bytes;
}

std::uint64_t bytes_given() {
  const std::lock_guard held(guard);
  return given_bytes;
}

int close() {
  const std::lock_guard held(guard);
  return held_bytes == 0 ? 0 : 1;
}

const char* describe() { return "not everything was freed"; }

constexpr vmm_peer peers[] = {
    {"malloc as a peer", open, allocate, release, peak_reserved_bytes, close, describe},
    {"malloc that uses nothing twice", open, allocate, release, bytes_given, close, describe},
};

}  // namespace

extern "C" int vmm_peers(const vmm_peer** first) {
  *first = peers;
  return 2;
}
