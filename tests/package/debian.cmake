# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: the Debian packages hold what they say, need what they use, and work together: a C program
# by pkg-config, C and C++17 by find_package, a program of modules, Python, the tools and the
# preload library.
# Method: CPack makes them of this build; dpkg-deb unpacks them into one folder, as installing would
# into /; the programs are built and run against that folder. packaging/release.sh try installs them
# into a bare system, which needs root.
#   VMM_SOURCE, VMM_BINARY   source and build     CPACK    the cpack to use
#   COMPILER, MAKE           Clang and ninja      WORK     where this test may write
#   VERSION                  that of the project  PYTHON   a Python
find_program(dpkg_deb dpkg-deb)
find_program(shlibdeps dpkg-shlibdeps)
if(NOT dpkg_deb OR NOT shlibdeps)
  message("skipped: there is no dpkg-deb or no dpkg-shlibdeps (dpkg-dev)")
  return()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

# expect(TEXT PATTERN...): the text has each of them.
function(expect where)
  foreach(pattern IN LISTS ARGN)
    if(NOT text MATCHES "${pattern}")
      message(SEND_ERROR "${where} has no ${pattern}:\n${text}")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}/root")
run("${CPACK}" --config "${VMM_BINARY}/CPackConfig.cmake" -G DEB -B "${WORK}/made")
file(GLOB packages "${WORK}/made/*.deb")
set(names "")
foreach(package IN LISTS packages)
  get_filename_component(name "${package}" NAME)
  string(REGEX REPLACE "_.*" "" name "${name}")
  list(APPEND names "${name}")
  run("${dpkg_deb}" --field "${package}" Version)
  expect("${name}" "^${VERSION}-1\n$")
  run("${dpkg_deb}" --field "${package}" Depends)
  set(depends_of_${name} "${text}")
  run("${dpkg_deb}" --contents "${package}")
  expect("${name}" "\\./usr/share/doc/${name}/copyright\n")
  if(text MATCHES "__pycache__|/usr/local|[ /]build/")
    message(SEND_ERROR "${name} holds what it should not:\n${text}")
  endif()
  foreach(file IN LISTS files_seen)
    string(FIND "${text}" " .${file}\n" position)
    if(NOT position EQUAL -1)
      message(SEND_ERROR "${file} is in two packages, one of them ${name}")
    endif()
  endforeach()
  string(REGEX MATCHALL "[^ ]+[^/]\n" files "${text}")
  list(TRANSFORM files REPLACE "^\\.(.*)\n$" "\\1")
  list(APPEND files_seen ${files})
  run("${dpkg_deb}" --extract "${package}" "${WORK}/root")
endforeach()
set(wanted libvmm-dev libvmm-modules-dev libvmm1 python3-libvmm vmm-tools)
if(NOT names STREQUAL wanted)
  message(FATAL_ERROR "the packages are ${names}, not ${wanted}")
endif()
set(text "${depends_of_libvmm1}")
expect("libvmm1's needs" "^libc6 \\(>= [0-9.]+\\)\n$")  # and no C++ library
set(text "${depends_of_libvmm-dev}${depends_of_python3-libvmm}")
expect("needs" "libvmm1 \\(= ${VERSION}-1\\)\n.*python3.*libvmm1 \\(= ${VERSION}-1\\)\n")
set(text "${depends_of_vmm-tools}")
expect("vmm-tools' needs" "libc6" "libstdc\\+\\+6")

set(root "${WORK}/root/usr")
file(GLOB library "${root}/lib/libvmm.so.1" "${root}/lib/*/libvmm.so.1")
get_filename_component(lib "${library}" DIRECTORY)
set(ENV{LD_LIBRARY_PATH} "${lib}")
set(ENV{PKG_CONFIG_PATH} "${lib}/pkgconfig")

find_program(pkg_config pkg-config)
find_program(cc cc)
if(pkg_config AND cc)
  run("${pkg_config}" --modversion vmm)
  expect("vmm.pc" "^${VERSION}\n$")
  run("${pkg_config}" --cflags --libs vmm)
  string(STRIP "${text}" flags)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run("${cc}" -std=c11 "${VMM_SOURCE}/tests/c/samples/first.c" -o "${WORK}/first" ${flags})
  run("${WORK}/first")
endif()

run(${CMAKE_COMMAND} -S "${VMM_SOURCE}/tests/c/consumer" -B "${WORK}/consumer" -G Ninja
    -DCMAKE_MAKE_PROGRAM=${MAKE} -DWAY=vmm_c "-DCMAKE_PREFIX_PATH=${root}")
run(${CMAKE_COMMAND} --build "${WORK}/consumer")
run("${WORK}/consumer/in_cpp")

# The first program of the pages, with the lines that they give for CMake.
if(MODULES)
  file(READ "${VMM_SOURCE}/README.md" page)
  string(REGEX MATCH "```cmake\n([^`]*)```" lines "${page}")
  file(WRITE "${WORK}/program/CMakeLists.txt"
       "cmake_minimum_required(VERSION 3.28)\nproject(app CXX)\nset(CMAKE_CXX_STANDARD 20)\n"
       "add_executable(app \"${VMM_SOURCE}/examples/first.cpp\")\n${CMAKE_MATCH_1}")
  run(${CMAKE_COMMAND} -S "${WORK}/program" -B "${WORK}/program/build" -G Ninja
      -DCMAKE_MAKE_PROGRAM=${MAKE} -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_PREFIX_PATH=${root}")
  run(${CMAKE_COMMAND} --build "${WORK}/program/build")
  set(ENV{VMM_BACKEND} host)
  run("${WORK}/program/build/app")
  expect("the program of modules" "^3 MiB at ")
  unset(ENV{VMM_BACKEND})
endif()

if(PYTHON)
  set(ENV{PYTHONPATH} "${root}/lib/python3/dist-packages")
  run("${PYTHON}" -B -c "import libvmm, importlib.metadata as m
with libvmm.Driver('host') as driver, libvmm.Pool(driver) as pool:
    print(pool.allocate(3 << 20), libvmm.__version__, m.version('libvmm'), libvmm.__file__)")
  expect("Python" "3145728 bytes> ${VERSION} ${VERSION} ${root}/lib/python3")
endif()

execute_process(COMMAND "${root}/bin/vmm-trace" pictures 1 OUTPUT_FILE "${WORK}/pictures.trace"
                RESULT_VARIABLE outcome)
run("${root}/bin/vmm-replay" "${WORK}/pictures.trace" --backend fake --history "${WORK}/history")
run("${root}/bin/vmm-history" summary "${WORK}/history")
file(MAKE_DIRECTORY "${WORK}/runtime")
run(${CMAKE_COMMAND} -E env "XDG_RUNTIME_DIR=${WORK}/runtime" "${root}/bin/vmm-top" --once)
expect("vmm-top" "PROCESS +PROGRAM")
if(EXISTS "${lib}/libvmm_preload.so")
  run(${CMAKE_COMMAND} -E env "LD_PRELOAD=${lib}/libvmm_preload.so" VMM_MODE=monitor true)
  if(PYTHON)
    file(WRITE "${WORK}/script.py" "import os\nprint(os.path.realpath(os.environ['LD_PRELOAD']))\n")
    run("${PYTHON}" -B -m libvmm run --mode monitor "${WORK}/script.py")
    expect("Python's run" "^${lib}/libvmm_preload.so\n$")
  endif()
endif()
message(STATUS "unpacked into a folder and used: ${names}")
