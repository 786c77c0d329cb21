# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# run(COMMAND...): what the command prints is in `text`; a failure ends the test with it.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE outcome OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT outcome EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${outcome}:\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()
