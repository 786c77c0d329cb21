# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Implementation units of one module as one. A unit costs what it imports and the templates that it
# instantiates; those of a module import much the same. The library then takes a sixth less of
# processor time under dev, a fifth less in release. It is a part of a build, not of the sources:
# without VMM_JOIN_UNITS each unit of the library is compiled by itself, which shows that it names
# what it imports.

# A joined file ends with the unit that takes it past this size: an edit compiles one such file.
set(vmm_joined_bytes 100000)

# vmm_join_units(TARGET): replaces units of TARGET by files that hold several of them. A unit with
# an #if, a #define or options of its own stays by itself: they are meant for that file alone.
function(vmm_join_units target)
  get_target_property(sources ${target} SOURCES)
  set(modules "")
  set(apart "")
  foreach(source IN LISTS sources)
    get_filename_component(source "${source}" ABSOLUTE)
    get_property(options SOURCE "${source}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_OPTIONS)
    get_property(generated SOURCE "${source}" TARGET_DIRECTORY ${target} PROPERTY GENERATED)
    set(text "")
    if(NOT options AND NOT generated)
      file(READ "${source}" text)
    endif()
    if(text MATCHES "\n#(if|define)" OR NOT text MATCHES "\nmodule (vmm[a-z_.]*);")
      list(APPEND apart "${source}")
      continue()
    endif()
    string(REPLACE "." "_" module "${CMAKE_MATCH_1}")
    list(APPEND modules ${module})
    list(APPEND units_of_${module} "${source}")
    file(SIZE "${source}" bytes)
    list(APPEND sizes_of_${module} ${bytes})
  endforeach()
  list(REMOVE_DUPLICATES modules)
  set_target_properties(${target} PROPERTIES SOURCES "${apart}")
  foreach(module IN LISTS modules)
    set(batch "")
    set(batch_bytes 0)
    set(number 0)
    foreach(unit bytes IN ZIP_LISTS units_of_${module} sizes_of_${module})
      list(APPEND batch "${unit}")
      math(EXPR batch_bytes "${batch_bytes} + ${bytes}")
      if(batch_bytes GREATER vmm_joined_bytes)
        math(EXPR number "${number} + 1")
        vmm_join_batch(${target} ${module}_${number} ${batch})
        set(batch "")
        set(batch_bytes 0)
      endif()
    endforeach()
    if(batch)
      math(EXPR number "${number} + 1")
      vmm_join_batch(${target} ${module}_${number} ${batch})
    endif()
  endforeach()
endfunction()

# vmm_join_batch(TARGET NAME UNIT...): one unit is added as it is, more as one file.
function(vmm_join_batch target name)
  list(LENGTH ARGN count)
  if(count EQUAL 1)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  set(joined "${CMAKE_CURRENT_BINARY_DIR}/joined/${name}.cpp")
  set(script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/join_units.cmake")
  add_custom_command(OUTPUT "${joined}"
                     COMMAND "${CMAKE_COMMAND}" "-DUNITS=${ARGN}" "-DOUTPUT=${joined}"
                             -P "${script}"
                     DEPENDS ${ARGN} "${script}" VERBATIM COMMENT "Joining ${name}")
  set(folders "")
  foreach(unit IN LISTS ARGN)
    get_property(more SOURCE "${unit}" TARGET_DIRECTORY ${target} PROPERTY INCLUDE_DIRECTORIES)
    list(APPEND folders ${more})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set_source_files_properties("${joined}" PROPERTIES INCLUDE_DIRECTORIES "${folders}")
  target_sources(${target} PRIVATE "${joined}")
endfunction()
