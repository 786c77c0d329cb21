// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls into Python: the ends of DLPack's tensors, remap callbacks, handlers of signals. A function
// that ctypes makes of Python code can be neither a deleter nor a destructor: consumers call them
// while an exception is pending, which ctypes loses. Python's functions are looked up in the
// process: the library needs no Python.
#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "errors.hpp"
#include "vmm.h"

#include "python.hpp"

namespace vmm_c {
namespace {

// Of Python's stable interface; objects are opaque here.
struct interpreter {
  int (*PyGILState_Ensure)() = nullptr;
  void (*PyGILState_Release)(int) = nullptr;
  void (*PyErr_Fetch)(void**, void**, void**) = nullptr;
  void (*PyErr_Restore)(void*, void*, void*) = nullptr;
  int (*PyErr_CheckSignals)() = nullptr;
  int (*PyCapsule_IsValid)(void*, const char*) = nullptr;
  void* (*PyCapsule_GetPointer)(void*, const char*) = nullptr;
  bool is_there = true;
};

template <class Function>
void find(interpreter& out, Function*& function, const char* name) noexcept {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  out.is_there = out.is_there && function != nullptr;
}

interpreter find_interpreter() noexcept {
  interpreter found;
  find(found, found.PyGILState_Ensure, "PyGILState_Ensure");
  find(found, found.PyGILState_Release, "PyGILState_Release");
  find(found, found.PyErr_Fetch, "PyErr_Fetch");
  find(found, found.PyErr_Restore, "PyErr_Restore");
  find(found, found.PyErr_CheckSignals, "PyErr_CheckSignals");
  find(found, found.PyCapsule_IsValid, "PyCapsule_IsValid");
  find(found, found.PyCapsule_GetPointer, "PyCapsule_GetPointer");
  return found;
}

const interpreter& python() noexcept {
  static const interpreter found = find_interpreter();
  return found;
}

// An exception that leaves the function once has been handled by then; one that comes each time is
// of the program's own, such as a stack that is used up.
constexpr int tries = 8;

std::atomic<vmm_python_ended> on_tensor_end = nullptr;

// Threads inside remap callbacks. A child has none of the others.
std::atomic<std::uint32_t> remapping = 0;
std::atomic<bool> has_ended = false;
thread_local std::uint32_t remapping_here = 0;
[[maybe_unused]] const int remapping_in_child =
    pthread_atfork(nullptr, nullptr, [] { remapping.store(remapping_here); });

// Python unwinds threads that wait for its lock at its end, which ends the process in a function
// that must not throw. A thread is counted before it reads the mark, which is set before the count
// is read: of the two one finds the other.
void end_remap_callbacks() noexcept {
  constexpr std::chrono::seconds patience{5};
  has_ended.store(true);
  const auto begin = std::chrono::steady_clock::now();
  while (remapping.load() != remapping_here && std::chrono::steady_clock::now() - begin < patience)
    std::this_thread::yield();
}

vmm_status fail_interpreter() noexcept {
  return fail(VMM_ERROR_NOT_SUPPORTED, "the process has no interpreter of Python");
}

thread_local std::array<void*, 3> raised{};

}  // namespace

std::atomic<std::uint64_t> handler_thread = 0;

bool handler_has_raised() noexcept {
  if (!runs_handlers_here() || raised[0] != nullptr) return raised[0] != nullptr;
  const int state = python().PyGILState_Ensure();
  if (python().PyErr_CheckSignals() != 0) python().PyErr_Fetch(&raised[0], &raised[1], &raised[2]);
  python().PyGILState_Release(state);
  return raised[0] != nullptr;
}

}  // namespace vmm_c

using namespace vmm_c;  // NOLINT: the functions below are this file's only others

extern "C" {

vmm_status vmm_python_on_tensor_end(vmm_python_ended ended) VMM_NOEXCEPT {
  if (ended != nullptr && !python().is_there) return fail_interpreter();
  on_tensor_end.store(ended);
  if (ended == nullptr) {
    end_remap_callbacks();
  } else {
    has_ended.store(false);
  }
  return VMM_SUCCESS;
}

void vmm_python_remapped(void* callback, const vmm_remap_notice* notice) {
  remapping.fetch_add(1);
  ++remapping_here;
  if (!has_ended.load()) reinterpret_cast<vmm_remap_callback>(callback)(nullptr, notice);
  --remapping_here;
  remapping.fetch_sub(1);
}

void vmm_python_end_tensor(void* tensor) {
  if (tensor == nullptr || on_tensor_end.load() == nullptr) return;
  const std::uint64_t number = static_cast<const std::uint64_t*>(tensor)[-1];
  const int state = python().PyGILState_Ensure();
  std::array<void*, 3> pending{};
  python().PyErr_Fetch(&pending[0], &pending[1], &pending[2]);
  // Once more: the interpreter may have begun to end while this thread waited for its lock.
  if (auto* const ended = on_tensor_end.load(); ended != nullptr) {
    std::uint32_t is_done = 0;
    for (int each = 0; each < tries && is_done == 0; ++each) ended(number, &is_done);
  }
  python().PyErr_Restore(pending[0], pending[1], pending[2]);
  python().PyGILState_Release(state);
}

void vmm_python_end_capsule(void* capsule) {
  if (capsule == nullptr || on_tensor_end.load() == nullptr) return;
  for (const char* const name : {"dltensor", "dltensor_versioned"}) {
    if (python().PyCapsule_IsValid(capsule, name) != 0)
      vmm_python_end_tensor(python().PyCapsule_GetPointer(capsule, name));
  }
}

vmm_status vmm_python_run_handlers(uint64_t thread) VMM_NOEXCEPT {
  if (thread != 0 && !python().is_there) return fail_interpreter();
  handler_thread.store(thread);
  return VMM_SUCCESS;
}

void vmm_python_raise(void) VMM_NOEXCEPT {
  const std::array<void*, 3> now = std::exchange(raised, {});
  if (now[0] != nullptr) python().PyErr_Restore(now[0], now[1], now[2]);
}

}  // extern "C"
