# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: units of a module become one file that means the same, and what cannot is left alone.
# Method: the scripts that join, on units of this test's own; and their rules, on lines that would
# go wrong.
#   VMM_SOURCE   vmm's source    WORK   where this test may write
cmake_minimum_required(VERSION 3.28)
include("${VMM_SOURCE}/cmake/VmmUnitText.cmake")

set(before "// A unit.\nmodule;\n#include <cstdio>\n")
string(CONCAT behind "\nmodule vmm.some_one;\n\nimport vmm.std;\nimport :part;\n\n"
                     "int one() { return 1; }\n")
function(expect_module line wanted)
  vmm_module_of(module "${before}${line}${behind}${line}")
  if(NOT module STREQUAL wanted)
    message(SEND_ERROR "a unit with the line '${line}' is of '${module}', not of '${wanted}'")
  endif()
endfunction()
expect_module("" vmm.some_one)
expect_module("// #if, import <x> and module vmm.other;" vmm.some_one)
expect_module("#include \"own.h\"  // why" vmm.some_one)
foreach(line IN ITEMS "#if X" "  #if X" "# if X" "#define X" "#undef X" "#pragma once"
                      "# include <x>" "#include X" "import <x>\;" "import vmm.v2\;" "x = R\"(")
  expect_module("${line}" "")
endforeach()
vmm_module_of(module "// A file of no module.\n#include <cstdio>\n")
if(module)
  message(SEND_ERROR "a file of no module is of '${module}'")
endif()

# A folder with a blank and characters that mean something to regular expressions.
set(folder "${WORK}/a (+) folder")
file(REMOVE_RECURSE "${WORK}")
file(WRITE "${folder}/a.cpp" "${before}#include \"own.h\"\n${behind}")
file(WRITE "${folder}/b.cpp"
     "// B [1\nmodule vmm.some_one;\nimport vmm.std;\nimport vmm.va;\nint b;\n")
function(join)
  execute_process(COMMAND ${CMAKE_COMMAND} -DMODULE=vmm.some_one
                          "-DUNITS=${folder}/a.cpp;${folder}/b.cpp" "-DOUTPUT=${WORK}/joined.cpp"
                          -P "${VMM_SOURCE}/cmake/join_units.cmake"
                  RESULT_VARIABLE outcome ERROR_VARIABLE said)
  set(outcome "${outcome}" PARENT_SCOPE)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")  # CMake breaks lines
  set(said "${said}" PARENT_SCOPE)
endfunction()
join()
file(READ "${WORK}/joined.cpp" joined)
string(CONCAT wanted
       "module;\n#include <cstdio>\n#include \"${folder}/own.h\"\n\nmodule vmm.some_one;\n"
       "\nimport vmm.std;\nimport :part;\nimport vmm.va;\n"
       "\n#line 1 \"${folder}/a.cpp\"\n// A unit.\n\n\n\n\n\n\n\n\n\n"
       "int one() { return 1; }\n"
       "\n#line 1 \"${folder}/b.cpp\"\n// B [1\n\n\n\nint b;\n")
if(NOT outcome EQUAL 0 OR NOT joined STREQUAL wanted)
  message(SEND_ERROR "joining ended with ${outcome} ${said}; it wrote\n${joined}\nnot\n${wanted}")
endif()

file(APPEND "${folder}/b.cpp" "#if X\n#endif\n")
join()
if(outcome EQUAL 0 OR NOT said MATCHES "b.cpp can no longer be joined")
  message(SEND_ERROR "a unit that cannot be joined any more: ${outcome} ${said}")
endif()

# ---- interfaces --------------------------------------------------------------------------------

function(expect_interface line wanted)
  vmm_interface_of(module "// A.\nexport module vmm.one:part;\nimport vmm.std;\n${line}\n")
  if(NOT module STREQUAL wanted)
    message(SEND_ERROR "an interface with the line '${line}' is of '${module}', not of '${wanted}'")
  endif()
endfunction()
foreach(line IN ITEMS "" "#if X" "#endif" "import_handle one")
  expect_interface("${line}" vmm.one)
endforeach()
expect_interface("export import :other;" vmm.one)
foreach(line IN ITEMS "#define X" "# include <x>" "import <x>\;" "#if X\nimport vmm.va\;"
                      "x = R\"(")
  expect_interface("${line}" "")
endforeach()

file(WRITE "${folder}/home/one.cppm"
     "// One\nexport module vmm.one;\nexport import :shown;\nimport :kept;\nint c [1;\n")
file(WRITE "${folder}/home/deep/kept.cppm"
     "// Kept\nmodule;\n#include \"../../own.h\"\nexport module vmm.one:kept;\n"
     "export import vmm.va;\nimport :shown;\nexport class later;\nexport class b {};\n")
file(WRITE "${folder}/home/shown.cppm"
     "// Shown\nexport module vmm.one:shown;\nexport import vmm.std;\nexport class a {};\n")
set(units "${folder}/home/one.cppm;${folder}/home/deep/kept.cppm;${folder}/home/shown.cppm")
function(join_interfaces)
  execute_process(COMMAND ${CMAKE_COMMAND} -DMODULE=vmm.one "-DROOT=${folder}" "-DUNITS=${units}"
                          "-DOUTPUT=${WORK}/joined.cppm"
                          -P "${VMM_SOURCE}/cmake/join_interfaces.cmake"
                  RESULT_VARIABLE outcome ERROR_VARIABLE said)
  set(outcome "${outcome}" PARENT_SCOPE)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  set(said "${said}" PARENT_SCOPE)
endfunction()
join_interfaces()
file(READ "${WORK}/joined.cppm" joined)
string(CONCAT wanted
       "module;\n#include \"../own.h\"\n\nexport module vmm.one;\n"
       "\nexport import vmm.std;\nimport vmm.va;\n"
       "\n#line 1 \"home/shown.cppm\"\n// Shown\n\n\nexport class a {};\n"
       "\n#line 1 \"home/deep/kept.cppm\"\n// Kept\n\n\n\n\n\n"
       "export class later;\nclass b {};\n"
       "\n#line 1 \"home/one.cppm\"\n// One\n\n\n\nint c [1;\n")
if(NOT outcome EQUAL 0 OR NOT joined STREQUAL wanted)
  message(SEND_ERROR "joining ended with ${outcome} ${said}; it wrote\n${joined}\nnot\n${wanted}")
endif()

file(APPEND "${folder}/home/shown.cppm" "import :kept;\n")
join_interfaces()
if(outcome EQUAL 0 OR NOT said MATCHES "partitions import one another")
  message(SEND_ERROR "partitions that import one another: ${outcome} ${said}")
endif()
