# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)

# Links tests, and all where a sanitizer makes programs large, in half of the time or less.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND (VMM_SANITIZE OR VMM_BUILD_TESTS))
  string(REGEX MATCH "^[0-9]+" vmm_llvm "${CMAKE_CXX_COMPILER_VERSION}")
  find_program(VMM_LLD NAMES ld.lld-${vmm_llvm} ld.lld)
endif()

# A module interface built with one sanitizer cannot be read by a unit built with another:
# sanitizers are global.
if(VMM_SANITIZE)
  add_compile_options(-fsanitize=${VMM_SANITIZE} -fno-omit-frame-pointer)
  string(REPLACE "fuzzer-no-link," "" VMM_LINK_SANITIZE "${VMM_SANITIZE}")
  add_link_options(-fsanitize=${VMM_LINK_SANITIZE})
  if(VMM_LLD)
    add_link_options("--ld-path=${VMM_LLD}")
  endif()
  if(VMM_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  # Inputs are programs: branches guide the fuzzers. Compared values only slow them down, and so
  # does the depth of the stack, where nothing recurs.
  if(VMM_SANITIZE MATCHES "fuzzer")
    add_compile_options(
      -fno-sanitize-coverage=trace-cmp,stack-depth
      "-fsanitize-coverage-ignorelist=${PROJECT_SOURCE_DIR}/fuzz/not_covered.txt")
  endif()
endif()

# What every library target of vmm has in common.
function(vmm_library_defaults target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_definitions(${target} PUBLIC VMM_CHECK_LEVEL=${VMM_CHECK_LEVEL}
                             VMM_SCHEDULE_POINTS=$<BOOL:${VMM_SCHEDULE_POINTS}>)
  vmm_warnings(${target})
  if(PROJECT_IS_TOP_LEVEL)  # the order of locks
    target_compile_options(
      ${target} PRIVATE "$<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:Clang>:-Wthread-safety-beta>>")
  endif()
endfunction()

# Warnings are ours to keep at none with Clang, the compiler that this is written for; GCC's own are
# only shown. A parent project decides for itself. BUILD_INTERFACE, because an installed module
# library carries its private options to every consumer that compiles its interfaces.
function(vmm_warnings target)
  if(PROJECT_IS_TOP_LEVEL)
    set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                 $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety> $<$<CXX_COMPILER_ID:Clang>:-Werror>)
    target_compile_options(${target} PRIVATE "$<BUILD_INTERFACE:${warnings}>")
  endif()
endfunction()

# vmm_units(INTERFACES a.cppm ... SOURCES a.cpp ...): adds this folder's units to the library, which
# gets its interfaces when all are listed (vmm_add_interfaces).
function(vmm_units)
  cmake_parse_arguments(A "" "" "INTERFACES;SOURCES" ${ARGN})
  list(TRANSFORM A_INTERFACES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  list(TRANSFORM A_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set_property(TARGET vmm APPEND PROPERTY VMM_INTERFACES ${A_INTERFACES})
  target_sources(vmm PRIVATE ${A_SOURCES})
endfunction()

# vmm_starts_threads(RESULT FILE...): whether one of the files, or of what it includes in quotes,
# starts a thread.
function(vmm_starts_threads result)
  set(${result} FALSE PARENT_SCOPE)
  set(seen "")
  foreach(source IN LISTS ARGN)
    get_filename_component(source "${source}" ABSOLUTE)
    set(files "${source}")
    while(files)
      list(POP_FRONT files file)
      if(file IN_LIST seen OR NOT EXISTS "${file}")
        continue()
      endif()
      list(APPEND seen "${file}")
      file(READ "${file}" text)
      if(text MATCHES "std::(jthread|thread|async)[^:_a-z]|pthread_create|schedule::crew")
        set(${result} TRUE PARENT_SCOPE)
        return()
      endif()
      get_filename_component(folder "${file}" DIRECTORY)
      string(REGEX MATCHALL "#include \"[^\"]+" includes "${text}")
      foreach(name IN LISTS includes)
        string(REPLACE "#include \"" "" name "${name}")
        get_filename_component(name "${folder}/${name}" ABSOLUTE)
        list(APPEND files "${name}")
      endforeach()
    endwhile()
  endforeach()
  # A thread in one of them is a reason to configure again.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${seen})
endfunction()

# vmm_is_left_out(RESULT LABELS FILE...): whether a program of these files has nothing to show to
# ThreadSanitizer (VMM_TEST_ONLY_THREADS). The label `threads` is for what starts one elsewhere,
# `forks` for what skips there, since the sanitizer's own threads do not survive a fork.
function(vmm_is_left_out result labels)
  set(${result} FALSE PARENT_SCOPE)
  if(VMM_TEST_ONLY_THREADS AND NOT "threads" IN_LIST labels)
    vmm_starts_threads(starts ${ARGN})
    if(NOT starts OR "gpu" IN_LIST labels OR "forks" IN_LIST labels)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

# vmm_sources_to_test(RESULT LABELS FILE...): the files; under VMM_TEST_ONLY_THREADS, unless the
# label `threads` is there, without those whose tests start none. A file without a test serves the
# others.
function(vmm_sources_to_test result labels)
  set(${result} ${ARGN} PARENT_SCOPE)
  if(NOT VMM_TEST_ONLY_THREADS OR "threads" IN_LIST labels)
    return()
  endif()
  set(kept "")
  foreach(source IN LISTS ARGN)
    file(READ "${source}" text)
    vmm_starts_threads(starts "${source}")
    if(starts OR NOT text MATCHES "\n(TYPED_)?TEST(_F|_P)?\\(")
      list(APPEND kept "${source}")
    endif()
  endforeach()
  if(kept)
    set(${result} ${kept} PARENT_SCOPE)
  endif()
endfunction()

# vmm_run_test(NAME LABELS IS_EACH [VARIABLE:OPTIONS]): the program is one CTest test, whose tests
# are afterwards in gtest/NAME.xml; ./run counts them there. To start a process takes longer than
# most tests do. IS_EACH: each of its tests is a CTest test. VARIABLE gets more options, behind
# those that it has.
function(vmm_run_test name labels is_each)
  set(environment "")
  if(ARGN)
    string(REGEX REPLACE "^([A-Z_]+):" "\\1=path_list_append:" environment "${ARGN}")
    list(PREPEND environment ENVIRONMENT_MODIFICATION)
  endif()
  if(is_each)
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}."
                         PROPERTIES LABELS "${labels}" ${environment})
  else()
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1
             "--gtest_output=xml:${PROJECT_BINARY_DIR}/gtest/${name}.xml")
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" ${environment})
  endif()
