// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity - compares the fake driver with a real one, call by call.
//
// :scratch    what one probe makes, and its undoing
// :cases      single invalid and boundary calls, with the result in words
// :growth     calls of a growing program, whose driver time is measured and predicted
// :sequences  random sequences in lockstep
export module vmm.fidelity;

export import :cases;
export import :growth;
export import :scratch;
export import :sequences;
