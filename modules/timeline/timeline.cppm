// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.timeline - points in streams' work, and what must not happen before them.
//
// :pending   frees that wait until work that may use the block has finished
// :tickets   one recorded event for one point: asked, waited for on the device, or by the host
// :progress  many points of many streams behind few events: how far each stream is known to be
export module vmm.timeline;

export import :pending;
export import :progress;
export import :tickets;
