// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The state behind the simulated driver's calls, shared by its units. It names no type of vmm, so
// that it can be included before an import.
//
// I1  Every entry point goes through answer(): it counts the call, lets a planned failure strike,
//     and records the result.
//
// Thread safety: `mutex` guards everything but the fake driver, which has its own lock.
#pragma once

#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>

#include "../../../tools/program/standard.hpp"
#include "../../support/planned_failures.hpp"
#include "controls.h"

struct _ze_driver_handle_t {
  int unused = 0;
};
struct _ze_device_handle_t {
  int ordinal = 0;
};
struct _ze_context_handle_t {
  int unused = 0;
};
// Handles are addresses, as real drivers' are: the loader identifies an object by its handle alone,
// over all drivers.
struct _ze_physical_mem_handle_t {
  std::uint64_t number = 0;
};
// The commands of a list, and how many the host has seen finish. A barrier that is due has passed
// only after a query.
struct list_progress {
  std::atomic<std::uint64_t> appended_count = 0;
  std::atomic<std::uint64_t> seen_count = 0;
};
struct _ze_command_list_handle_t {
  std::uint64_t stream = 0;
  bool is_synchronous = false;
  std::shared_ptr<list_progress> progress = std::make_shared<list_progress>();
  bool needs_barrier = false;  // a command was appended, and no barrier behind it
};
struct _ze_event_pool_handle_t {
  std::uint32_t count = 0;
};
struct _ze_event_handle_t {
  std::uint64_t event = 0;
  bool is_queued = false;               // its signal was appended
  std::shared_ptr<list_progress> of{};  // the list that signals it, after so many commands
  std::uint64_t after_count = 0;
  std::vector<std::uint64_t> waits{};  // events that stand behind each wait for it
};

namespace simulated {

constexpr int device_count_max = 8;

struct state {
  std::mutex mutex;
  vmm_ze_setup setup{};
  std::unique_ptr<void, void (*)(void*)> fake{nullptr, [](void*) {}};  // a vmm::fake_driver
  _ze_driver_handle_t driver;
  std::array<_ze_device_handle_t, device_count_max> devices;
  std::vector<int> visible;                         // which of them ZE_AFFINITY_MASK shows
  std::map<std::uint64_t, std::uint64_t> reserved;  // sizes by address
  std::uint64_t last_reserved = 0;
  std::map<std::string, unsigned long long, std::less<>> calls;
  planned_failures<ze_result_t> failures;
  std::string misuse;
  unsigned long long object_count = 0;  // contexts, lists, pools, events

  [[nodiscard]] int device_count() const noexcept { return setup.device_count_less_two + 2; }
};

[[nodiscard]] state& the();
/// What stands against the call before it is looked at.
[[nodiscard]] ze_result_t enter(const char* symbol);
/// Records the result of the calling thread's call.
ze_result_t leave(ze_result_t code) noexcept;
void misused(const char* what);

template <class Fake, class Body>
ze_result_t answer_with(const char* symbol, Body&& body) noexcept {
  if (const ze_result_t code = enter(symbol); code != ZE_RESULT_SUCCESS) return leave(code);
  return leave(body(*static_cast<Fake*>(the().fake.get())));
}

/// The code of a vmm::status or vmm::result. The fake has no native code only for host memory.
template <class Outcome>
[[nodiscard]] ze_result_t code_of(const Outcome& outcome) noexcept {
  if (outcome) return ZE_RESULT_SUCCESS;
  const auto native = outcome.error().native;
  return native == 0 ? ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY : static_cast<ze_result_t>(native);
}

void fill_memory(ze_virtual_mem_dditable_t& to);
void fill_memory(ze_physical_mem_dditable_t& to);
void fill_work(ze_command_list_dditable_t& to);
void fill_work(ze_event_pool_dditable_t& to);
void fill_work(ze_event_dditable_t& to);

}  // namespace simulated
