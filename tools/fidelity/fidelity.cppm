// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity - is the fake driver like a real one? The calls that are asked of both.
//
// :scratch    what one probe makes, and its undoing
// :cases      single invalid and boundary calls, with the answer in words
// :sequences  random sequences in lockstep
// :scripts    valid call sequences whose driver time is measured or predicted
export module vmm.fidelity;

export import :cases;
export import :scratch;
export import :scripts;
export import :sequences;
