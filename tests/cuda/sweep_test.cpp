// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every code of every entry point, the backend reports that code for that call, and the
// driver's state is as before. Method: a life of one of everything as a list of steps; before each
// step, each entry point that it uses fails with each code, once and for ever; the fake's resource
// counts are compared before and after, and must be zero at the end.
#include "../support/entry_points.h"
#include "workbench.hpp"

import vmm.cuda;

namespace {

using cuda_test::standin, entry_points::drop, entry_points::store, vmm::call, vmm::cuda_driver;

constexpr std::uint64_t granule = entry_points::unit;

struct life : entry_points::life<cuda_driver> {
  using entry_points::life<cuda_driver>::life;
  vmm::physical_handle retained{};
  vmm::physical_handle imported{};
  vmm::shared_handle shared{};

  vmm::status query_memory() { return drop(driver.query_memory(driver.home())); }
  vmm::status query_another() { return drop(driver.query_memory(vmm::device(1))); }
  vmm::status create() {
    const vmm::physical_request wanted{
        .size_bytes = granule, .where = driver.home(), .shareable = vmm::share_kind::posix_fd};
    return store(driver.create(wanted), memory);
  }
  vmm::status get_properties() { return drop(driver.get_properties(memory)); }
  vmm::status get_access() { return drop(driver.get_access(range.base, driver.home())); }
  vmm::status retain() { return store(driver.retain(range.base), retained); }
  vmm::status release_retained() { return driver.release(retained); }
  vmm::status export_handle() {
    return store(driver.export_handle(memory, vmm::share_kind::posix_fd), shared);
  }
  vmm::status query_peer() { return drop(driver.query_peer({vmm::device(0), vmm::device(1)})); }
  vmm::status export_range() {
    const vmm::result<vmm::dma_buf> made = driver.export_range({range.base, granule});
    if (made) close(static_cast<int>(made->descriptor));
    return drop(made);
  }
  vmm::status import_handle() { return store(driver.import_handle(shared), imported); }
  vmm::status release_imported() {
    const vmm::status outcome = driver.release(imported);
    if (outcome) close(static_cast<int>(shared.descriptor));
    return outcome;
  }
  vmm::status record_all() { return driver.record_all(event); }
  vmm::status reserve_plain() { return store(driver.reserve({.size_bytes = granule}), range); }
};
using steps = entry_points::steps<life>;

const steps memory_steps{
    {call::query_granularity, {"cuMemGetAllocationGranularity"}, &life::query_granularity},
    {call::memory_info, {"cuMemGetInfo"}, &life::query_memory},
    {call::memory_info,
     {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuMemGetInfo"},
     &life::query_another},
    {call::reserve, {"cuMemAddressReserve"}, &life::reserve},
    {call::create, {"cuMemCreate"}, &life::create},
    {call::get_properties, {"cuMemGetAllocationPropertiesFromHandle"}, &life::get_properties},
    {call::map, {"cuMemMap"}, &life::map},
    {call::set_access, {"cuMemSetAccess"}, &life::give_access},
    {call::get_access, {"cuMemGetAccess"}, &life::get_access},
    {call::retain, {"cuMemRetainAllocationHandle"}, &life::retain},
    {call::release, {"cuMemRelease"}, &life::release_retained},
    {call::export_handle, {"cuMemExportToShareableHandle"}, &life::export_handle},
    {call::query_peer, {"cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute"}, &life::query_peer},
    {call::export_range, {"cuMemGetHandleForAddressRange"}, &life::export_range},
    {call::import_handle, {"cuMemImportFromShareableHandle"}, &life::import_handle},
    {call::release, {"cuMemRelease"}, &life::release_imported},
};

const steps work_steps{
    {call::create_stream, {"cuStreamCreate"}, &life::create_stream},
    {call::create_event, {"cuEventCreate"}, &life::create_event},
    {call::fill, {"cuMemsetD8Async"}, &life::fill},
    {call::copy, {"cuMemcpyDtoDAsync"}, &life::copy},
    {call::record_event, {"cuEventRecord"}, &life::record_event},
    {call::record_all, {"cuCtxRecordEvent"}, &life::record_all},
    {call::synchronize_all, {"cuCtxSynchronize"}, &life::synchronize_all},
    {call::query_event, {"cuEventQuery"}, &life::query_event},
    {call::wait_event, {"cuStreamWaitEvent"}, &life::wait_event},
    {call::synchronize_event, {"cuEventSynchronize"}, &life::synchronize_event},
    {call::synchronize_stream, {"cuStreamSynchronize"}, &life::synchronize_stream},
    {call::write, {"cuMemcpyHtoDAsync", "cuStreamSynchronize"}, &life::write},
    {call::read, {"cuMemcpyDtoHAsync", "cuStreamSynchronize"}, &life::read},
    {call::destroy_event, {"cuEventDestroy"}, &life::destroy_event},
    {call::destroy_stream, {"cuStreamDestroy"}, &life::destroy_stream},
};

const steps last_steps{
    {call::unmap, {"cuMemUnmap"}, &life::unmap},
    {call::release, {"cuMemRelease"}, &life::release},
    {call::free_reservation, {"cuMemAddressFree"}, &life::free_reservation},
};

struct library {
  using life = ::life;
  static const cuda_test::controls& controls() { return standin(); }
  // Every code that the stub driver has a name for, and one without.
  static constexpr std::array codes{1,   2,   3,   4,   34,  46,  100, 101, 201, 205,
                                    208, 211, 214, 220, 304, 400, 401, 500, 600, 700,
                                    701, 702, 709, 710, 714, 715, 716, 717, 718, 719,
                                    800, 801, 802, 803, 810, 900, 908, 911, 999, 1000};
  static constexpr int not_ready = 600;
  static constexpr std::array every_symbol{"cuCtxGetCurrent", "cuCtxPushCurrent"};
  static constexpr bool has_same_work = true;
  static bool is_tried_again(call, int, bool) { return false; }
};

struct Sweep : entry_points::Sweep<library> {
  void SetUp() override { standin().reset(nullptr); }

  void sweep_life(const steps& all, vmm::cuda_memory memory) {
    {
      auto opened = *cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY, .memory = memory});
      life l(opened);
      sweep(all, l);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(fake().check_empty()) << fake().report();
    EXPECT_EQ(fake().misuse_count(), 0u);
    EXPECT_EQ(standin().context_references(0), 0);
    EXPECT_EQ(standin().context_references(1), 0);
  }

  // open() fails with each code of each entry point: the error is reported and no reference is
  // kept.
  void sweep_open(const vmm::cuda_options& how, std::initializer_list<const char*> symbols) {
    for (const char* symbol : symbols) {
      for (const int code : library::codes) {
        standin().fail(symbol, code, 1, false);
        const auto opened = cuda_driver::open(how);
        standin().clear_failures();
        ASSERT_FALSE(opened) << symbol << " returned " << code;
        EXPECT_EQ(opened.error().native, code) << symbol;
        EXPECT_EQ(standin().context_references(0), 0) << symbol;
      }
    }
    EXPECT_TRUE(cuda_driver::open(how));
    EXPECT_TRUE(fake().check_empty()) << fake().report();
  }
};

TEST_F(Sweep, EveryEntryPointWithEveryCode) {
  sweep_life(entry_points::joined(memory_steps, {work_steps, last_steps}),
             vmm::cuda_memory::mapped);
}

// In plain memory the other calls reach no entry point.
TEST_F(Sweep, EveryEntryPointOfPlainMemory) {
  const steps first{{call::reserve, {"cuMemAlloc"}, &life::reserve_plain}};
  const steps last{{call::free_reservation, {"cuMemFree"}, &life::free_reservation}};
  sweep_life(entry_points::joined(first, {work_steps, last}), vmm::cuda_memory::plain);
}

TEST_F(Sweep, EveryCallOfOpen) {
  sweep_open({.driver_library = VMM_STANDIN_LIBRARY},
             {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
              "cuCtxGetCurrent", "cuCtxPushCurrent", "cuStreamCreate"});
}

TEST_F(Sweep, WhatOpenAsksForPlainMemory) {
  sweep_open({.driver_library = VMM_STANDIN_LIBRARY, .memory = vmm::cuda_memory::plain},
             {"cuMemGetAllocationGranularity", "cuMemGetInfo"});
}

}  // namespace