endfunction()

# vmm_joined(RESULT NAME FILE...): the files; with VMM_JOIN_SOURCES one that includes them, so that
# a compiler reads only once what they all include and import. Includes come before imports: what
# the files include in angle brackets is said first. A unit of a module stays by itself, and so does
# a file that includes something on a condition.
function(vmm_joined result name)
  set(${result} ${ARGN} PARENT_SCOPE)
  set(joined "")
  set(apart "")
  set(headers "")
  foreach(source IN LISTS ARGN)
    file(READ "${source}" text)
    if(text MATCHES "\n(module|#if)[^\n]*\n")
      list(APPEND apart "${source}")
      continue()
    endif()
    get_filename_component(source "${source}" ABSOLUTE)
    string(APPEND joined "#include \"${source}\"\n")
    string(REGEX MATCHALL "#include <[^>]+>" lines "${text}")
    list(APPEND headers ${lines})
  endforeach()
  list(LENGTH apart apart_count)
  math(EXPR joined_count "${ARGC} - 2 - ${apart_count}")
  if(VMM_JOIN_SOURCES AND joined_count GREATER 1)
    list(REMOVE_DUPLICATES headers)
    list(JOIN headers "\n" headers)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/${name}_joined.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${headers}\n${joined}" @ONLY)
    set(${result} ${apart} "${file}" PARENT_SCOPE)
  endif()
