// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Errors of the modules name options and functions of C++. This unit translates them to the names
// of vmm.h.
#pragma once

namespace vmm_c {

// The text for readers of vmm.h. Texts without names of C++ stay as they are. Both have static
// storage. Cost: a comparison with each replacement; only what fails is looked up.
[[nodiscard]] const char* words_of_c(const char* text) noexcept;

}  // namespace vmm_c
