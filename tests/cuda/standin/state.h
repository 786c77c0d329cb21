// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The state behind the stub driver's calls, shared by its units. It names no type of vmm, so that
// it can be included before an import.
//
// I1  Every entry point goes through answer_with(): it counts the call, lets a planned failure
//     strike, and sees that the driver was initialised and that the calling thread has a live
//     current context where the real driver needs them.
// I2  A context is a device's primary one; it is alive while references > 0.
//
// Thread safety: `mutex` guards everything but the context stack, which is each thread's own; the
// fake driver has its own lock.
#pragma once

#include <deque>

#include "../../../tools/program/standard.hpp"
#include "../../support/planned_failures.hpp"
#include "standin.h"
#include "symbols.h"

/// abi.h names this type and leaves it open.
struct CUctx_st {
  int device = 0;
  int references = 0;
};

namespace standin {

enum class needs : std::uint8_t { nothing, initialised, context };

/// What cuMemAlloc made.
struct plain_allocation {
  std::uint64_t memory = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t shift_bytes = 0;
};

/// A descriptor given out: the write end of a pipe, known by its inode wherever it is passed. The
/// read end here shows when every copy is closed.
struct exported_descriptor {
  std::uint64_t inode = 0;
  int read_end = -1;
  std::int64_t token = 0;  // the fake's descriptor
};

struct state {
  std::mutex mutex;
  vmm_standin_setup setup{};
  std::unique_ptr<void, void (*)(void*)> fake{nullptr, [](void*) {}};  // a vmm::fake_driver
  std::deque<CUctx_st> contexts;
  std::map<std::string, unsigned long long, std::less<>> calls;
  planned_failures<CUresult> failures;
  std::set<std::string, std::less<>> hidden;
  std::map<std::uint64_t, plain_allocation> plain;  // by address
  std::vector<exported_descriptor> exported;
  bool initialised = false;
  CUresult poison = CUDA_SUCCESS;
  void (*on_free)(void*) = nullptr;
  void* on_free_data = nullptr;
  std::string watched;  // the call that on_call is called before
  void (*on_call)(void*) = nullptr;
  void* on_call_data = nullptr;

  [[nodiscard]] int device_count() const noexcept { return setup.device_count_less_two + 2; }
};

[[nodiscard]] state& the();

/// A thread's contexts, the current one last. No destructor runs: a thread may call the driver from
/// destructors of its own, at the end of the process, too.
class thread_contexts {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] CUcontext back() const noexcept { return all_[count_ - 1]; }
  void push_back(CUcontext context) noexcept {
    if (count_ == all_.size()) std::abort();
    all_[count_++] = context;
  }
  void pop_back() noexcept { --count_; }
  void clear() noexcept { count_ = 0; }

 private:
  std::array<CUcontext, 64> all_{};
  std::size_t count_ = 0;
};
[[nodiscard]] thread_contexts& context_stack();

/// Closes the fake's descriptors whose real ones are all closed.
void sweep_descriptors();

/// Calls the test's hook before `symbol`.
void report_call(const char* symbol);

/// What stands against the call before it is looked at; CUDA_SUCCESS when nothing does.
[[nodiscard]] CUresult enter(const char* symbol, needs need);

template <class Fake, class Body>
CUresult answer_with(const char* symbol, needs need, Body&& body) noexcept {
  if (const CUresult code = enter(symbol, need); code != CUDA_SUCCESS) return code;
  return body(*static_cast<Fake*>(the().fake.get()));
}

/// An entry point that is one expression over the fake driver `fake`.
#define STANDIN_ENTRY(name, need, parameters, ...)                                               \
  CUresult name parameters {                                                                     \
    return answer(#name, needs::need, [&]([[maybe_unused]] auto& fake) { return __VA_ARGS__; }); \
  }

/// The code of a vmm::status or vmm::result. The fake has no native code only for host memory.
template <class Outcome>
[[nodiscard]] CUresult code_of(const Outcome& outcome) noexcept {
  if (outcome) return CUDA_SUCCESS;
  const auto native = outcome.error().native;
  return native == 0 ? CUDA_ERROR_OUT_OF_MEMORY : static_cast<CUresult>(native);
}

/// Stores what a fake call made, in the driver's type.
template <class Outcome, class Out, class Convert>
CUresult hand_out(const Outcome& made, Out* into, Convert&& convert) noexcept {
  if (made) *into = convert(*made);
  return code_of(made);
}

template <class Token>
[[nodiscard]] Token token_of(void* object) noexcept {
  return static_cast<Token>(reinterpret_cast<std::uintptr_t>(object));
}

}  // namespace standin
