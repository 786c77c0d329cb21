// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The locks of VMM_MODE=vmm in their order, outermost first: gate, ending, opening, blocks,
// streams, captures, events. Each is one object of the process, so that the compiler's analysis
// follows it from class to class: a missing guard, a lock taken twice and a wrong order do not
// compile. Inside all of them are the locks of vmm's own allocators and of a device's pending
// frees.
//
// It imports what it uses, so it comes after every include of the standard library.
#pragma once

#include "gate.h"

import vmm.base;

namespace vmm::preload::managed::locks {

// Innermost first, because each names the one inside it.
alignas(64) inline constinit sync::mutex events;  // spare events, users of memory
alignas(64) inline constinit sync::mutex captures VMM_ACQUIRED_BEFORE(events);
alignas(64) inline constinit sync::shared_mutex streams VMM_ACQUIRED_BEFORE(captures);
alignas(64) inline constinit sync::shared_mutex blocks VMM_ACQUIRED_BEFORE(streams);
alignas(64) inline constinit sync::mutex opening VMM_ACQUIRED_BEFORE(blocks);  // devices
// Shared while a thread waits for events, outside of the gate; alone while a context ends.
alignas(64) inline constinit sync::shared_mutex ending VMM_ACQUIRED_BEFORE(opening);
alignas(64) inline constinit capture_gate gate VMM_ACQUIRED_BEFORE(ending);

}  // namespace vmm::preload::managed::locks
