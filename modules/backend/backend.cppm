// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend - the concept of a driver and its vocabulary: the lowest layer, which imports
// nothing.
//
// :result      result<T>, error, assertions      :types     addresses, handles, requests, features
// :concepts    backend and its refinements       :environment  options from environment variables
// :driver      a driver of any type behind one   :observe      calls counted, logged, made to fail
//              interface; chosen at run time
// :process     what a forked child is refused
// :users       who must go before an object does
export module vmm.backend;

export import :concepts;
export import :driver;
export import :environment;
export import :observe;
export import :process;
export import :result;
export import :types;
export import :users;
