// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm - the umbrella: `import vmm;` brings what programs use. It re-exports and adds nothing.
//
// The parts that these modules are made of stay importable one by one: vmm.va, vmm.physical,
// vmm.tracker, vmm.optimizer, vmm.reservation, vmm.timeline, vmm.intrusive, vmm.sync. So are
// vmm.nvtx, for memory checkers, and vmm.support and vmm.environment, for drivers and tools.
// tests/package/consumer/names.cpp lists every name that `import vmm;` brings.
export module vmm;

export import vmm.backend;
export import vmm.backends;
export import vmm.buffer;
export import vmm.cuda;
export import vmm.fake;
export import vmm.host;
export import vmm.level_zero;
export import vmm.manager;
export import vmm.pmr;
export import vmm.share;
export import vmm.special;
export import vmm.stream;
export import vmm.suspend;
export import vmm.vector;
