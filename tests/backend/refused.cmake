# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Builds a target that must not compile, and looks for what the compiler has to say.
#   BUILD   the build folder      TARGET   the target      LINES_MAX   of its message
#   WORDS   texts that its message has, separated by |
execute_process(COMMAND ${CMAKE_COMMAND} --build "${BUILD}" --target ${TARGET}
                RESULT_VARIABLE outcome OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(outcome EQUAL 0)
  message(FATAL_ERROR "${TARGET} was compiled")
endif()
string(REPLACE "|" ";" words "${WORDS}")
foreach(word IN LISTS words)
  string(FIND "${text}" "${word}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "the compiler does not say \"${word}\":\n${text}")
  endif()
endforeach()
string(REGEX MATCHALL "[^\n]+(error|note): " sayings "${text}")
list(LENGTH sayings count)
if(count GREATER LINES_MAX)
  message(FATAL_ERROR "the compiler says it in ${count} messages; ${LINES_MAX} are allowed:\n"
                      "${text}")
endif()
message(STATUS "refused in ${count} messages, as it must be")
