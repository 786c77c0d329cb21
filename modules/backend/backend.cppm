// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend - the concept of a driver and the vocabulary that every layer shares.
//
// :result      result<T>, error                  :types     addresses, handles, requests, features
// :concepts    backend and its refinements       :reports   what allocators say of themselves
// :driver      a driver of any type behind one   :observe   calls counted, logged, made to fail
//              interface; chosen at run time
export module vmm.backend;

export import :concepts;
export import :driver;
export import :driver_interface;
export import :driver_model;
export import :observe;
export import :reports;
export import :result;
export import :types;
