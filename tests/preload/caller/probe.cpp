// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Small libraries that look names up from where they are: the results depend on the caller. Built
// several times; PROBE_NAME makes the names of each.
#include <dlfcn.h>

#define PROBE_JOIN(one, other) one##other
#define PROBE_FUNCTION(one, other) PROBE_JOIN(one, other)

extern "C" {

#ifdef PROBE_DEFINES
int probe() { return PROBE_DEFINES; }
#endif

// Not a tail call: the return address is what the loader goes by.
void* PROBE_FUNCTION(ask_next_, PROBE_NAME)(const char* symbol) {
  void* volatile found = dlsym(RTLD_NEXT, symbol);
  return found;
}
void* PROBE_FUNCTION(ask_default_, PROBE_NAME)(const char* symbol) {
  void* volatile found = dlsym(RTLD_DEFAULT, symbol);
  return found;
}

#ifdef PROBE_DEEP
int deep_probe() { return PROBE_DEEP; }
#endif
#ifdef PROBE_LIBRARIES
// Names that begin like the driver's and are those of other libraries.
int cudnnCreate(void*) { return 7; }
int cublasCreate_v2(void*) { return 8; }
int cuMemAllocButNotReally(void*) { return 9; }
int cuMemAlloc_v2(void*) { return 10; }
#endif
}
