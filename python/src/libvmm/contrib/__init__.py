# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters for other libraries: CuPy, Numba, RMM, vLLM and torch_memory_saver. Each module is
imported by name and needs its library when it is enabled."""
