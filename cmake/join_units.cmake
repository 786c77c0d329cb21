# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DUNITS=a.cpp;b.cpp -DOUTPUT=joined.cpp -P join_units.cmake: writes the units of one module
# as one. First what they all include, their module, and what they all import, each line once, as
# the language orders them; then each unit without these lines, but with its own line numbers.
set(global "")
set(includes "")
set(imports "")
set(bodies "")
set(module "")
foreach(unit IN LISTS UNITS)
  file(READ "${unit}" text)
  get_filename_component(folder "${unit}" DIRECTORY)
  string(REGEX MATCHALL "\n#include [^\n]+" lines "${text}")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "\n#include \"([^\"]+)\"" "\n#include \"${folder}/\\1\"" line "${line}")
    list(APPEND includes "${line}")
  endforeach()
  # Without their semicolons, which would end an item of a list.
  string(REGEX MATCHALL "\nimport [a-z_.:]+" lines "${text}")
  list(APPEND imports ${lines})
  string(REGEX MATCH "\nmodule vmm[a-z_.]*" own "${text}")
  if(NOT own OR (module AND NOT own STREQUAL module))
    message(FATAL_ERROR "${unit} is no unit of the module of the units before it")
  endif()
  set(module "${own}")
  string(REGEX REPLACE "\n#include [^\n]+" "\n" text "${text}")
  string(REGEX REPLACE "\n(module|module vmm[a-z_.]*|import [a-z_.:]+);" "\n" text "${text}")
  string(APPEND bodies "\n#line 1 \"${unit}\"\n${text}")
endforeach()
list(REMOVE_DUPLICATES includes)
list(REMOVE_DUPLICATES imports)
if(includes)
  list(JOIN includes "" includes)
  set(global "module;${includes}\n")
endif()
list(JOIN imports ";" imports)
file(WRITE "${OUTPUT}" "${global}${module};${imports};\n${bodies}")
