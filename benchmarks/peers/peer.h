/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The interface of other allocators for bench_pool and bench_sharing: a shared library that exports
 * vmm_peers.
 * C only, so that it may be built by another compiler against another C++ library.
 *
 * Several threads call allocate and release at once, one the others; the device's primary context
 * is current in each. */
#ifndef VMM_BENCH_PEERS_PEER_H
#define VMM_BENCH_PEERS_PEER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct vmm_peer {
  const char* name;
  /* Makes the allocator ready to start from nothing. 0: done; else describe() says why not. */
  int (*open)(void);
  /* Memory in the order of a stream, which is a CUstream; null: refused. */
  void* (*allocate)(uint64_t size_bytes, void* stream);
  /* 0: done. */
  int (*release)(void* at, void* stream);
  /* The most memory held from the device since open. */
  uint64_t (*peak_reserved_bytes)(void);
  /* Gives everything back to the device. 0: done. */
  int (*close)(void);
  /* What went wrong last in this thread. */
  const char* (*describe)(void);
};

/* Stores the address of an array of peers and returns its length. */
typedef int (*vmm_peers_function)(const struct vmm_peer** first);

#ifdef __cplusplus
}
#endif

#endif
