// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a class that was built ahead is installed in PyTorch's libraries, or says why not.
// Method: load RUNTIME LIBC10 LIBC10_CUDA LIBVMM CLASS opens them in this order and prints what
// vmm_torch_install() returns: nothing where the class is installed. `./run check torch --classes`
// builds and runs it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*create_function)(const void* options, void** made);
typedef const char* (*install_function)(void* vmm, int stands_back);

int main(int count, char** words) {
  void* opened[6] = {0};
  void* vmm = NULL;
  if (count != 6) return 2;
  for (int at = 1; at < count; ++at) {
    opened[at] = dlopen(words[at], RTLD_NOW | (at == 1 ? RTLD_GLOBAL : 0));
    if (opened[at] == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  create_function create = (create_function)dlsym(opened[4], "vmm_allocator_create");
  install_function install = (install_function)dlsym(opened[5], "vmm_torch_install");
  if (create == NULL || install == NULL || create(NULL, &vmm) != 0) {
    fprintf(stderr, "no allocator of vmm, or no class\n");
    return 1;
  }
  puts(install(vmm, 1));
  fflush(stdout);
  _exit(0);
}
