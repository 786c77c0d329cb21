// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager - blocks of whole granules, and ranges of them that grow in place.
//
// :growable    growable_range: segments that reserve their maximum and commit memory as they grow
// :facade      manager: allocate, free
// :resize      blocks that grow and shrink          :rights   which locations may use blocks
// :contents    bytes that are filled, points behind a block's use
// :shortage    what is given back before a request is refused
// :suspension  memory away and back          :copy     copies by remapping, or of bytes
// :reuse       freed memory that serves again   :history  events written, histories taken
// :exports     blocks whose handles are given to others
// :statistics  figures and extents, as values   :report   counts read, the layout listed
// :cache       freed ranges that stay mapped
// :base        what these share              :locks    the ranks of their locks
// :types       requests                      :policy   what the sources do differently
export module vmm.manager;

export import vmm.backend;
export import :facade;
export import :growable;
export import :policy;
export import :statistics;
export import :types;
import vmm.base;
import :base;
import :cache;
import :contents;
import :copy;
import :exports;
import :history;
import :locks;
import :report;
import :resize;
import :reuse;
import :rights;
import :shortage;
import :suspension;
