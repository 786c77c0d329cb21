// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Nothing: CMake compiles the headers that tests share beside it (tests/CMakeLists.txt).
