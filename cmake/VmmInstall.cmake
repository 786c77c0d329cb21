# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# What another project needs for find_package(vmm) and `import vmm;`: the archive, the interface
# units that it was built from, and the CMake package. Compiled interfaces are not installed: they
# fit one compiler and one set of flags, so that the consumer's build makes its own. Included after
# every unit has been added to the library.
include(CMakePackageConfigHelpers)

# A checkout is not a prefix: the installed files would lie among the sources.
get_filename_component(vmm_real_source "${PROJECT_SOURCE_DIR}" REALPATH)
install(CODE "
  get_filename_component(vmm_prefix \"\${CMAKE_INSTALL_PREFIX}\" REALPATH)
  if(\"\$ENV{DESTDIR}\" STREQUAL \"\" AND vmm_prefix STREQUAL \"${vmm_real_source}\")
    message(FATAL_ERROR \"\${CMAKE_INSTALL_PREFIX} is vmm's source folder: install into another \"
                        \"one, as --prefix ~/vmm-installed\")
  endif()" ALL_COMPONENTS)

set(vmm_package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/vmm")

vmm_interface_sets(vmm_sets DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/vmm COMPONENT development)
install(TARGETS vmm EXPORT vmmTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        ${vmm_sets})
install(EXPORT vmmTargets NAMESPACE vmm:: DESTINATION ${vmm_package_folder}
        CXX_MODULES_DIRECTORY modules COMPONENT development)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/vmmConfig.cmake.in"
                              "${CMAKE_CURRENT_BINARY_DIR}/vmmConfig.cmake"
                              INSTALL_DESTINATION ${vmm_package_folder})
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/vmmConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
configure_file("${CMAKE_CURRENT_LIST_DIR}/VmmRequirements.cmake"
               "${CMAKE_CURRENT_BINARY_DIR}/VmmRequirements.cmake" COPYONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/vmmConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/VmmRequirements.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/vmmConfigVersion.cmake"
        DESTINATION ${vmm_package_folder} COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)

# Interface units of vmm.base include it: it goes where they go. Behind the refusal above.
install(FILES ${PROJECT_SOURCE_DIR}/modules/base/thread_annotations.h
        DESTINATION include/vmm/modules/base COMPONENT development)
