# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DMODULE=vmm.x -DUNITS=a.cpp;b.cpp -DOUTPUT=joined.cpp -P join_units.cmake: writes units of
# the module as one. First what they all include, the module, and what they all import, each line
# once, as the language orders them; then each unit without these lines, with its own line numbers.
include("${CMAKE_CURRENT_LIST_DIR}/VmmUnitText.cmake")
set(includes "")
set(imports "")
set(bodies "")
foreach(unit IN LISTS UNITS)
  file(READ "${unit}" text)
  vmm_module_of(module "${text}")
  if(NOT module STREQUAL MODULE)
    message(FATAL_ERROR "${unit} can no longer be joined with other units of ${MODULE}: "
                        "configure again")
  endif()
  get_filename_component(folder "${unit}" DIRECTORY)
  string(REGEX MATCHALL "\n#include [<\"][^\n<>\"]+[>\"]" lines "${text}")
  foreach(line IN LISTS lines)
    string(REPLACE "\n#include \"" "\n#include \"${folder}/" line "${line}")
    list(APPEND includes "${line}")
  endforeach()
  # Without their semicolons, which would end an item of a list.
  string(REGEX MATCHALL "\nimport [a-z_.:]+" lines "${text}")
  list(APPEND imports ${lines})
  string(REGEX REPLACE "\n#include [^\n]+" "\n" text "${text}")
  string(REGEX REPLACE "\n(module|module vmm[a-z_.]*|import [a-z_.:]+);" "\n" text "${text}")
  string(APPEND bodies "\n#line 1 \"${unit}\"\n${text}")
endforeach()
list(REMOVE_DUPLICATES includes)
list(REMOVE_DUPLICATES imports)
set(text "module ${MODULE};\n")
if(includes)
  list(JOIN includes "" includes)
  set(text "module;${includes}\n\n${text}")
endif()
foreach(line IN LISTS imports)
  string(APPEND text "${line};")
endforeach()
file(WRITE "${OUTPUT}" "${text}\n${bodies}")
