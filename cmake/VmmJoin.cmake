# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Implementation units of one module as one. A unit costs what it imports and the templates that it
# instantiates; those of a module import much the same. The library then takes a sixth less of
# processor time under dev, a tenth less in release. It is a part of a build, not of the sources:
# without VMM_JOIN_UNITS, in the gpu preset and in release under ./run test --all, each unit is
# compiled by itself, which shows that it names what it imports.

include(VmmUnitText)

# A joined file ends with the unit that takes it past this size: an edit compiles one such file.
set(vmm_joined_bytes 100000)

# vmm_join_units(TARGET): with VMM_JOIN_UNITS, replaces units of TARGET by files that hold several
# of them. What cannot be joined (VmmUnitText.cmake) stays by itself, and so does a unit with
# options or definitions of its own, which are to be there before this.
function(vmm_join_units target)
  if(NOT VMM_JOIN_UNITS)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(modules "")
  set(apart "")
  foreach(source IN LISTS sources)
    get_filename_component(source "${source}" ABSOLUTE)
    set(own "")
    foreach(property IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS GENERATED)
      get_property(value SOURCE "${source}" TARGET_DIRECTORY ${target} PROPERTY ${property})
      string(APPEND own "${value}")
    endforeach()
    set(module "")
    if(NOT own)
      file(READ "${source}" text)
      vmm_module_of(module "${text}")
    endif()
    if(NOT module)
      list(APPEND apart "${source}")
      continue()
    endif()
    list(APPEND modules ${module})
    list(APPEND units_of_${module} "${source}")
  endforeach()
  list(REMOVE_DUPLICATES modules)
  set_target_properties(${target} PROPERTIES SOURCES "${apart}")
  foreach(module IN LISTS modules)
    set(batch "")
    set(batch_bytes 0)
    set(number 0)
    foreach(unit IN LISTS units_of_${module})
      file(SIZE "${unit}" bytes)
      list(APPEND batch "${unit}")
      math(EXPR batch_bytes "${batch_bytes} + ${bytes}")
      if(batch_bytes GREATER vmm_joined_bytes)
        math(EXPR number "${number} + 1")
        vmm_join_batch(${target} ${module} ${number} ${batch})
        set(batch "")
        set(batch_bytes 0)
      endif()
    endforeach()
    math(EXPR number "${number} + 1")
    vmm_join_batch(${target} ${module} ${number} ${batch})
  endforeach()
endfunction()

# vmm_join_batch(TARGET MODULE NUMBER UNIT...): one unit is added as it is, more as one file.
function(vmm_join_batch target module number)
  list(LENGTH ARGN count)
  if(count LESS 2)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  set(joined "${CMAKE_CURRENT_BINARY_DIR}/${target}_joined/${module}-${number}.cpp")
  set(folder "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  add_custom_command(OUTPUT "${joined}"
                     COMMAND "${CMAKE_COMMAND}" -DMODULE=${module} "-DUNITS=${ARGN}"
                             "-DOUTPUT=${joined}" -P "${folder}/join_units.cmake"
                     DEPENDS ${ARGN} "${folder}/join_units.cmake" "${folder}/VmmUnitText.cmake"
                     VERBATIM COMMENT "Joining units of ${module}")
  set(folders "")
  foreach(unit IN LISTS ARGN)
    get_property(more SOURCE "${unit}" TARGET_DIRECTORY ${target} PROPERTY INCLUDE_DIRECTORIES)
    list(APPEND folders ${more})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set_source_files_properties("${joined}" PROPERTIES INCLUDE_DIRECTORIES "${folders}")
  target_sources(${target} PRIVATE "${joined}")
endfunction()
