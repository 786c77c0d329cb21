# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Units of one module as one: the interface with its partitions, and implementation units. A unit
# costs what it imports and the templates that it instantiates; those of a module import much the
# same. vmm.stream with its 49 partitions takes 1.3 s of processor time as one interface and 9.6 s
# as fifty, and importers read one file. It is a part of a build, not of the sources: without
# VMM_JOIN_UNITS, in the gpu preset and in release under ./run test --all, each unit is compiled by
# itself, which shows that it names what it imports.

include(VmmUnitText)

# A joined file ends with the unit that takes it past this size: an edit compiles one such file.
set(vmm_joined_bytes 100000)

# vmm_add_interfaces(TARGET): the interfaces that vmm_units() has listed. With VMM_JOIN_UNITS those
# of a module are one file with the path of the module's interface, in a file set of their own,
# since the two sets have other base folders. A module whose units import its partitions by their
# names, or cannot be joined (VmmUnitText.cmake), keeps its files.
function(vmm_add_interfaces target)
  get_target_property(interfaces ${target} VMM_INTERFACES)
  set(modules "")
  set(apart "")
  set(kept "")
  if(VMM_JOIN_UNITS)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      get_filename_component(source "${source}" ABSOLUTE)
      file(READ "${source}" text)
      if(text MATCHES "\nimport :" AND text MATCHES "\nmodule (vmm[a-z_.]*)")
        list(APPEND kept ${CMAKE_MATCH_1})
      endif()
    endforeach()
  endif()
  foreach(unit IN LISTS interfaces)
    file(READ "${unit}" text)
    vmm_interface_of(module "${text}")
    if(text MATCHES "\nexport module (vmm[a-z_.]*)")
      set(name ${CMAKE_MATCH_1})
    endif()
    list(APPEND modules ${name})
    list(APPEND units_of_${name} "${unit}")
    if(text MATCHES "\nexport module vmm[a-z_.]*;")
      set(home_of_${name} "${unit}")
    endif()
    if(NOT VMM_JOIN_UNITS OR NOT module)
      list(APPEND kept ${name})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES modules)
  set(folder "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  set(root "${CMAKE_CURRENT_BINARY_DIR}/${target}_interfaces")
  set(joined "")
  foreach(module IN LISTS modules)
    list(LENGTH units_of_${module} count)
    if(module IN_LIST kept OR count LESS 2)
      list(APPEND apart ${units_of_${module}})
      continue()
    endif()
    file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${home_of_${module}}")
    get_filename_component(home "${home_of_${module}}" DIRECTORY)
    add_custom_command(OUTPUT "${root}/${path}"
                       COMMAND "${CMAKE_COMMAND}" -DMODULE=${module}
                               "-DUNITS=${units_of_${module}}" "-DROOT=${PROJECT_SOURCE_DIR}"
                               "-DOUTPUT=${root}/${path}" -P "${folder}/join_interfaces.cmake"
                       DEPENDS ${units_of_${module}} "${folder}/join_interfaces.cmake"
                               "${folder}/VmmUnitText.cmake"
                       VERBATIM COMMENT "Joining interfaces of ${module}")
    set_source_files_properties("${root}/${path}" PROPERTIES INCLUDE_DIRECTORIES "${home}")
    list(APPEND joined "${root}/${path}")
  endforeach()
  target_sources(${target} PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}"
                 FILES ${apart})
  if(joined)
    target_sources(${target} PUBLIC FILE_SET joined TYPE CXX_MODULES BASE_DIRS "${root}"
                   FILES ${joined})
  endif()
endfunction()

# vmm_interface_sets(RESULT WORD...): what install(TARGETS vmm) is given for the interfaces, with
# these words for each set.
function(vmm_interface_sets result)
  get_target_property(names vmm INTERFACE_CXX_MODULE_SETS)
  set(sets "")
  foreach(name IN LISTS names)
    list(APPEND sets FILE_SET ${name} ${ARGN})
  endforeach()
  set(${result} ${sets} PARENT_SCOPE)
endfunction()

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

# Tests make few calls of these: unoptimised they compile in less than half of the time.
set(vmm_seldom_modules vmm.cuda vmm.level_zero vmm.multi_device vmm.registry vmm.share)

# vmm_join_batch(TARGET MODULE NUMBER UNIT...): one unit is added as it is, more as one file.
function(vmm_join_batch target module number)
  set(flags "")
  if(module IN_LIST vmm_seldom_modules)
    set(flags "${VMM_SELDOM_FLAGS}")
  endif()
  list(LENGTH ARGN count)
  if(count LESS 2)
    target_sources(${target} PRIVATE ${ARGN})
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS ${flags})
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
  set_source_files_properties("${joined}" PROPERTIES INCLUDE_DIRECTORIES "${folders}"
                              COMPILE_OPTIONS "${flags}")
  target_sources(${target} PRIVATE "${joined}")
endfunction()
