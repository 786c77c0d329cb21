// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every code of every entry point of Level Zero, the backend reports that code for that
// call, under its own name, and the driver's state is as before. Method: a life of one of
// everything as a list of steps, on the distribution's loader; before each step, each entry point
// that it uses fails with each code, once and for ever; the resource counts are compared before and
// after, and must be empty at the end.
#include <level_zero/ze_api.h>

#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.fake;
import vmm.level_zero;

namespace {

using vmm::call, vmm::level_zero_driver, ze_test::simulated;

constexpr std::uint64_t unit = 2ull << 20;

vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(simulated().fake()); }

struct life {
  explicit life(level_zero_driver& on) : driver(on) {}
  level_zero_driver& driver;
  vmm::address_range range{};
  vmm::physical_handle memory{};
  vmm::stream_handle stream{};
  vmm::event_handle event{};
  std::array<std::byte, 8> bytes{};

  vmm::status allow(vmm::access rights) const {
    const vmm::access_grant all[] = {{driver.home(), rights}};
    return driver.set_access({range.base, unit}, all);
  }
};

template <class T, class Into>
vmm::status store(const vmm::result<T>& made, Into& into) {
  if (!made) return made.error();
  into = *made;
  return {};
}
template <class T>
vmm::status drop(const vmm::result<T>& seen) {
  if (!seen) return seen.error();
  return {};
}

struct step {
  call where;
  std::vector<const char*> symbols;  // the entry points that the step goes through
  std::function<vmm::status(life&)> run;
};

// Steps without a symbol reach no entry point.
std::vector<step> memory_steps() {
  return {
      {call::query_granularity,
       {"zeVirtualMemQueryPageSize"},
       [](life& l) {
         return drop(l.driver.query_granularity({.size_bytes = unit, .where = l.driver.home()}));
       }},
      {call::reserve,
       {"zeVirtualMemReserve"},
       [](life& l) { return store(l.driver.reserve({.size_bytes = 2 * unit}), l.range); }},
      {call::create,
       {"zeVirtualMemQueryPageSize", "zePhysicalMemCreate"},
       [](life& l) {
         return store(l.driver.create({.size_bytes = unit, .where = l.driver.home()}), l.memory);
       }},
      {call::map, {}, [](life& l) { return l.driver.map({l.range.base, unit, l.memory, 0}); }},
      {call::set_access,
       {"zeVirtualMemMap"},
       [](life& l) { return l.allow(vmm::access::read_write); }},
      {call::set_access, {"zeVirtualMemUnmap"}, [](life& l) { return l.allow(vmm::access::none); }},
      {call::set_access,
       {"zeVirtualMemMap"},
       [](life& l) { return l.allow(vmm::access::read_write); }},
  };
}

std::vector<step> work_steps() {
  return {
      {call::create_stream,
       {"zeCommandListCreateImmediate"},
       [](life& l) { return store(l.driver.create_stream(), l.stream); }},
      {call::create_event, {}, [](life& l) { return store(l.driver.create_event(), l.event); }},
      {call::fill,
       {"zeCommandListAppendBarrier", "zeCommandListAppendMemoryFill"},
       [](life& l) { return l.driver.fill({{l.range.base, unit / 2}, 7, l.stream}); }},
      {call::copy,
       {"zeCommandListAppendBarrier", "zeCommandListAppendMemoryCopy"},
       [](life& l) {
         return l.driver.copy({l.range.base + unit / 2, l.range.base, 64, l.stream});
       }},
      {call::record_event,
       {"zeEventPoolCreate", "zeEventCreate", "zeCommandListAppendBarrier"},
       [](life& l) { return l.driver.record_event(l.event, l.stream); }},
      {call::query_event,
       {"zeEventQueryStatus"},
       [](life& l) { return drop(l.driver.query_event(l.event)); }},
      {call::wait_event,
       {"zeCommandListAppendBarrier"},
       [](life& l) { return l.driver.wait_event(l.stream, l.event); }},
      {call::synchronize_event,
       {"zeEventHostSynchronize"},
       [](life& l) { return l.driver.synchronize_event(l.event); }},
      {call::synchronize_stream,
       {"zeCommandListAppendBarrier", "zeEventHostSynchronize"},
       [](life& l) { return l.driver.synchronize_stream(l.stream); }},
      {call::synchronize_all,
       {"zeCommandListAppendBarrier", "zeEventHostSynchronize"},
       [](life& l) { return l.driver.synchronize_all(); }},
      {call::write,
       {"zeCommandListAppendMemoryCopy"},
       [](life& l) { return l.driver.write(l.range.base, l.bytes); }},
      {call::read,
       {"zeCommandListAppendMemoryCopy"},
       [](life& l) { return l.driver.read(l.bytes, l.range.base); }},
  };
}

