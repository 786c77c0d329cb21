// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.market - physical memory that several processes of one device lend one another.
//
// :wire    the messages and their bytes
// :owner   the decisions of an owner, over :admission, :lots, :policy, :state and :records
// :tenant  a tenant's side of the protocol
// :source  a source of physical memory: the seam of allocators
// :driver  a driver whose memory is of a source
//
// docs/decisions/0033-a-market-for-memory.md has the reasons.
export module vmm.market;

export import :admission;
export import :driver;
export import :lots;
export import :owner;
export import :policy;
export import :records;
export import :requests;
export import :source;
export import :state;
export import :tenant;
export import :wire;
