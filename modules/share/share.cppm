// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.share - memory that several processes use.
//
// :wire     the message: its bytes, its limits, its parser
// :session  the protocol of one connection, without a socket
// :memory   exported_block and imported_block: memory that is lent, memory that is borrowed
// :channel  share_listener and share_channel: sockets, descriptors, leases
//
// docs/sharing.md has examples, SECURITY.md the threat model, docs/decisions/0013-sharing.md the
// reasons.
export module vmm.share;

export import :channel;
export import :memory;
export import :session;
export import :wire;