std::vector<step> last_steps() {
  return {
      {call::destroy_event, {}, [](life& l) { return l.driver.destroy_event(l.event); }},
      {call::destroy_stream,
       {"zeCommandListAppendBarrier"},
       [](life& l) { return l.driver.destroy_stream(l.stream); }},
      {call::unmap,
       {"zeVirtualMemUnmap"},
       [](life& l) { return l.driver.unmap({l.range.base, unit}); }},
      {call::release, {"zePhysicalMemDestroy"}, [](life& l) { return l.driver.release(l.memory); }},
      {call::free_reservation,
       {"zeVirtualMemFree"},
       [](life& l) { return l.driver.free_reservation(l.range); }},
  };
}

std::vector<step> all_steps() {
  std::vector<step> all = memory_steps();
  for (auto part : {work_steps(), last_steps()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// What the specification has any call answer, and two codes that it does not have.
constexpr std::array codes{ZE_RESULT_NOT_READY,
                           ZE_RESULT_ERROR_DEVICE_LOST,
                           ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
                           ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
                           ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET,
                           ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE,
                           ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS,
                           ZE_RESULT_ERROR_NOT_AVAILABLE,
                           ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE,
                           ZE_RESULT_ERROR_UNINITIALIZED,
                           ZE_RESULT_ERROR_UNSUPPORTED_VERSION,
                           ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
                           ZE_RESULT_ERROR_INVALID_ARGUMENT,
                           ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
                           ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                           ZE_RESULT_ERROR_INVALID_NULL_POINTER,
                           ZE_RESULT_ERROR_INVALID_SIZE,
                           ZE_RESULT_ERROR_UNSUPPORTED_SIZE,
                           ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT,
                           ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT,
                           ZE_RESULT_ERROR_INVALID_ENUMERATION,
                           ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION,
                           ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE,
                           ZE_RESULT_ERROR_OVERLAPPING_REGIONS,
                           ZE_RESULT_ERROR_UNKNOWN,
                           static_cast<ze_result_t>(0x7800'00ff),
                           static_cast<ze_result_t>(0x7fff'0001)};
constexpr std::array forms{false, true};  // once, for ever

// No failure of an event query: its other answer.
bool is_answer(const step& what, ze_result_t code) {
  return what.where == call::query_event && code == ZE_RESULT_NOT_READY;
}

// A reservation refused at one start is requested at any other: with a layer that takes a null
// start, the second call succeeds.
bool is_asked_again(const step& what, ze_result_t code, bool forever) {
  return what.where == call::reserve && !forever &&
         (code == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY || code == ZE_RESULT_ERROR_INVALID_ARGUMENT);
}

std::size_t possible_count(const std::vector<step>& all) {
  std::size_t count = 0;
  for (const step& each : all) {
    for (const ze_result_t code : codes)
      if (!is_answer(each, code)) count += each.symbols.size() * forms.size();
  }
  return count;
}

bool same(const vmm::fake::resource_counts& a, const vmm::fake::resource_counts& b) {
  return a.reservations == b.reservations && a.handles == b.handles && a.memories == b.memories &&
         a.mappings == b.mappings && a.accessible_mappings == b.accessible_mappings &&
         a.streams == b.streams;
}

class LevelZeroSweep : public testing::Test {
 protected:
  void SetUp() override {
    simulated().reset(nullptr);
    simulated().clear_complaints();
  }

  // One entry point of one step fails with one code.
  void inject(const step& what, life& l, const char* symbol, ze_result_t code, bool forever) {
    if (is_answer(what, code)) return;
    const vmm::fake::resource_counts before = fake().resource_counts();
    simulated().fail(symbol, code, 1, forever);
    const vmm::status outcome = what.run(l);
    simulated().clear_failures();
    ++injected_;
    if (outcome && is_asked_again(what, code, forever)) {
      ASSERT_TRUE(l.driver.free_reservation(l.range));
      return;
    }
    ASSERT_FALSE(outcome) << symbol << " returned " << code;
    EXPECT_EQ(outcome.error().where, what.where) << symbol;
    EXPECT_EQ(outcome.error().native, code) << symbol;
    EXPECT_NE(outcome.error().code, vmm::errc::none) << symbol;
    EXPECT_STRNE(outcome.error().native_name, "") << symbol;
    EXPECT_STRNE(outcome.error().detail, "") << symbol;
    EXPECT_TRUE(same(before, fake().resource_counts())) << symbol << " returned " << code;
  }

  void sweep(const step& what, life& l) {
    for (const char* symbol : what.symbols) {
      for (const ze_result_t code : codes)
        for (const bool forever : forms) inject(what, l, symbol, code, forever);
    }
  }
  std::size_t injected_ = 0;
};

TEST_F(LevelZeroSweep, EveryEntryPointWithEveryCode) {
  const std::vector<step> steps = all_steps();
  {
    auto opened = *level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
    life l(opened);
    for (const step& each : steps) {
      sweep(each, l);
      if (HasFatalFailure()) return;
      const vmm::status outcome = each.run(l);
      ASSERT_TRUE(outcome) << vmm::describe(outcome.error());
    }
    EXPECT_TRUE(fake().finish_all());
  }
  EXPECT_TRUE(fake().check_empty()) << fake().report();
  EXPECT_EQ(fake().misuse_count(), 0u);
  EXPECT_STREQ(simulated().misuse(), "");
  EXPECT_STREQ(simulated().complaints(), "");
  EXPECT_EQ(simulated().reset(nullptr), 0u);
  std::printf("%zu of %zu possible failures injected\n", injected_, possible_count(steps));
  EXPECT_EQ(injected_, possible_count(steps));
}

// The calls of open(), each with each code: the error is reported and nothing is kept. The loader
// keeps the first answer to zeInit: the drivers start before anything fails.
TEST_F(LevelZeroSweep, EveryCallOfOpen) {
  ASSERT_TRUE(level_zero_driver::open({.loader_library = VMM_ZE_WITNESS}));
  const std::uint64_t starts = simulated().calls("zeInit");
  ASSERT_TRUE(level_zero_driver::open({.loader_library = VMM_ZE_WITNESS}));
  // Newer loaders start a driver once, and drop one that does not say that it is there.
  const bool asks_again = simulated().calls("zeInit") != starts;
  for (const char* symbol :
       {"zeInit", "zeDriverGet", "zeDeviceGet", "zeDeviceGetProperties", "zeDriverGetProperties",
        "zeDriverGetApiVersion", "zeDeviceGetMemoryProperties",
        "zeDeviceGetCommandQueueGroupProperties", "zeContextCreate", "zeVirtualMemQueryPageSize",
        "zeCommandListCreateImmediate"}) {
    const bool is_loaders =
        std::string_view(symbol) == "zeInit" || std::string_view(symbol) == "zeDriverGet";
    if (is_loaders && !asks_again) continue;
    for (const ze_result_t code : codes) {
      simulated().fail(symbol, code, 1, false);
      const auto opened = level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
      simulated().clear_failures();
      ASSERT_FALSE(opened) << symbol << " returned " << code;
      EXPECT_EQ(opened.error().native, code) << symbol;
      EXPECT_EQ(simulated().reset(nullptr), 0u) << symbol;
    }
  }
  EXPECT_TRUE(level_zero_driver::open({.loader_library = VMM_ZE_WITNESS}));
  EXPECT_STREQ(simulated().complaints(), "");
}

}  // namespace
