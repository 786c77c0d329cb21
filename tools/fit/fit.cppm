// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fit - whether a recorded program fits a device under another allocator.
//
// Thread safety: values only.
export module vmm.fit;

export import :answer;
export import :caching;
