// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base - what vmm's modules share below the vocabulary. `import vmm;` does not bring it: it is
// for vmm's own modules, and for a driver of your own that keeps the same rules.
//
// :support     assertions, marks of processes, counts of users
// :sync        locks and atomics, annotated; a test can decide which thread runs next
// :flat_table  values by a 64-bit key
// :files       files that users name, and the texts of their failures
// :texts       composed details of errors, kept to the end of the process
export module vmm.base;

export import :files;
export import :flat_table;
export import :support;
export import :sync;
export import :texts;
