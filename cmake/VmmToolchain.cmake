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
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_STANDARD 20)
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
