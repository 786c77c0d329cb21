# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the program in the README is one that compiles and runs.
# Method: its text must be examples/first.cpp without that file's head. -DVMM_SOURCE=...
file(READ "${VMM_SOURCE}/README.md" page)
file(READ "${VMM_SOURCE}/examples/first.cpp" program)
string(FIND "${program}" "#include" begin)
string(SUBSTRING "${program}" ${begin} -1 program)
string(FIND "${page}" "```cpp\n${program}```" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the README's program is not examples/first.cpp")
endif()
