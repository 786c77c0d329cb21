// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.timeline - points in streams' work, for changes that must wait for them.
//
// :pending   frees that wait until work that may use the block has finished
// :tickets   one recorded event for one point: queried, waited for on the device, or by the host
// :progress  many points of many streams behind few events: the known progress of each stream
export module vmm.timeline;

export import :pending;
export import :progress;
export import :tickets;
