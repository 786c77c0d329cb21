// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Linked into a second build of the preload library: its host memory, which a test can make short,
// a check of its invariants, a way to break one, and a call where a thread has left the gate.
#include <pthread.h>

#include "../../support/failing_new.h"

#include "../../../adapters/preload/locks.h"
#include "../../../adapters/preload/process.h"

namespace {

thread_local void (*on_gate)(void*) = nullptr;
thread_local void* on_gate_data = nullptr;

}  // namespace

/// The nth request of the calling thread from now on fails, 0: none. Whether the last one set did.
extern "C" [[gnu::visibility("default")]] bool vmm_preload_fail_new(int nth) {
  using failing_new::plan;
  const bool before = plan.struck_count != 0;
  plan = {.armed = nth != 0, .fail_at = static_cast<std::uint64_t>(nth)};
  return before;
}

/// Null, or the invariant of the library that does not hold.
extern "C" [[gnu::visibility("default")]] const char* vmm_preload_find_broken() {
  return vmm::preload::managed::find_broken();
}

/// Breaks one: the pool of the first device takes a block back that the library has not freed.
extern "C" [[gnu::visibility("default")]] bool vmm_preload_lose(vmm::preload::device_pointer at) {
  using namespace vmm::preload::managed;
  device_pools* const device = process().devices.of_device(0);
  return device->pool(owner::unordered).free({at}, device->service_stream()).has_value();
}

/// Calls once, on the calling thread, when it next leaves the gate.
extern "C" [[gnu::visibility("default")]] void vmm_preload_on_gate(void (*call)(void*), void* of) {
  on_gate = call;
  on_gate_data = of;
}

/// Whether a thread that ends a context has the gate, and the other lock is that thread's, or of
/// one that it waits for.
extern "C" [[gnu::visibility("default")]] bool vmm_preload_is_ending() {
  using namespace vmm::preload::managed;
  if (locks::gate.try_lock_shared()) {
    locks::gate.unlock_shared();
    return false;
  }
  auto* const ending = reinterpret_cast<pthread_rwlock_t*>(&locks::ending);
  static_assert(sizeof(locks::ending) == sizeof(*ending));
  if (pthread_rwlock_trywrlock(ending) != 0) return true;
  (void)pthread_rwlock_unlock(ending);
  return false;
}

// The linker has the library's calls of pthread_rwlock_unlock() come here (--wrap).
extern "C" int __real_pthread_rwlock_unlock(pthread_rwlock_t* lock);
extern "C" int __wrap_pthread_rwlock_unlock(pthread_rwlock_t* lock) {
  const int unlocked = __real_pthread_rwlock_unlock(lock);
  const bool is_gate = static_cast<void*>(lock) == &vmm::preload::managed::locks::gate;
  if (auto* const call = on_gate; call != nullptr && is_gate) {
    on_gate = nullptr;
    call(on_gate_data);
  }
  return unlocked;
}
