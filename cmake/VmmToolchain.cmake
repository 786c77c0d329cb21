# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Compilers that cannot build named modules are refused here, with what to do, before CMake says it
# less clearly.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 18)
  message(FATAL_ERROR "vmm needs Clang 18 or newer (19 is what it is tested with); this is Clang "
                      "${CMAKE_CXX_COMPILER_VERSION}. Configure with cmake --preset dev, "
                      "or let ./run install what is missing.")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "vmm needs Clang 18 or newer (or, best effort, GCC 16); this is GCC "
                      "${CMAKE_CXX_COMPILER_VERSION}, which mistranslates modules "
                      "(docs/compilers.md). Configure with cmake --preset dev, "
                      "or let ./run install what is missing.")
endif()
if(NOT CMAKE_GENERATOR MATCHES "Ninja")
  message(FATAL_ERROR "C++ modules need the Ninja generator: configure with cmake --preset dev, "
                      "or with -G Ninja.")
endif()
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
