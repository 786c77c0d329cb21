// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.optimizer - moving without copying: plans of mappings, and blocks that change by remapping.
//
// :remapper  maps, unmaps and exchanges whole plans, all or nothing
// :engine    blocks over addresses, pieces, mappings and the tracker, each change one transaction
export module vmm.optimizer;

export import :engine;
export import :remapper;
