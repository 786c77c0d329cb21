/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * For CUDA headers that were installed without their folder crt/: what their declarations say, as a
 * host compiler has to read it. What is only for device code is nothing. */
#ifndef VMM_CRT_HOST_DEFINES_H
#define VMM_CRT_HOST_DEFINES_H

#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __inline_hint__
#define __align__(count) __attribute__((aligned(count)))
#define __builtin_align__(count) __align__(count)
#define __thread__ __thread
#define __import__
#define __export__
#define __cdecl
#define __annotate__(words) __attribute__((words))
#define __location__(words)
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define __cluster_dims__(...)
#define __block_size__(...)
#define __maxnreg__(...)
#define __nv_pure__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __CUDA_ARCH_HAS_FEATURE__(feature) 0

#endif
