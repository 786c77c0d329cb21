# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: a project with any compiler and generator uses the installed C library: by
# find_package(vmm_c), by find_package(vmm COMPONENTS c), and by pkg-config; and find_package(vmm)
# with a component that is not there says so.
# Method: the build is installed, then moved; the project in consumer/ is built by make with the
# system's own compilers, or the build's where the system has none, and its programs run.
#   VMM_BINARY  the build    CONSUMER  the project    WORK  where this test may write
#   COMPILER    the build's Clang
include("${CMAKE_CURRENT_LIST_DIR}/../package/run.cmake")

file(REMOVE_RECURSE "${WORK}")
run(${CMAKE_COMMAND} --install "${VMM_BINARY}" --component c --prefix "${WORK}/made")
run(${CMAKE_COMMAND} --install "${VMM_BINARY}" --component development --prefix "${WORK}/made")
file(RENAME "${WORK}/made" "${WORK}/prefix")  # a package does not know where it was made
set(prefix "${WORK}/prefix")

# The project, by make and whatever compilers the system has.
function(build way)
  set(folder "${WORK}/${way}")
  run(${CMAKE_COMMAND} -S "${CONSUMER}" -B "${folder}" -G "Unix Makefiles" -DWAY=${way}
      "-DCMAKE_PREFIX_PATH=${prefix}" ${ARGN})
  set(said "${text}")
  run(${CMAKE_COMMAND} --build "${folder}")
  run("${folder}/in_c")
  run("${folder}/in_cpp")
  string(REGEX MATCH "CXX compiler identification is [^\n]*" compiler "${said}")
  message(STATUS "${way}: ${compiler}; ${text}")
endfunction()
find_program(make make REQUIRED)
find_program(system_cc NAMES cc gcc clang)
find_program(system_cxx NAMES c++ g++ clang++)
if(NOT system_cc OR NOT system_cxx)
  string(REPLACE "clang++" "clang" c_compiler "${COMPILER}")
  set(ENV{CC} "${c_compiler}")
  set(ENV{CXX} "${COMPILER}")
endif()
build(vmm_c)
build(component)
find_program(gxx g++-12)
find_program(gcc gcc-12)
if(gxx AND gcc)
  build(vmm_c_of_gxx_12 -DCMAKE_CXX_COMPILER=${gxx} -DCMAKE_C_COMPILER=${gcc})
endif()

find_program(pkg_config pkg-config)
find_program(cc cc)
if(pkg_config AND cc)
  file(GLOB_RECURSE pc "${prefix}/*/vmm.pc")
  get_filename_component(folder "${pc}" DIRECTORY)
  set(ENV{PKG_CONFIG_PATH} "${folder}")
  run(${pkg_config} --cflags --libs vmm)
  string(STRIP "${text}" flags)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${cc} -std=c11 "${CONSUMER}/../samples/first.c" -o "${WORK}/by_pkg_config" ${flags})
  file(GLOB libraries "${prefix}/lib*/libvmm.so" "${prefix}/lib*/*/libvmm.so")
  get_filename_component(libraries "${libraries}" DIRECTORY)
  run(${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${libraries}" "${WORK}/by_pkg_config")
endif()

# nvcc compiles and links; what it made needs a GPU to run.
find_program(nvcc nvcc PATHS /usr/local/cuda/bin)
if(nvcc)
  file(GLOB library "${prefix}/lib*/libvmm.so" "${prefix}/lib*/*/libvmm.so")
  run(${nvcc} -std=c++17 "-I${prefix}/include" "${CONSUMER}/../samples/first.cu" -o
      "${WORK}/by_nvcc" "${library}")
endif()

# A component that is not there, with a compiler that could not compile modules: find_package says
# it.
execute_process(COMMAND ${CMAKE_COMMAND} -S "${CONSUMER}" -B "${WORK}/absent" -G "Unix Makefiles"
                        -DWAY=component "-DCMAKE_PREFIX_PATH=${prefix}" -DCOMPONENT=rust
                RESULT_VARIABLE outcome OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(outcome EQUAL 0)
  message(FATAL_ERROR "a component that is not there was found:\n${text}")
endif()
