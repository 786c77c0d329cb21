# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: a build without Level Zero's headers links. Method: each public function that the backend
# defines with them is defined in absent.cpp, which stands in their place. -DVMM_SOURCE=...

cmake_minimum_required(VERSION 3.28...3.31)

set(folder "${VMM_SOURCE}/backends/level_zero")
set(private leave_if_unusable)
file(READ "${folder}/absent.cpp" absent)
set(count 0)
foreach(name IN ITEMS level_zero.cpp work.cpp)
  file(READ "${folder}/${name}" text)
  string(REGEX MATCHALL "level_zero_driver::~?[a-z_]+\\(" defined "${text}")
  foreach(each IN LISTS defined)
    math(EXPR count "${count} + 1")
    string(FIND "${absent}" "${each}" at)
    if(at EQUAL -1 AND NOT each STREQUAL "level_zero_driver::${private}(")
      message(SEND_ERROR "${each}) of ${name} is not in absent.cpp")
    endif()
  endforeach()
endforeach()
if(count LESS 30)
  message(FATAL_ERROR "the sources define ${count} functions only: is this test out of date?")
endif()
