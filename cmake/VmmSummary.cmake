# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Says what was configured: which backends are on and why, and what the build is.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# A backend whose state hangs on more than the system says so itself, in VMM_<NAME>_STATE.
function(vmm_backend_state name otherwise)
  string(TOUPPER "${name}" key)
  set(state "${otherwise}")
  if(NOT EXISTS "${PROJECT_SOURCE_DIR}/backends/${name}/CMakeLists.txt")
    set(state "off: comes with a later release")
  elseif(VMM_${key}_STATE)
    set(state "${VMM_${key}_STATE}")
  endif()
  string(SUBSTRING "${name}            " 0 11 column)
  message(STATUS "  ${column} ${state}")
endfunction()

if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(vmm_host_state "on: this is Linux (memfd and mmap)")
else()
  set(vmm_host_state "off: needs Linux (memfd and mmap); this is ${CMAKE_SYSTEM_NAME}")
endif()

set(vmm_sanitize_text "none")
if(VMM_SANITIZE)
  set(vmm_sanitize_text "${VMM_SANITIZE}")
endif()

message(STATUS "vmm ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE} by ${CMAKE_CXX_COMPILER_ID} "
               "${CMAKE_CXX_COMPILER_VERSION}, sanitizers: ${vmm_sanitize_text}, "
               "checks: level ${VMM_CHECK_LEVEL}")
message(STATUS "backends:")
vmm_backend_state(fake "on: plain memory, needs nothing")
vmm_backend_state(host "${vmm_host_state}")
vmm_backend_state(cuda "on")
vmm_backend_state(level_zero "on")

if(VMM_PRELOAD_STATE)
  message(STATUS "libvmm_preload.so: ${VMM_PRELOAD_STATE}")
endif()
