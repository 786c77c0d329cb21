// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.backend - the concept of a driver and the vocabulary that every layer shares.
//
// :result            result<T>, error
// :types             addresses, requests, features
// :concepts          backend and its refinements
// :driver_interface  every call of a driver as one interface
// :driver            a driver of any type as a value, or by reference
// :forwarding        a driver that passes every call on to another
// :calls             one call as plain values, and the concept of an observer
// :reports           reports of allocators
// :environment       options from variables
// :option_row        options with their ranges
// :intrusive         an ordered index and an object pool without heap traffic
export module vmm.backend;

export import :calls;
export import :concepts;
export import :driver;
export import :driver_interface;
export import :driver_model;
export import :environment;
export import :forwarding;
export import :intrusive;
export import :option_row;
export import :reports;
export import :result;
export import :types;
