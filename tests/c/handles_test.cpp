// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the table of handles gives each object a handle of its own, finds nothing by any other
// number, and lets no object go while a call is inside of it.
// Method: the table alone. Handles are made until none is left, and varied bit by bit; threads
// enter and leave objects that others destroy, and each object reports whether a thread was inside
// when it was destroyed. The destroying thread frees it, so that sanitizers detect late accesses.
#include "handles.hpp"
#include "../support/child.hpp"

namespace {

using vmm_c::add_handle, vmm_c::call_on, vmm_c::claim_handle, vmm_c::close_handle,
    vmm_c::drop_handle, vmm_c::handle_kind, vmm_c::handle_slot, vmm_c::keep_handle;

struct thing {
  static constexpr handle_kind kind = handle_kind::pool;
  std::atomic<int> inside = 0;
};

handle_slot& claim(void* handle) {
  handle_slot* const slot = claim_handle(handle, handle_kind::pool);
  if (slot == nullptr) std::abort();
  return *slot;
}
void drop(void* handle) { drop_handle(claim(handle)); }

TEST(Handles, OneBitMakesAnotherNumber) {
  thing object;
  void* const handle = add_handle(handle_kind::pool, &object);
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(&*call_on<thing>(handle), &object);
  for (unsigned bit = 0; bit < 64; ++bit) {
    const auto other = reinterpret_cast<std::uint64_t>(handle) ^ std::uint64_t{1} << bit;
    EXPECT_FALSE(call_on<thing>(reinterpret_cast<void*>(other))) << "bit " << bit;
    EXPECT_EQ(claim_handle(reinterpret_cast<void*>(other), handle_kind::pool), nullptr);
  }
  drop(handle);
}

TEST(Handles, AreRefusedAfterTheirEnd) {
  thing object;
  std::set<void*> seen;
  for (int round = 0; round < 1000; ++round) {
    void* const handle = add_handle(handle_kind::pool, &object);
    EXPECT_TRUE(seen.insert(handle).second);
    drop(handle);
    EXPECT_FALSE(call_on<thing>(handle));
    EXPECT_EQ(claim_handle(handle, handle_kind::pool), nullptr);
  }
}

// A slot stays for ever, so a program that makes and destroys objects must not use up all of them.
TEST(Handles, FewObjectsAtATimeUseFewSlots) {
  thing object;
  std::set<std::uint64_t> slots;
  void* const kept = add_handle(handle_kind::pool, &object);
  for (int round = 0; round < 10'000; ++round) {
    void* const handle = add_handle(handle_kind::pool, &object);
    slots.insert(reinterpret_cast<std::uint64_t>(handle) & 0xFFFF);
    drop(handle);
  }
  EXPECT_LE(slots.size(), 16u);
  drop(kept);
}

TEST(Handles, EndWhenThereAreNoMore) {
  thing object;
  std::vector<void*> all;
  while (void* const handle = add_handle(handle_kind::pool, &object)) all.push_back(handle);
  EXPECT_EQ(all.size(), 65'536u);
  drop(all.back());
  all.back() = add_handle(handle_kind::pool, &object);
  EXPECT_NE(all.back(), nullptr) << "one is free again";
  for (void* const each : all) {
    EXPECT_TRUE(call_on<thing>(each));
    drop(each);
  }
}

TEST(Handles, AreKeptWhileACallIsInside) {
  thing object;
  void* const handle = add_handle(handle_kind::pool, &object);
  {
    const call_on<thing> call(handle);
    handle_slot& slot = claim(handle);
    EXPECT_TRUE(slot.has_long_callers());
    keep_handle(slot);
    EXPECT_TRUE(call_on<thing>(handle));
  }
  handle_slot& slot = claim(handle);
  EXPECT_FALSE(slot.has_long_callers());
  close_handle(slot);
  EXPECT_FALSE(call_on<thing>(handle)) << "no call enters what goes";
  drop_handle(slot);
}

// A refused destruction is not seen by other threads: their calls wait for the decision, and so
// does another thread's claim.
TEST(Handles, CallsWaitForADecision) {
  thing object;
  void* const handle = add_handle(handle_kind::pool, &object);
  for (const bool goes : {false, true}) {
    handle_slot& slot = claim(handle);
    std::atomic<int> done = 0;
    std::thread caller([&] {
      EXPECT_EQ(static_cast<bool>(call_on<thing>(handle)), !goes);
      ++done;
    });
    std::thread other([&] {
      handle_slot* const again = claim_handle(handle, handle_kind::pool);
      EXPECT_EQ(again != nullptr, !goes);
      if (again != nullptr) keep_handle(*again);
      ++done;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(done, 0);
    if (goes) {
      close_handle(slot);
      drop_handle(slot);
    } else {
      keep_handle(slot);
    }
    caller.join();
    other.join();
  }
}

// The thread that decides is not in the child.
TEST(Handles, ADecisionEndsInAForkedChild) {
  thing object;
  void* const handle = add_handle(handle_kind::pool, &object);
  handle_slot& slot = claim(handle);
  EXPECT_EQ(code_of_child([&] { return call_on<thing>(handle) ? 0 : 1; }), 0);
  close_handle(slot);
  drop_handle(slot);
}

// Destroys the object and reports whether a thread was inside.
bool destroy_if_unused(void* handle, std::atomic<int>& wrong) {
  handle_slot* const slot = claim_handle(handle, handle_kind::pool);
  if (slot == nullptr) return true;
  if (slot->has_callers()) {
    keep_handle(*slot);
    return false;
  }
  close_handle(*slot);
  auto* const gone = static_cast<thing*>(slot->object);
  if (gone->inside != 0) ++wrong;
  delete gone;
  drop_handle(*slot);
  return true;
}

TEST(Handles, NobodyIsInsideAnObjectThatGoes) {
  constexpr int rounds = 3000;
  std::atomic<void*> shared = add_handle(handle_kind::pool, new thing);
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (!done) {
        const call_on<thing> call(shared.load());
        if (!call) continue;
        ++call->inside;
        --call->inside;
      }
    });
  }
  for (int round = 0; round < rounds; ++round) {
    void* const old = shared.exchange(add_handle(handle_kind::pool, new thing));
    while (!destroy_if_unused(old, wrong)) std::this_thread::yield();
  }
  done = true;
  for (std::thread& each : callers) each.join();
  EXPECT_TRUE(destroy_if_unused(shared, wrong));
  EXPECT_EQ(wrong, 0);
}

}  // namespace
