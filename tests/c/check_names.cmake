# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
#
# Goal: libvmm.so exports the names of symbols.txt under their versions, and no other; the list only
# grows; and the library needs nothing but libc.
# Method: readelf's tables of dynamic symbols, versions and needed libraries, beside the list and
# beside what vmm.h declares. A version that was released is sealed here by the number and the
# digest of its names, so that a name that is taken out, or put in later, must be taken out of this
#   file, too. READELF  the program    LIBRARY  libvmm.so    HEADER  vmm.h    LIST  symbols.txt
#   SANITIZED  what sanitizers the library was built with: it needs their runtime then
cmake_minimum_required(VERSION 3.28)
if(NOT READELF)
  message(STATUS "skipped: there is no readelf")
  return()
endif()

# sealed(VERSION COUNT DIGEST) for each version that was released; none was so far.
function(sealed version count digest)
  set(names "${all_names}")
  list(FILTER names INCLUDE REGEX " ${version}$")
  list(LENGTH names found)
  string(SHA256 is "${names}")
  if(NOT found EQUAL count OR NOT is STREQUAL digest)
    message(SEND_ERROR "${version} was released with ${count} names (${digest}); symbols.txt has "
                       "${found} (${is}): names of a released version stay, new ones get a new one")
  endif()
endfunction()

file(STRINGS "${LIST}" all_names REGEX "^vmm_")
list(SORT all_names)

# Names that are defined and global: "vmm_version@@VMM_1.0".
execute_process(COMMAND "${READELF}" --dyn-syms --wide "${LIBRARY}"
                OUTPUT_VARIABLE table RESULT_VARIABLE outcome)
if(NOT outcome EQUAL 0)
  message(FATAL_ERROR "${READELF} cannot read ${LIBRARY}")
endif()
string(REPLACE "\n" ";" lines "${table}")
set(exported "")
foreach(line IN LISTS lines)
  if(line MATCHES " (GLOBAL|WEAK|UNIQUE) +DEFAULT +([0-9]+|ABS) +([^ @]+)@@?([^ @]+)")
    if(NOT CMAKE_MATCH_2 STREQUAL "ABS")  # that is a version itself
      list(APPEND exported "${CMAKE_MATCH_3} ${CMAKE_MATCH_4}")
    endif()
  elseif(line MATCHES " (GLOBAL|WEAK|UNIQUE) +DEFAULT +[0-9]+ +([^ @]+)$")
    list(APPEND exported "${CMAKE_MATCH_2} without a version")
  endif()
endforeach()
list(SORT exported)
set(gone ${all_names})
list(REMOVE_ITEM gone ${exported})
set(new ${exported})
list(REMOVE_ITEM new ${all_names})
if(gone)
  message(SEND_ERROR "in symbols.txt and not exported: ${gone}")
endif()
if(new)
  message(SEND_ERROR "exported and not in symbols.txt (add what vmm.h declares): ${new}")
endif()

# The names of vmm.h and of the headers beside it.
get_filename_component(folder "${HEADER}" DIRECTORY)
file(GLOB headers "${folder}/vmm*.h")
set(header "")
foreach(each IN LISTS headers)
  file(READ "${each}" text)
  string(APPEND header "${text}")
endforeach()
string(REGEX MATCHALL "VMM_API [^;#]*[a-z_]+\\([^;#]*\\)( VMM_NOEXCEPT)?" declarations "${header}")
set(declared "")
foreach(declaration IN LISTS declarations)
  string(REGEX MATCH "vmm_[a-z_]+\\(" name "${declaration}")
  string(REPLACE "(" "" name "${name}")
  list(APPEND declared "${name}")
endforeach()
set(listed ${all_names})
list(TRANSFORM listed REPLACE " .*" "")
list(SORT declared)
if(NOT declared STREQUAL listed)
  message(SEND_ERROR "vmm.h declares\n${declared}\nsymbols.txt lists\n${listed}")
endif()

# Libraries. The loader of glibc and its parts are libc.
execute_process(COMMAND "${READELF}" --dynamic --wide "${LIBRARY}" OUTPUT_VARIABLE table)
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*\\[[^]\n]+\\]" needed "${table}")
foreach(line IN LISTS needed)
  string(REGEX REPLACE ".*\\[(.*)\\]" "\\1" name "${line}")
  list(APPEND libraries "${name}")
  if(NOT SANITIZED AND NOT name MATCHES "^(libc|libm|libdl|libpthread|librt|ld-linux.*)\\.so")
    message(SEND_ERROR "libvmm.so needs ${name}")
  endif()
endforeach()
if(NOT table MATCHES "SONAME[^\n]*\\[libvmm.so.1\\]")
  message(SEND_ERROR "the library's name for others is not libvmm.so.1")
endif()
list(LENGTH exported count)
message(STATUS "${count} names; needs ${libraries}")
