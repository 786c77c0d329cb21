// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.multi_device - several devices, and memory that is registered, multicast or mapped more
// than once.
//
// :topology      the devices that reach a memory, and the links between them
// :properties    the properties that a driver granted
// :registration  memory for libraries that register it, and calls around every change of it
// :multicast     a multicast object as a state machine
// :alias         one memory at several addresses, with its ordering
//
// docs/multi_device.md has examples, docs/decisions/0019-special-memory.md reasons. Rights of an
// allocator's memory, placement, spilling and clearing are options of the allocators themselves.
export module vmm.multi_device;

export import :alias;
export import :multicast;
export import :properties;
export import :registration;
export import :topology;
