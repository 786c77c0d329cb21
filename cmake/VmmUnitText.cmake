# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# vmm_module_of(RESULT TEXT): the module that a unit implements, where the unit can be joined with
# others of it, else nothing. It can where lines that begin with # only include something, and
# lines that begin with import name a module of vmm's: these lines come first in what is joined. A
# text in a raw string might have such lines.
function(vmm_module_of result text)
  set(${result} "" PARENT_SCOPE)
  string(REGEX REPLACE "\n#include [<\"][^\n<>\"]+[>\"]" "\n" rest "${text}")
  string(REGEX REPLACE "\nimport [a-z_.:]+;" "\n" rest "${rest}")
  if(NOT rest MATCHES "\n[ \t]*(#|import )|R\"" AND rest MATCHES "\nmodule (vmm[a-z_.]*);")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()
