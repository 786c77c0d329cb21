# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# C, for the tests, samples and examples in it. Its compiler is the one that belongs to the C++
# compiler: a sanitizer's runtime and a precompiled header are one compiler's. CMake takes `cc` when
# it is left to choose, so C is enabled here, before any folder needs it.
string(REPLACE "clang++" "clang" vmm_c_compiler "${CMAKE_CXX_COMPILER}")
string(REPLACE "g++" "gcc" vmm_c_compiler "${vmm_c_compiler}")
if(NOT CMAKE_C_COMPILER AND EXISTS "${vmm_c_compiler}")
  set(CMAKE_C_COMPILER "${vmm_c_compiler}")
endif()
enable_language(C)
