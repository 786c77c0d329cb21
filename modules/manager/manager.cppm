// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.manager - blocks of whole granules, and ranges of them that grow in place.
//
// :growable    growable_range: segments that reserve their maximum and commit memory as they grow
// :facade      manager: allocate, free
// :resize      blocks that grow and shrink
// :contents    fills of bytes, and points behind the work of blocks
// :rights      access of locations to blocks
// :copy        copies by remapping, or of bytes
// :shortage    the memory that is released before a request fails
// :suspension  memory released and restored at its addresses
// :reuse       reuse of freed memory
// :cache       freed ranges that stay mapped
// :exports     blocks whose handles other processes or libraries have
// :history     events and histories
// :statistics  figures and extents, as values
// :report      counts read, the layout listed
// :base        the state that these share
// :locks       the ranks of their locks
// :types       requests
// :policy      options and policies
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
