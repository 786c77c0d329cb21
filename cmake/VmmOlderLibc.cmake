# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# vmm_older_libc(TARGET): the shared library runs with glibc 2.28, whatever newer one it is built
# with (adapters/c/src/older_libc.cpp). Not under a sanitizer, whose runtime has these names itself.
include_guard(GLOBAL)
include(CheckCXXSymbolExists)

function(vmm_older_libc target)
  if(VMM_SANITIZE OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|aarch64)$")
    return()
  endif()
  check_cxx_symbol_exists(__GLIBC__ features.h VMM_HAS_GLIBC)
  if(NOT VMM_HAS_GLIBC)
    return()
  endif()
  target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/adapters/c/src/older_libc.cpp")
  target_link_options(${target} PRIVATE -Wl,--push-state,--no-as-needed
                      -l:libpthread.so.0 -l:libdl.so.2 -Wl,--pop-state)
endfunction()
