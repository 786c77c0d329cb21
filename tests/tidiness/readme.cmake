# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the programs in the README and in the guide are ones that compile and run.
# Method: their text must be that of a file in examples, without that file's head. -DVMM_SOURCE=...
function(expect_program page_name program_name)
  file(READ "${VMM_SOURCE}/${page_name}" page)
  file(READ "${VMM_SOURCE}/examples/${program_name}" program)
  string(FIND "${program}" "#include" begin)
  string(SUBSTRING "${program}" ${begin} -1 program)
  string(FIND "${page}" "```cpp\n${program}```" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the program in ${page_name} is not examples/${program_name}")
  endif()
endfunction()

expect_program(README.md first.cpp)
expect_program(docs/guide.md guide.cpp)
