// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A loader from before virtual memory: it has the calls that find a device, which all fail.
#define NO_ANSWER(symbol) \
  extern "C" int symbol() { return 0x78000001; }
NO_ANSWER(zeInit)
NO_ANSWER(zeDriverGet)
NO_ANSWER(zeDriverGetApiVersion)
NO_ANSWER(zeDriverGetProperties)
NO_ANSWER(zeDeviceGet)
NO_ANSWER(zeDeviceGetProperties)
NO_ANSWER(zeDeviceGetMemoryProperties)
NO_ANSWER(zeDeviceGetCommandQueueGroupProperties)
NO_ANSWER(zeContextCreate)
NO_ANSWER(zeContextDestroy)
