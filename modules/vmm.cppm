// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm - the umbrella: `import vmm;` is every module below it. It re-exports and adds nothing.
export module vmm;

export import vmm.backend;
export import vmm.backends;
export import vmm.cuda;
export import vmm.fake;
export import vmm.host;
export import vmm.intrusive;
export import vmm.level_zero;
export import vmm.manager;
export import vmm.nvtx;
export import vmm.optimizer;
export import vmm.physical;
export import vmm.reservation;
export import vmm.stream;
export import vmm.sync;
export import vmm.timeline;
export import vmm.tracker;
export import vmm.va;
export import vmm.vector;
