# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
# Configurations that cannot build named modules are refused here with advice, before CMake fails
# with a less clear message. Presets are vmm's own and are not named to a parent project.
include(VmmRequirements)
vmm_missing_requirement(vmm_missing)
if(vmm_missing)
  if(PROJECT_IS_TOP_LEVEL)
    string(APPEND vmm_missing ", or with cmake --preset dev; ./run installs what is missing")
  endif()
  message(FATAL_ERROR "${vmm_missing}")
endif()

# The line for a build type without flags; a parent project's own types are its choice.
string(TOUPPER "${CMAKE_BUILD_TYPE}" vmm_build_type)
set(vmm_types "Debug, Release, RelWithDebInfo or MinSizeRel")
if(CMAKE_CONFIGURATION_TYPES)
elseif(NOT vmm_build_type)
  message(NOTICE "vmm: CMAKE_BUILD_TYPE is empty, and nothing is optimised: "
                 "configure with -DCMAKE_BUILD_TYPE=Release")
elseif(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_FLAGS_${vmm_build_type} AND
       NOT vmm_build_type MATCHES "^(DEBUG|RELEASE|RELWITHDEBINFO|MINSIZEREL)$")
  message(NOTICE "vmm: CMAKE_BUILD_TYPE '${CMAKE_BUILD_TYPE}' is not known, and nothing is "
                 "optimised: it is ${vmm_types}")
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
