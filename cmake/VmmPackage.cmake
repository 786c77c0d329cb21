# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Debian packages, by `cpack -G DEB`: libvmm1 (the C library), libvmm-dev (its headers, CMake
# package and pkg-config file), libvmm-modules-dev (the modules), vmm-tools (programs and the
# preload library) and python3-libvmm. Each is a component of its own name, which a plain `cmake
# --install` leaves alone: where Debian has libraries is not where a prefix has them. Included
# last.
if(NOT TARGET vmm_c)
  return()
endif()
include(CMakePackageConfigHelpers)

set(VMM_PACKAGE_CONTACT "The vmm authors <vmm@localhost.invalid>" CACHE STRING
    "Maintainer of the Debian packages: who publishes them names an address")
set(vmm_lib "lib")
if(CMAKE_LIBRARY_ARCHITECTURE)
  set(vmm_lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()
set(vmm_made "${CMAKE_CURRENT_BINARY_DIR}/debian")

# vmm_ships(PACKAGE DESTINATION FILE...): these files are part of the package.
function(vmm_ships package destination)
  install(FILES ${ARGN} DESTINATION ${destination} COMPONENT ${package} EXCLUDE_FROM_ALL)
endfunction()

# ---- the C library -----------------------------------------------------------------------------

install(TARGETS vmm_c EXPORT vmm_cDebianTargets
        LIBRARY DESTINATION ${vmm_lib} COMPONENT libvmm1 NAMELINK_COMPONENT libvmm-dev
        EXCLUDE_FROM_ALL)
vmm_ships(libvmm-dev include "${PROJECT_SOURCE_DIR}/adapters/c/include/vmm.h"
          "${PROJECT_SOURCE_DIR}/adapters/c/include/vmm.hpp"
          "${PROJECT_SOURCE_DIR}/adapters/c/include/vmm_allocator.h")
install(EXPORT vmm_cDebianTargets NAMESPACE vmm:: FILE vmm_cTargets.cmake
        DESTINATION ${vmm_lib}/cmake/vmm_c COMPONENT libvmm-dev EXCLUDE_FROM_ALL)
configure_file("${PROJECT_SOURCE_DIR}/cmake/vmm_cConfig.cmake.in" "${vmm_made}/vmm_cConfig.cmake"
               @ONLY)
write_basic_package_version_file("${vmm_made}/vmm_cConfigVersion.cmake"
                                 COMPATIBILITY SameMajorVersion)
vmm_ships(libvmm-dev ${vmm_lib}/cmake/vmm_c "${vmm_made}/vmm_cConfig.cmake"
          "${vmm_made}/vmm_cConfigVersion.cmake")
block()
  set(CMAKE_INSTALL_LIBDIR "${vmm_lib}")
  set(CMAKE_INSTALL_INCLUDEDIR include)
  file(RELATIVE_PATH vmm_c_up "/p/${vmm_lib}/pkgconfig" "/p")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/vmm.pc.in" "${vmm_made}/vmm.pc" @ONLY)
endblock()
vmm_ships(libvmm-dev ${vmm_lib}/pkgconfig "${vmm_made}/vmm.pc")

# ---- the modules -------------------------------------------------------------------------------

vmm_interface_sets(vmm_sets DESTINATION include/vmm COMPONENT libvmm-modules-dev EXCLUDE_FROM_ALL)
install(TARGETS vmm EXPORT vmmDebianTargets
        ARCHIVE DESTINATION ${vmm_lib} COMPONENT libvmm-modules-dev EXCLUDE_FROM_ALL
        ${vmm_sets})
vmm_ships(libvmm-modules-dev include/vmm/modules/base
          "${PROJECT_SOURCE_DIR}/modules/base/thread_annotations.h")
install(EXPORT vmmDebianTargets NAMESPACE vmm:: FILE vmmTargets.cmake
        DESTINATION ${vmm_lib}/cmake/vmm CXX_MODULES_DIRECTORY modules
        COMPONENT libvmm-modules-dev EXCLUDE_FROM_ALL)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/vmmConfig.cmake.in"
                              "${vmm_made}/vmmConfig.cmake"
                              INSTALL_DESTINATION ${vmm_lib}/cmake/vmm INSTALL_PREFIX /usr)
