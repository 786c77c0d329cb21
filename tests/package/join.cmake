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
function(join)  # the units, of the module, by the script
  execute_process(COMMAND ${CMAKE_COMMAND} -DMODULE=${module} "-DROOT=${folder}"
                          "-DUNITS=${units}" "-DOUTPUT=${WORK}/joined"
                          -P "${VMM_SOURCE}/cmake/${script}.cmake"
                  RESULT_VARIABLE outcome ERROR_VARIABLE said)
  set(outcome "${outcome}" PARENT_SCOPE)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")  # CMake breaks lines
  set(said "${said}" PARENT_SCOPE)
endfunction()
function(expect_joined wanted)
  join()
  file(READ "${WORK}/joined" joined)
  if(NOT outcome EQUAL 0 OR NOT joined STREQUAL wanted)
    message(SEND_ERROR "joining ended with ${outcome} ${said}; it wrote\n${joined}\nnot\n${wanted}")
  endif()
endfunction()
function(expect_not_joined text)
  join()
  if(outcome EQUAL 0 OR NOT said MATCHES "${text}")
    message(SEND_ERROR "joining ended with ${outcome} ${said}, where it should say ${text}")
  endif()
endfunction()
set(script join_units)
set(module vmm.some_one)
set(units "${folder}/a.cpp;${folder}/b.cpp")
string(CONCAT wanted
       "module;\n#include <cstdio>\n#include \"${folder}/own.h\"\n\nmodule vmm.some_one;\n"
       "\nimport vmm.std;\nimport :part;\nimport vmm.va;\n"
       "\n#line 1 \"${folder}/a.cpp\"\n// A unit.\n\n\n\n\n\n\n\n\n\n"
       "int one() { return 1; }\n"
       "\n#line 1 \"${folder}/b.cpp\"\n// B [1\n\n\n\nint b;\n")
expect_joined("${wanted}")

file(APPEND "${folder}/b.cpp" "#if X\n#endif\n")
expect_not_joined("b.cpp can no longer be joined")

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
set(script join_interfaces)
set(module vmm.one)
set(units "${folder}/home/one.cppm;${folder}/home/deep/kept.cppm;${folder}/home/shown.cppm")
string(CONCAT wanted
       "module;\n#include \"../own.h\"\n\nexport module vmm.one;\n"
       "\nexport import vmm.std;\nimport vmm.va;\n"
       "\n#line 1 \"home/shown.cppm\"\n// Shown\n\n\nexport class a {};\n"
       "\n#line 1 \"home/deep/kept.cppm\"\n// Kept\n\n\n\n\n\n"
       "export class later;\nclass b {};\n"
       "\n#line 1 \"home/one.cppm\"\n// One\n\n\n\nint c [1;\n")
expect_joined("${wanted}")

file(APPEND "${folder}/home/shown.cppm" "import :kept;\n")
expect_not_joined("partitions import one another")
