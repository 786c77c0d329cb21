// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Of the witness: a test serves calls of the backend itself, for drivers that differ from the
// simulated one.
#pragma once

extern "C" {

/// From now on calls of `symbol` go to `function`, which has its type; null: to the loader again.
/// The results of `function` are not complaints.
void vmm_witness_detour(const char* symbol, void* function);
/// The loader's call for a detour that goes on to it: checked and noted as one without a detour is.
/// Null for other symbols than calls of the backend.
void* vmm_witness_loader(const char* symbol);

}  // extern "C"
