// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend - the concept of a driver and its vocabulary: the lowest layer, which imports
// nothing.
//
// :result      result<T>, error, assertions      :types     addresses, handles, requests, features
// :concepts    backend and its refinements       :environment  options from environment variables
// :any         a backend chosen at run time      :observe      calls counted, logged, made to fail
// :process     what a forked child is refused
// :users       who must go before an object does
export module vmm.backend;

export import :any;
export import :concepts;
export import :environment;
export import :observe;
export import :process;
export import :result;
export import :types;
export import :users;
