# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: whoever names a folder for CUDA's headers that has none is told which are missing, and what
# else can be named; without CUDA nobody looks there.
# Method: the backend's file runs as a script, and ends at the message or at the first command that
# scripts do not have.
#   VMM_SOURCE   vmm's source    WORK   where this test may write
function(configure folder)
  execute_process(COMMAND ${CMAKE_COMMAND} "-DVMM_CUDA_INCLUDE_DIR=${folder}" ${ARGN}
                          -P "${VMM_SOURCE}/backends/cuda/CMakeLists.txt"
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect text)
  string(FIND "${output}" "${text}" position)
  if(position EQUAL -1)
    message(SEND_ERROR "not said: ${text}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}/empty" "${WORK}/half")
file(WRITE "${WORK}/half/cuda.h" "#define CUDA_VERSION 12090\n")

configure("${WORK}/empty")
expect("VMM_CUDA_INCLUDE_DIR names ${WORK}/empty, which has no cuda.h and no cudaTypedefs.h.")
expect("-DVMM_CUDA=OFF to build without CUDA.")
configure("${WORK}/not_there")
expect("VMM_CUDA_INCLUDE_DIR names ${WORK}/not_there, which has no cuda.h")
configure("${WORK}/half")
expect("VMM_CUDA_INCLUDE_DIR names ${WORK}/half, which has no cudaTypedefs.h.")
configure("${WORK}/empty" -DVMM_CUDA=OFF)
string(FIND "${output}" "VMM_CUDA_INCLUDE_DIR names" position)
if(NOT position EQUAL -1)
  message(SEND_ERROR "headers are looked for without CUDA:\n${output}")
endif()
