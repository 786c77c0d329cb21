# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: a project that cannot compile vmm is refused by find_package and by add_subdirectory, with
# the flags to pass, before any target of vmm is used; vmm's own presets are not advised. Nothing is
# installed into the source folder.
# Method: the project in refused/ is configured with pretended compilers, generators and flags.
#   VMM_SOURCE   vmm's source    VMM_BINARY   its build, which has the package's files
#   MAKE         the ninja, which stands in for the make that a machine may lack
#   WORK         where this test may write
set(advice "Configure an empty build folder with -G Ninja -DCMAKE_CXX_COMPILER=clang++-19")

# expect(TEXT GENERATOR ARGUMENT...): both ways in end with TEXT.
function(expect text generator)
  foreach(way IN ITEMS "-Dvmm_DIR=${VMM_BINARY}" "-DVMM_CMAKE=${VMM_SOURCE}/cmake")
    set(folder "${WORK}/refused")
    file(REMOVE_RECURSE "${folder}")
    execute_process(COMMAND ${CMAKE_COMMAND} -S "${VMM_SOURCE}/tests/package/refused" -B "${folder}"
                            -G "${generator}" "-DCMAKE_MAKE_PROGRAM=${MAKE}" ${way} ${ARGN}
                    RESULT_VARIABLE outcome OUTPUT_VARIABLE output ERROR_VARIABLE output)
    string(REGEX REPLACE "[ \n]+" " " output "${output}")
    string(FIND "${output}" "${text}" position)
    string(FIND "${output}" "preset" advised)
    if(outcome EQUAL 0 OR position EQUAL -1 OR NOT advised EQUAL -1)
      message(SEND_ERROR "${way} ${ARGN}\nended with ${outcome}, where it should say\n${text}\n"
                         "and nothing of presets:\n${output}")
    endif()
  endforeach()
endfunction()

function(expect_of_compiler text id version)
  expect("${text}" Ninja -DCMAKE_CXX_COMPILER_ID=${id} -DCMAKE_CXX_COMPILER_VERSION=${version}
         ${ARGN})
endfunction()

set(scanner -DCMAKE_CXX_COMPILER_CLANG_SCAN_DEPS=/usr/bin/clang-scan-deps-19)
expect_of_compiler("this is GNU 12.2.0, which mistranslates modules. ${advice}" GNU 12.2.0)
expect_of_compiler("this is Clang 14.0.6. ${advice}" Clang 14.0.6 ${scanner})
expect_of_compiler("vmm needs Clang 18 or newer; this is MSVC 19.40. ${advice}" MSVC 19.40)
expect_of_compiler("C++ modules need the clang-scan-deps of Clang 19.1.7" Clang 19.1.7)
expect_of_compiler("do not compile with -fno-exceptions" Clang 19.1.7 ${scanner}
                   "-DCMAKE_CXX_FLAGS=-O2 -fno-exceptions")
expect_of_compiler("do not compile with -fno-exceptions" Clang 19.1.7 ${scanner}
                   -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-fno-exceptions)
expect_of_compiler("vmm is C++20; CMAKE_CXX_STANDARD is 17" Clang 19.1.7 ${scanner}
                   -DCMAKE_CXX_STANDARD=17)
expect("C++ modules need the Ninja generator; this is Unix Makefiles. ${advice}" "Unix Makefiles"
       -DCMAKE_CXX_COMPILER_ID=Clang -DCMAKE_CXX_COMPILER_VERSION=19.1.7)
expect("vmm needs C++ among the project's LANGUAGES" Ninja)

# A build type without flags is a line, once; a parent project's own type is not.
function(expect_type line)
  set(folder "${WORK}/refused")
  file(REMOVE_RECURSE "${folder}")
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${VMM_SOURCE}/tests/package/refused" -B "${folder}"
                          -G Ninja "-DCMAKE_MAKE_PROGRAM=${MAKE}" ${scanner} ${ARGN}
                          -DVMM_CMAKE=${VMM_SOURCE}/cmake -DCMAKE_CXX_COMPILER_ID=Clang
                          -DCMAKE_CXX_COMPILER_VERSION=19.1.7
                  RESULT_VARIABLE outcome OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX MATCHALL "vmm: [^\n]*\n" lines "${output}")
  if(NOT outcome EQUAL 0 OR NOT lines STREQUAL line)
    message(SEND_ERROR "${ARGN}\nended with ${outcome} and says\n${lines}where it should say\n"
                       "${line}")
  endif()
endfunction()

string(CONCAT empty "vmm: CMAKE_BUILD_TYPE is empty, and nothing is optimised: "
                    "configure with -DCMAKE_BUILD_TYPE=Release\n")
string(CONCAT unknown "vmm: CMAKE_BUILD_TYPE 'Relase' is not known, and nothing is optimised: "
                      "it is Debug, Release, RelWithDebInfo or MinSizeRel\n")
foreach(top IN ITEMS ON OFF)
  expect_type("${empty}" -DVMM_TOP_LEVEL=${top})
  expect_type("${empty}" -DVMM_TOP_LEVEL=${top} -DCMAKE_BUILD_TYPE=)
  foreach(type IN ITEMS Debug Release RelWithDebInfo MinSizeRel release)
    expect_type("" -DVMM_TOP_LEVEL=${top} -DCMAKE_BUILD_TYPE=${type})
  endforeach()
  expect_type("" -DVMM_TOP_LEVEL=${top} -DCMAKE_BUILD_TYPE=Own -DCMAKE_CXX_FLAGS_OWN=-O1)
endforeach()
expect_type("${unknown}" -DVMM_TOP_LEVEL=ON -DCMAKE_BUILD_TYPE=Relase)
expect_type("" -DVMM_TOP_LEVEL=OFF -DCMAKE_BUILD_TYPE=Relase)

# An installation among the sources is refused, and leaves nothing there. The folder is a link.
file(REMOVE "${WORK}/link to vmm")
file(CREATE_LINK "${VMM_SOURCE}" "${WORK}/link to vmm" SYMBOLIC)
foreach(component IN ITEMS c development)
  execute_process(COMMAND ${CMAKE_COMMAND} --install "${VMM_BINARY}" --component ${component}
                          --prefix "${WORK}/link to vmm"
                  RESULT_VARIABLE outcome OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(outcome EQUAL 0 OR NOT output MATCHES "is vmm's source folder" OR
     EXISTS "${VMM_SOURCE}/lib" OR EXISTS "${VMM_SOURCE}/include")
    message(SEND_ERROR "the source folder as a prefix, component ${component}:\n${output}")
  endif()
endforeach()
