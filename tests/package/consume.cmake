# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# One step of the packaging test; CMakeLists.txt beside it says which there are.
#   STEP         install | find_package_* | add_subdirectory_*
#   VMM_BINARY   the build to install from      VMM_SOURCE   its source
#   COMPILER     the C++ compiler               MAKE         the ninja to use
#   WORK         where this test may write      OPTIONS      what the consumer is configured with
set(prefix "${WORK}/prefix")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

# What is installed must stand alone: no trace of Boost, which only the implementation units use,
# and none of the flags, folders and warnings that are this build's own.
function(check_prefix)
  file(GLOB_RECURSE files "${prefix}/include/*" "${prefix}/lib*/*.cmake")
  list(LENGTH files count)
  if(count LESS 5)
    message(FATAL_ERROR "only ${count} interface units and package files were installed")
  endif()
  foreach(file IN LISTS files)
    file(READ "${file}" content)
    foreach(trace IN ITEMS "<boost/" "Boost::" "-Werror" "${VMM_SOURCE}" "${VMM_BINARY}")
      string(FIND "${content}" "${trace}" position)
      if(NOT position EQUAL -1)
        message(FATAL_ERROR "${file} mentions ${trace}")
      endif()
    endforeach()
  endforeach()
endfunction()

function(build_consumer)
  set(folder "${WORK}/${STEP}")
  file(REMOVE_RECURSE "${folder}")
  run(${CMAKE_COMMAND} -S "${VMM_SOURCE}/tests/package/consumer" -B "${folder}" -G Ninja
      -DCMAKE_MAKE_PROGRAM=${MAKE} -DCMAKE_CXX_COMPILER=${COMPILER} ${ARGN})
  run(${CMAKE_COMMAND} --build "${folder}")
  run("${folder}/consumer")
  message(STATUS "${text}")
endfunction()

if(STEP STREQUAL "install")
  file(REMOVE_RECURSE "${prefix}")
  run(${CMAKE_COMMAND} --install "${VMM_BINARY}" --component development --prefix "${prefix}")
  check_prefix()
elseif(STEP MATCHES "^find_package_")
  build_consumer("-DCMAKE_PREFIX_PATH=${prefix}" -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON ${OPTIONS})
elseif(STEP MATCHES "^add_subdirectory_")
  build_consumer("-DVMM_SUBDIRECTORY=${VMM_SOURCE}" ${OPTIONS})
else()
  message(FATAL_ERROR "there is no step ${STEP}")
endif()
