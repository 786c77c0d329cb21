# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the programs in the README, on the start page and of the pool are ones that compile and run.
# Method: the first program of a page is the text of a file in examples, without that file's head;
# every other one stands in one of the files named. -DVMM_SOURCE=...

cmake_minimum_required(VERSION 3.28...3.31)

# The text of examples/NAME from its first include on.
function(read_program name into)
  file(READ "${VMM_SOURCE}/examples/${name}" program)
  string(FIND "${program}" "#include" begin)
  string(SUBSTRING "${program}" ${begin} -1 program)
  set(${into} "${program}" PARENT_SCOPE)
endfunction()

function(expect_program page_name program_name)
  file(READ "${VMM_SOURCE}/${page_name}" page)
  read_program(${program_name} program)
  string(FIND "${page}" "```cpp\n${program}```" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the program in ${page_name} is not examples/${program_name}")
  endif()
endfunction()

# expect_snippets(PAGE COUNT PROGRAM...): the page has COUNT programs, and each is in a PROGRAM.
function(expect_snippets page_name count)
  file(READ "${VMM_SOURCE}/${page_name}" rest)
  set(all "")
  foreach(name IN LISTS ARGN)
    read_program(${name} program)
    string(APPEND all "${program}")
  endforeach()
  set(found 0)
  while(TRUE)
    string(FIND "${rest}" "```cpp\n" begin)
    if(begin EQUAL -1)
      break()
    endif()
    math(EXPR begin "${begin} + 7")
    string(SUBSTRING "${rest}" ${begin} -1 rest)
    string(FIND "${rest}" "```" end)
    string(SUBSTRING "${rest}" 0 ${end} snippet)
    string(SUBSTRING "${rest}" ${end} -1 rest)
    string(FIND "${all}" "${snippet}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${page_name} has a program that is in none of ${ARGN}:\n${snippet}")
    endif()
    math(EXPR found "${found} + 1")
  endwhile()
  if(NOT found EQUAL count)
    message(FATAL_ERROR "${page_name} has ${found} programs, not ${count}")
  endif()
endfunction()

expect_program(README.md first.cpp)
expect_snippets(README.md 1 first.cpp)
expect_program(docs/start.md guide.cpp)
expect_snippets(docs/start.md 1 guide.cpp)
expect_snippets(docs/pool.md 6 guide_parts.cpp ../tests/docs/samples/serving.cpp)
