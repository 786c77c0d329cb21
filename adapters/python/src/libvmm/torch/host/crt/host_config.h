/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * For CUDA headers that were installed without their folder crt/: a host compiler needs no settings
 * to read them. */
#ifndef VMM_CRT_HOST_CONFIG_H
#define VMM_CRT_HOST_CONFIG_H
#endif
