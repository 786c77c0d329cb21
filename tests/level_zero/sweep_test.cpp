// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every code of every entry point of Level Zero, the backend reports that code for that
// call, under its own name, and the driver's state is as before. Method: a life of one of
// everything as a list of steps, on the distribution's loader; before each step, each entry point
// that it uses fails with each code, once and for ever; the resource counts are compared before and
// after, and must be empty at the end.
#include <level_zero/ze_api.h>

#include "../support/entry_points.h"
#include "workbench.hpp"

import vmm.level_zero;

namespace {

using vmm::call, vmm::level_zero_driver, ze_test::simulated;

struct life : entry_points::life<level_zero_driver> {
  using entry_points::life<level_zero_driver>::life;

  vmm::status create() {
    const vmm::physical_request wanted{.size_bytes = entry_points::unit, .where = driver.home()};
    return entry_points::store(driver.create(wanted), memory);
  }
  vmm::status take_access() { return allow(vmm::access::none); }
};

// Steps without a symbol reach no entry point.
const entry_points::steps<life> all_steps{
    {call::query_granularity, {"zeVirtualMemQueryPageSize"}, &life::query_granularity},
    {call::reserve, {"zeVirtualMemReserve"}, &life::reserve},
    {call::create, {"zeVirtualMemQueryPageSize", "zePhysicalMemCreate"}, &life::create},
    {call::map, {}, &life::map},
    {call::set_access, {"zeVirtualMemMap"}, &life::give_access},
    {call::set_access, {"zeVirtualMemUnmap"}, &life::take_access},
    {call::set_access, {"zeVirtualMemMap"}, &life::give_access},
    {call::create_stream, {"zeCommandListCreateImmediate"}, &life::create_stream},
    {call::create_event, {}, &life::create_event},
    {call::fill, {"zeCommandListAppendBarrier", "zeCommandListAppendMemoryFill"}, &life::fill},
    {call::copy, {"zeCommandListAppendBarrier", "zeCommandListAppendMemoryCopy"}, &life::copy},
    {call::record_event,
     {"zeEventPoolCreate", "zeEventCreate", "zeCommandListAppendBarrier"},
     &life::record_event},
    {call::query_event, {"zeEventQueryStatus"}, &life::query_event},
    {call::wait_event, {"zeCommandListAppendBarrier"}, &life::wait_event},
    {call::synchronize_event, {"zeEventHostSynchronize"}, &life::synchronize_event},
    {call::synchronize_stream,
     {"zeCommandListAppendBarrier", "zeEventHostSynchronize"},
     &life::synchronize_stream},
    {call::synchronize_all,
     {"zeCommandListAppendBarrier", "zeEventHostSynchronize"},
     &life::synchronize_all},
    {call::write, {"zeCommandListAppendMemoryCopy"}, &life::write},
    {call::read, {"zeCommandListAppendMemoryCopy"}, &life::read},
    {call::destroy_event, {}, &life::destroy_event},
    {call::destroy_stream, {"zeCommandListAppendBarrier"}, &life::destroy_stream},
    {call::unmap, {"zeVirtualMemUnmap"}, &life::unmap},
    {call::release, {"zePhysicalMemDestroy"}, &life::release},
    {call::free_reservation, {"zeVirtualMemFree"}, &life::free_reservation},
};

struct library {
  using life = ::life;
  static const ze_test::controls& controls() { return simulated(); }
  // The codes of the specification, and two that it does not have.
  static constexpr std::array codes{ZE_RESULT_NOT_READY,
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
  static constexpr ze_result_t not_ready = ZE_RESULT_NOT_READY;
  static constexpr std::array<const char*, 0> every_symbol{};
  static constexpr bool has_same_work = false;
  // A reservation refused at one start is requested at any other: with a layer that takes a null
  // start, the second call succeeds.
  static bool is_tried_again(call where, ze_result_t code, bool forever) {
    return where == call::reserve && !forever &&
           (code == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY ||
            code == ZE_RESULT_ERROR_INVALID_ARGUMENT);
  }
};

struct LevelZeroSweep : entry_points::Sweep<library> {
  void SetUp() override {
    simulated().reset(nullptr);
    simulated().clear_complaints();
  }
};

TEST_F(LevelZeroSweep, EveryEntryPointWithEveryCode) {
  {
    auto opened = *level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
    life l(opened);
    sweep(all_steps, l);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(fake().finish_all());
  }
  EXPECT_TRUE(fake().check_empty()) << fake().report();
  EXPECT_EQ(fake().misuse_count(), 0u);
  EXPECT_STREQ(simulated().misuse(), "");
  EXPECT_STREQ(simulated().complaints(), "");
  EXPECT_EQ(simulated().reset(nullptr), 0u);
}

// The calls of open(), each with each code: the error is reported and nothing is kept. The loader
// keeps the first result of zeInit: the drivers start before anything fails.
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
    for (const ze_result_t code : library::codes) {
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