vmm_ships(libvmm-modules-dev ${vmm_lib}/cmake/vmm "${vmm_made}/vmmConfig.cmake"
          "${CMAKE_CURRENT_BINARY_DIR}/VmmRequirements.cmake"
          "${CMAKE_CURRENT_BINARY_DIR}/vmmConfigVersion.cmake")

# ---- programs, the preload library, Python -----------------------------------------------------

set(vmm_packages libvmm1 libvmm-dev libvmm-modules-dev python3-libvmm)
if(TARGET vmm-history)
  list(APPEND vmm_packages vmm-tools)
  install(TARGETS vmm-fit vmm-replay vmm-trace vmm-history vmm-top vmm-owner
          RUNTIME DESTINATION bin COMPONENT vmm-tools EXCLUDE_FROM_ALL)
  if(TARGET vmm_preload)
    install(TARGETS vmm_preload
            LIBRARY DESTINATION ${vmm_lib} COMPONENT vmm-tools EXCLUDE_FROM_ALL)
  endif()
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/adapters/python/src/libvmm"
        DESTINATION lib/python3/dist-packages
        COMPONENT python3-libvmm EXCLUDE_FROM_ALL PATTERN "__pycache__" EXCLUDE)
file(WRITE "${vmm_made}/METADATA"
     "Metadata-Version: 2.1\nName: libvmm\nVersion: ${PROJECT_VERSION}\n")
file(WRITE "${vmm_made}/INSTALLER" "dpkg\n")
vmm_ships(python3-libvmm "lib/python3/dist-packages/libvmm-${PROJECT_VERSION}.dist-info"
          "${vmm_made}/METADATA" "${vmm_made}/INSTALLER")

# ---- the metadata of Debian ----------------------------------------------------------------------

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME vmm)
set(CPACK_PACKAGE_VENDOR "The vmm authors")
set(CPACK_PACKAGE_CONTACT "${VMM_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL ${vmm_packages})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)

# vmm_package(NAME SECTION TEXT DEPENDS [SHLIBDEPS]): one package's fields.
function(vmm_package name section text depends)
  string(TOUPPER "${name}" key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_DESCRIPTION "${text}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${text}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  if(ARGN)
    set(CPACK_DEBIAN_${key}_PACKAGE_SHLIBDEPS ON PARENT_SCOPE)
  endif()
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION share/doc/${name} RENAME copyright
          COMPONENT ${name} EXCLUDE_FROM_ALL)
endfunction()

set(vmm_same "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
vmm_package(libvmm1 libs "GPU virtual memory: the C library
 Stream-ordered pools and growing ranges of GPU memory, by remapping instead of copying."
            "" SHLIBDEPS)
vmm_package(libvmm-dev libdevel "GPU virtual memory: headers of the C library
 vmm.h for C, vmm.hpp for C++17 and nvcc, a CMake package and a pkg-config file."
            "libvmm1 ${vmm_same}")
vmm_package(libvmm-modules-dev libdevel "GPU virtual memory: C++20 modules
 The modules' sources and archive, for CMake 3.28, Ninja and Clang 19."
            "libstdc++-12-dev | libstdc++-dev")
vmm_package(python3-libvmm python "GPU virtual memory: Python package
 Pools and ranges from Python, and the memory of PyTorch, CuPy, Numba and RMM from them."
            "python3 (>= 3.9), libvmm1 ${vmm_same}")
set(CPACK_DEBIAN_PYTHON3-LIBVMM_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON3-LIBVMM_PACKAGE_RECOMMENDS "libvmm-dev, vmm-tools")
vmm_package(vmm-tools utils "GPU virtual memory: tools
 Replay and history of allocations, what running processes hold, and a library that serves
 unmodified CUDA programs."
            "" SHLIBDEPS)
file(WRITE "${vmm_made}/triggers" "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBVMM1_PACKAGE_CONTROL_EXTRA "${vmm_made}/triggers")
include(CPack)
