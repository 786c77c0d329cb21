# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the steps of the vcpkg port make a package that a project finds, with nothing of the build
# left in it.
# Method: packaging/ports/vmm/portfile.cmake is run with functions that stand in for vcpkg's and do
# what vcpkg's documentation says of them. vcpkg itself is not here. The port's options configure
# the source for real; what the build would make is taken from the build at hand, which is
# installed.
#   VMM_SOURCE, VMM_BINARY   source and build     WORK     where this test may write
#   COMPILER, MAKE           Clang and ninja      VERSION  that of the project
include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

file(REMOVE_RECURSE "${WORK}")
set(PORT vmm)
set(CURRENT_PORT_DIR "${VMM_SOURCE}/packaging/ports/vmm")
set(CURRENT_PACKAGES_DIR "${WORK}/packages/vmm_x64-linux")
set(steps "")

function(step name)
  list(APPEND steps ${name})
  set(steps "${steps}" PARENT_SCOPE)
endfunction()

macro(vcpkg_check_linkage)
  step(linkage)
endmacro()

# Configures as vcpkg would: Release, into a folder of its own; the options must be known.
macro(vcpkg_cmake_configure)
  cmake_parse_arguments(A "" "SOURCE_PATH" "OPTIONS" ${ARGN})
  run(${CMAKE_COMMAND} -S "${A_SOURCE_PATH}" -B "${WORK}/configured" -G Ninja
      -DCMAKE_MAKE_PROGRAM=${MAKE} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release
      "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" ${A_OPTIONS})
  if(text MATCHES "Manually-specified variables were not used")
    message(FATAL_ERROR "an option of the port is none of vmm's:\n${text}")
  endif()
  foreach(option IN LISTS A_OPTIONS)
    string(REGEX REPLACE "^-D([^=]+)=.*" "\\1" name "${option}")
    file(STRINGS "${WORK}/configured/CMakeCache.txt" found REGEX "^${name}:BOOL=")
    if(NOT found)
      message(FATAL_ERROR "${name} is not an option of vmm")
    endif()
  endforeach()
  step(configure)
endmacro()

macro(vcpkg_cmake_install)
  foreach(component IN ITEMS development c)
    run(${CMAKE_COMMAND} --install "${VMM_BINARY}" --component ${component}
        --prefix "${CURRENT_PACKAGES_DIR}")
  endforeach()
  step(install)
endmacro()

# CONFIG_PATH goes to share/PACKAGE_NAME, and the prefix in it is one folder nearer.
macro(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(A "DO_NOT_DELETE_PARENT_CONFIG_PATH" "PACKAGE_NAME;CONFIG_PATH" "" ${ARGN})
  set(from "${CURRENT_PACKAGES_DIR}/${A_CONFIG_PATH}")
  set(to "${CURRENT_PACKAGES_DIR}/share/${A_PACKAGE_NAME}")
  if(NOT EXISTS "${from}")
    message(FATAL_ERROR "there is no ${A_CONFIG_PATH}")
  endif()
  file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/share")
  file(RENAME "${from}" "${to}")
  file(GLOB_RECURSE files "${to}/*.cmake")
  foreach(file IN LISTS files)
    file(READ "${file}" content)
    string(REPLACE "{CMAKE_CURRENT_LIST_DIR}/../../../" "{CMAKE_CURRENT_LIST_DIR}/../../" content
           "${content}")
    set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${up}${up}" "${up}" content "${content}")
    file(WRITE "${file}" "${content}")
  endforeach()
  if(NOT A_DO_NOT_DELETE_PARENT_CONFIG_PATH)
    file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib/cmake")
  endif()
  step(fixup)
endmacro()

macro(vcpkg_fixup_pkgconfig)
  step(pkgconfig)
endmacro()

macro(vcpkg_install_copyright)
  cmake_parse_arguments(A "" "" "FILE_LIST" ${ARGN})
  file(COPY_FILE "${A_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright")
  step(copyright)
endmacro()

set(ENV{DESTDIR} "")
set(CMAKE_CURRENT_LIST_DIR "${CURRENT_PORT_DIR}")
file(READ "${CURRENT_PORT_DIR}/portfile.cmake" port)
string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}" "${CURRENT_PORT_DIR}" port "${port}")
cmake_language(EVAL CODE "${port}")

if(NOT steps STREQUAL "linkage;configure;install;fixup;fixup;pkgconfig;copyright")
  message(FATAL_ERROR "the port's steps were ${steps}")
endif()
file(READ "${CURRENT_PORT_DIR}/vcpkg.json" manifest)
string(JSON said GET "${manifest}" version)
string(JSON name GET "${manifest}" name)
if(NOT said STREQUAL VERSION OR NOT name STREQUAL "vmm")
  message(FATAL_ERROR "vcpkg.json is of ${name} ${said}, not of vmm ${VERSION}")
endif()
foreach(needed IN ITEMS share/vmm/copyright share/vmm/usage share/vmm/vmmConfig.cmake
                        share/vmm_c/vmm_cConfig.cmake include/vmm.h lib/pkgconfig/vmm.pc)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/${needed}")
    message(FATAL_ERROR "the package has no ${needed}")
  endif()
endforeach()
foreach(unwanted IN ITEMS debug/include share/doc lib/cmake)
  if(EXISTS "${CURRENT_PACKAGES_DIR}/${unwanted}")
    message(FATAL_ERROR "the package still has ${unwanted}")
  endif()
endforeach()
set(ENV{LD_LIBRARY_PATH} "${CURRENT_PACKAGES_DIR}/lib")
string(REPLACE "clang++" "clang" c_compiler "${COMPILER}")  # there need be no cc
run(${CMAKE_COMMAND} -S "${VMM_SOURCE}/tests/c/consumer" -B "${WORK}/consumer" -G Ninja
    "-DCMAKE_C_COMPILER=${c_compiler}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    -DCMAKE_MAKE_PROGRAM=${MAKE} -DWAY=vmm_c "-DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR}")
run(${CMAKE_COMMAND} --build "${WORK}/consumer")
run("${WORK}/consumer/in_c")
message(STATUS "by replacements of vcpkg's functions, configured but not compiled: ${steps}")