endfunction()

# `vmm_test(NAME name SOURCES ... [LABELS ...] [ENVIRONMENT VARIABLE:OPTIONS] [EACH] [APART])`: a
# GoogleTest program. EACH is for tests that take seconds, so that they share the cores, and for
# those that need a process of their own. `APART` is for sources that have names in common and
# cannot be joined. A test that is left out can still be built by its name. Unless
# VMM_TEST_EVERY_PROGRAM is set, tests without one of the labels conformance and release are:
# those that find the same under a sanitizer without optimisation.
function(vmm_test)
  cmake_parse_arguments(A "EACH;APART" "NAME;ENVIRONMENT" "SOURCES;LABELS;LIBRARIES" ${ARGN})
  vmm_sources_to_test(sources "${A_LABELS}" ${A_SOURCES})
  if(NOT A_APART)
    vmm_joined(sources ${A_NAME} ${sources})
  endif()
  add_executable(${A_NAME} ${sources})
  target_link_libraries(${A_NAME} PRIVATE vmm::vmm GTest::gtest GTest::gtest_main ${A_LIBRARIES})
  target_compile_options(${A_NAME} PRIVATE ${VMM_TEST_FLAGS})
  vmm_warnings(${A_NAME})
  target_precompile_headers(${A_NAME} REUSE_FROM vmm_test_headers)
  if(VMM_LLD AND NOT VMM_SANITIZE)
    target_link_options(${A_NAME} PRIVATE "--ld-path=${VMM_LLD}")
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  vmm_is_left_out(is_left_out "${A_LABELS}" ${A_SOURCES})
  if(NOT VMM_TEST_EVERY_PROGRAM AND NOT A_LABELS MATCHES "(^|;)(conformance|release)(;|$)")
    set(is_left_out TRUE)
  endif()
  if(is_left_out)
    set_target_properties(${A_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    vmm_run_test(${A_NAME} "${A_LABELS}" ${A_EACH} ${A_ENVIRONMENT})
  endif()
endfunction()

# As vmm_test, for programs that replace operator new. ThreadSanitizer keeps its own: there they
# are left out.
function(vmm_allocation_test)
  if(NOT VMM_SANITIZE MATCHES "thread")
    vmm_test(${ARGN})
  endif()
endfunction()

# vmm_program_headers(): tools/program/standard.hpp, compiled once where sources are joined. A
# program with another -O than VMM_PROGRAM_FLAGS has DISABLE_PRECOMPILE_HEADERS, and so has what
# shows to users what to include.
function(vmm_program_headers)
  add_library(vmm_program_headers OBJECT "${PROJECT_SOURCE_DIR}/tools/program/headers.cpp")
  target_link_libraries(vmm_program_headers PRIVATE vmm::vmm)
  target_compile_options(vmm_program_headers PRIVATE ${VMM_PROGRAM_FLAGS})
  vmm_warnings(vmm_program_headers)
  target_precompile_headers(vmm_program_headers PRIVATE
                            "${PROJECT_SOURCE_DIR}/tools/program/standard.hpp")
endfunction()

# vmm_program(name sources...): a tool, example or benchmark, with what they all do when they start
# and when they cannot go on (tools/program/program.cpp).
function(vmm_program name)
  vmm_bare_program(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE vmm_program_start)
endfunction()

# vmm_for_all_tests(TARGET...): unless VMM_TEST_ALL is set, built where its name is given.
function(vmm_for_all_tests)
  if(NOT VMM_TEST_ALL)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# vmm_bare_program(name sources...): without that, for a program with a main of its own.
function(vmm_bare_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE vmm::vmm)
  target_compile_options(${name} PRIVATE ${VMM_PROGRAM_FLAGS})
  vmm_warnings(${name})
  if(VMM_JOIN_SOURCES)
    target_precompile_headers(${name} REUSE_FROM vmm_program_headers)
  endif()
endfunction()
