# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the compiler refuses a pool that takes its locks wrongly: a guard that is missing, a lock
# out of order, a driver call under the state's lock, a guarded member without its lock, tables that
# a deferred free has left as they were.
# Method: a unit of the pool is copied, each mistake is put into the copy, and the copy is compiled
# with the library's own flags and modules. As it is it compiles; with the mistakes each is
# reported.
#   SOURCE  vmm's source    BINARY  its build    WORK  where this test may write
set(unit "${SOURCE}/modules/stream/block_rights.cpp")

# The command of any unit of the pool, without what names its files.
file(STRINGS "${BINARY}/compile_commands.json" commands REGEX "\"command\".*vmm.dir/.*stream")
list(GET commands 0 command)
string(REGEX REPLACE "^ *\"command\": \"(.*)\",?$" "\\1" command "${command}")
string(REPLACE "\\\"" "\"" command "${command}")
separate_arguments(command UNIX_COMMAND "${command}")
list(FILTER command EXCLUDE REGEX "^@|^-c$|^-o$|^-MD$|^-M[TF]$|\\.(o|d|cpp|cppm)$|^-fmodule-output")
file(GLOB modules "${BINARY}/CMakeFiles/vmm.dir/*.pcm")
foreach(module IN LISTS modules)
  get_filename_component(name "${module}" NAME)
  string(REGEX REPLACE "\\.pcm$" "" name "${name}")
  string(REPLACE "-" ":" name "${name}")
  list(APPEND command "-fmodule-file=${name}=${module}")
endforeach()

# compile(RESULT OUTPUT TEXT)
function(compile result output text)
  file(WRITE "${WORK}/ranks.cpp" "${text}")
  execute_process(COMMAND ${command} -ferror-limit=0 -fsyntax-only "${WORK}/ranks.cpp"
                  WORKING_DIRECTORY "${BINARY}" RESULT_VARIABLE outcome
                  OUTPUT_VARIABLE said ERROR_VARIABLE said)
  set(${result} "${outcome}" PARENT_SCOPE)
  set(${output} "${said}" PARENT_SCOPE)
endfunction()

file(READ "${unit}" text)
string(REPLACE "../base/" "${SOURCE}/modules/base/" text "${text}")
compile(outcome output "${text}")
if(NOT outcome EQUAL 0)
  message(FATAL_ERROR "the unit does not compile as it is:\n${output}")
endif()

# mistake(FUNCTION BEFORE AFTER REPORT): inside of the function.
set(reports "")
function(mistake function before after report)
  string(FIND "${text}" "block_rights::${function}(" begin)
  string(SUBSTRING "${text}" 0 ${begin} head)
  string(SUBSTRING "${text}" ${begin} -1 tail)
  string(FIND "${tail}" "${before}" at)
  if(begin EQUAL -1 OR at EQUAL -1)
    message(FATAL_ERROR "${function} has no '${before}'")
  endif()
  string(LENGTH "${before}" length)
  math(EXPR end "${at} + ${length}")
  string(SUBSTRING "${tail}" 0 ${at} middle)
  string(SUBSTRING "${tail}" ${end} -1 tail)
  set(text "${head}${middle}${after}${tail}" PARENT_SCOPE)
  set(reports ${reports} "${report}" PARENT_SCOPE)
endfunction()

# expect_errors(): for each mistake that was put in since the last time.
function(expect_errors)
  compile(outcome output "${text}")
  if(outcome EQUAL 0)
    message(SEND_ERROR "the compiler accepts every mistake")
  endif()
  foreach(report IN LISTS reports)
    if(NOT output MATCHES "error: [^\n]*(${report})")
      message(SEND_ERROR "no error is: ${report}\n${output}")
    endif()
  endforeach()
endfunction()

# Clang analyses locks where the types are right.
set(original "${text}")
set(guard "const growth_guard growing(entry_);")
mistake(set_peers "${guard}" "" "calling function 'list_mapped' requires holding rank 'growth'")
mistake(set_access "${guard}"
        "const events_guard no_event(captures_.lock()); const table_lock held(state_); ${guard}"
        "rank 'growth' must be acquired before 'state'")
list(APPEND reports "rank 'growth' must be acquired before 'events'")
mistake(end_one "const stream_point last_use"
        "const table_lock held(state_); const stream_point last_use"
        "cannot call function 'poll' while rank 'state' is held")
mistake(set_peers "if (status valid" "(void)blocks_.size(); if (status valid"
        "reading variable 'blocks_' requires holding rank 'growth'")
mistake(list_mapped "const table_lock state(state_);"
        "const table_lock held(state_); const table_lock state(state_);"
        "acquiring rank 'state' that is already held")
expect_errors()

set(text "${original}")
set(reports "")
mistake(set_peers "if (status valid" "(void)warm_lock(state_).statistics(); if (status valid"
        "no member named 'statistics' in 'vmm::warm_lock'")
mistake(list_mapped "const table_lock state(state_);"
        "(void)table_lock(state_)->statistics(); const table_lock state(state_);"
        "selected deleted operator '->'")
expect_errors()
