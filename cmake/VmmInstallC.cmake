# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# What another project needs for find_package(vmm_c) or pkg-config: libvmm.so, two headers, and two
# files that say where they are. No module is in them, so any compiler and generator will do.
include(CMakePackageConfigHelpers)

set(vmm_c_folder "${CMAKE_INSTALL_LIBDIR}/cmake/vmm_c")

install(TARGETS vmm_c EXPORT vmm_cTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT c NAMELINK_COMPONENT c)
install(FILES "${PROJECT_SOURCE_DIR}/adapters/c/include/vmm.h"
              "${PROJECT_SOURCE_DIR}/adapters/c/include/vmm.hpp"
              "${PROJECT_SOURCE_DIR}/adapters/c/include/vmm_allocator.h"
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT c)
install(EXPORT vmm_cTargets NAMESPACE vmm:: FILE vmm_cTargets.cmake
        DESTINATION ${vmm_c_folder} COMPONENT c)

configure_file("${PROJECT_SOURCE_DIR}/cmake/vmm_cConfig.cmake.in"
               "${CMAKE_CURRENT_BINARY_DIR}/vmm_cConfig.cmake" @ONLY)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/vmm_cConfigVersion.cmake"
                                 COMPATIBILITY SameMajorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vmm_cConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/vmm_cConfigVersion.cmake"
        DESTINATION ${vmm_c_folder} COMPONENT c)

# pkg-config finds the folders from where the file lies, so that the whole may be moved.
file(RELATIVE_PATH vmm_c_up "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
configure_file("${PROJECT_SOURCE_DIR}/cmake/vmm.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/vmm.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vmm.pc"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT c)
