// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What waits of the C interface do in a process of Python.
#pragma once

namespace vmm_c {

// Whether this thread is the one of vmm_python_run_handlers().
[[nodiscard]] bool runs_handlers_here() noexcept;
// Runs the handlers of signals, in that thread. True where one has raised, until
// vmm_python_raise().
[[nodiscard]] bool handler_has_raised() noexcept;

}  // namespace vmm_c
