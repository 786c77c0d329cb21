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

# vmm_interface_of(RESULT TEXT): the module of an interface unit that can be joined with others of
# it, else nothing. The same holds, except that conditions may stand behind the imports.
function(vmm_interface_of result text)
  set(${result} "" PARENT_SCOPE)
  string(REGEX REPLACE "\n#include [<\"][^\n<>\"]+[>\"]" "\n" rest "${text}")
  string(FIND "${rest}" "\nimport " last REVERSE)
  string(SUBSTRING "${rest}" 0 ${last} before)
  string(REGEX REPLACE "\n(export )?import [a-z_.:]+;" "\n" rest "${rest}")
  if(NOT before MATCHES "\n[ \t]*#" AND
     NOT rest MATCHES "\n[ \t]*(# *include|# *define|# *pragma|(export )?import )|R\"" AND
     rest MATCHES "\nexport module (vmm[a-z_.]*)(:[a-z_]+)?;")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()
