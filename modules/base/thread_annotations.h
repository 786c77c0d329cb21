// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Clang's thread-safety analysis, in attributes that other compilers do not have. A `capability` is
// a lock. The attributes name the lock of a member, and the locks that a function acquires,
// releases or requires. -Wthread-safety checks them at compile time; they cost nothing at run time.
#pragma once

#if defined(__clang__)
#define VMM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define VMM_THREAD_ATTRIBUTE(x)
#endif

#define VMM_CAPABILITY(name) VMM_THREAD_ATTRIBUTE(capability(name))
#define VMM_SCOPED_CAPABILITY VMM_THREAD_ATTRIBUTE(scoped_lockable)
#define VMM_ACQUIRED_BEFORE(...) VMM_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
#define VMM_GUARDED_BY(lock) VMM_THREAD_ATTRIBUTE(guarded_by(lock))
#define VMM_POINTEE_GUARDED_BY(lock) VMM_THREAD_ATTRIBUTE(pt_guarded_by(lock))
#define VMM_REQUIRES(...) VMM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define VMM_REQUIRES_SHARED(...) VMM_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define VMM_EXCLUDES(...) VMM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define VMM_ACQUIRE(...) VMM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define VMM_ACQUIRE_SHARED(...) VMM_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define VMM_RELEASE(...) VMM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define VMM_RELEASE_SHARED(...) VMM_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define VMM_TRY_ACQUIRE(...) VMM_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define VMM_ASSERT_HELD(...) VMM_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define VMM_NOT_ANALYSED VMM_THREAD_ATTRIBUTE(no_thread_safety_analysis)
