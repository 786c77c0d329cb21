// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: for every code of every entry point, the backend reports that code for that call, and the
// driver's state is as before. Method: a life of one of everything as a list of steps; before each
// step, each entry point that it uses fails with each code, once and for ever; the fake's resource
// counts are compared before and after, and must be zero at the end.
#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;

namespace {

using cuda_test::standin, vmm::call, vmm::cuda_driver;

constexpr std::uint64_t granule = 2ull << 20;

vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(standin().fake()); }

struct life {
  explicit life(cuda_driver& on) : driver(on) {}
  cuda_driver& driver;
  vmm::address_range range{};
  vmm::physical_handle memory{};
  vmm::physical_handle retained{};
  vmm::physical_handle imported{};
  vmm::shared_handle shared{};
  vmm::stream_handle stream{};
  vmm::event_handle event{};
  std::array<std::byte, 8> bytes{};
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

std::vector<step> memory_steps() {
  return {
      {call::query_granularity,
       {"cuMemGetAllocationGranularity"},
       [](life& l) { return drop(l.driver.query_granularity({.where = l.driver.home()})); }},
      {call::memory_info,
       {"cuMemGetInfo"},
       [](life& l) { return drop(l.driver.query_memory(l.driver.home())); }},
      {call::memory_info,
       {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuMemGetInfo"},
       [](life& l) { return drop(l.driver.query_memory(vmm::device(1))); }},
      {call::reserve,
       {"cuMemAddressReserve"},
       [](life& l) { return store(l.driver.reserve({.size_bytes = 2 * granule}), l.range); }},
      {call::create,
       {"cuMemCreate"},
       [](life& l) {
         return store(l.driver.create({.size_bytes = granule,
                                       .where = l.driver.home(),
                                       .shareable = vmm::share_kind::posix_fd}),
                      l.memory);
       }},
      {call::get_properties,
       {"cuMemGetAllocationPropertiesFromHandle"},
       [](life& l) { return drop(l.driver.get_properties(l.memory)); }},
      {call::map,
       {"cuMemMap"},
       [](life& l) { return l.driver.map({l.range.base, granule, l.memory, 0}); }},
      {call::set_access,
       {"cuMemSetAccess"},
       [](life& l) {
         const vmm::access_grant all[] = {{l.driver.home(), vmm::access::read_write}};
         return l.driver.set_access({l.range.base, granule}, all);
       }},
      {call::get_access,
       {"cuMemGetAccess"},
       [](life& l) { return drop(l.driver.get_access(l.range.base, l.driver.home())); }},
      {call::retain,
       {"cuMemRetainAllocationHandle"},
       [](life& l) { return store(l.driver.retain(l.range.base), l.retained); }},
      {call::release, {"cuMemRelease"}, [](life& l) { return l.driver.release(l.retained); }},
      {call::export_handle,
       {"cuMemExportToShareableHandle"},
       [](life& l) {
         return store(l.driver.export_handle(l.memory, vmm::share_kind::posix_fd), l.shared);
       }},
      {call::query_peer,
       {"cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute"},
       [](life& l) { return drop(l.driver.query_peer({vmm::device(0), vmm::device(1)})); }},
      {call::export_range,
       {"cuMemGetHandleForAddressRange"},
       [](life& l) {
         const vmm::result<vmm::dma_buf> made = l.driver.export_range({l.range.base, granule});
         if (made) close(static_cast<int>(made->descriptor));
         return drop(made);
       }},
      {call::import_handle,
       {"cuMemImportFromShareableHandle"},
       [](life& l) { return store(l.driver.import_handle(l.shared), l.imported); }},
      {call::release,
       {"cuMemRelease"},
       [](life& l) {
         const vmm::status outcome = l.driver.release(l.imported);
         if (outcome) close(static_cast<int>(l.shared.descriptor));
         return outcome;
       }},
  };
}

std::vector<step> work_steps() {
  return {
      {call::create_stream,
       {"cuStreamCreate"},
       [](life& l) { return store(l.driver.create_stream(), l.stream); }},
      {call::create_event,
       {"cuEventCreate"},
       [](life& l) { return store(l.driver.create_event(), l.event); }},
      {call::fill,
       {"cuMemsetD8Async"},
       [](life& l) { return l.driver.fill({{l.range.base, granule / 2}, 7, l.stream}); }},
      {call::copy,
       {"cuMemcpyDtoDAsync"},
       [](life& l) {
         return l.driver.copy({l.range.base + granule / 2, l.range.base, 64, l.stream});
       }},
      {call::record_event,
       {"cuEventRecord"},
       [](life& l) { return l.driver.record_event(l.event, l.stream); }},
      {call::record_all,
       {"cuCtxRecordEvent"},
       [](life& l) { return l.driver.record_all(l.event); }},
      {call::synchronize_all,
       {"cuCtxSynchronize"},
       [](life& l) { return l.driver.synchronize_all(); }},
      {call::query_event,
       {"cuEventQuery"},
       [](life& l) { return drop(l.driver.query_event(l.event)); }},
      {call::wait_event,
       {"cuStreamWaitEvent"},
       [](life& l) { return l.driver.wait_event(l.stream, l.event); }},
      {call::synchronize_event,
       {"cuEventSynchronize"},
       [](life& l) { return l.driver.synchronize_event(l.event); }},
      {call::synchronize_stream,
       {"cuStreamSynchronize"},
       [](life& l) { return l.driver.synchronize_stream(l.stream); }},
      {call::write,
       {"cuMemcpyHtoDAsync", "cuStreamSynchronize"},
       [](life& l) { return l.driver.write(l.range.base, l.bytes); }},
      {call::read,
       {"cuMemcpyDtoHAsync", "cuStreamSynchronize"},
       [](life& l) { return l.driver.read(l.bytes, l.range.base); }},
  };
}

std::vector<step> last_steps() {
  return {
      {call::destroy_event,
       {"cuEventDestroy"},
       [](life& l) { return l.driver.destroy_event(l.event); }},
      {call::destroy_stream,
       {"cuStreamDestroy"},
       [](life& l) { return l.driver.destroy_stream(l.stream); }},
      {call::unmap,
       {"cuMemUnmap"},
       [](life& l) { return l.driver.unmap({l.range.base, granule}); }},
      {call::release, {"cuMemRelease"}, [](life& l) { return l.driver.release(l.memory); }},
      {call::free_reservation,
       {"cuMemAddressFree"},
       [](life& l) { return l.driver.free_reservation(l.range); }},
  };
}

std::vector<step> all_steps() {
  std::vector<step> all = memory_steps();
  for (auto part : {work_steps(), last_steps()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Every code that the stub driver has a name for, and one without.
constexpr std::array codes{1,   2,   3,   4,   34,  46,  100, 101, 201, 205, 208, 211, 214, 220,
                           304, 400, 401, 500, 600, 700, 701, 702, 709, 710, 714, 715, 716, 717,
                           718, 719, 800, 801, 802, 803, 810, 900, 908, 911, 999, 1000};
constexpr int not_ready = 600;
constexpr std::array forms{false, true};  // once, for ever
constexpr std::array context_symbols{"cuCtxGetCurrent", "cuCtxPushCurrent"};

// NOT_READY is not a failure of an event query, but its other result.
bool is_answer(const step& what, const char* symbol, int code) {
  return what.where == call::query_event && code == not_ready && symbol == what.symbols.front();
}

std::size_t possible_count(const std::vector<step>& all) {
  std::size_t count = 0;
  for (const step& each : all) {
    count += (each.symbols.size() + context_symbols.size()) * codes.size() * forms.size();
    if (each.where == call::query_event) count -= forms.size();
  }
  return count;
}

bool same(const vmm::fake::resource_counts& a, const vmm::fake::resource_counts& b) {
  return a.reservations == b.reservations && a.handles == b.handles && a.memories == b.memories &&
         a.mappings == b.mappings && a.accessible_mappings == b.accessible_mappings &&
         a.streams == b.streams && a.events == b.events && a.pending_work == b.pending_work;
}

class Sweep : public testing::Test {
 protected:
  void SetUp() override { standin().reset(nullptr); }

  // One entry point of one step fails with one code.
  void inject(const step& what, life& l, const char* symbol, int code, bool forever) {
    if (is_answer(what, symbol, code)) return;
    const vmm::fake::resource_counts before = fake().resource_counts();
    standin().fail(symbol, code, 1, forever);
    const vmm::status outcome = what.run(l);
    standin().clear_failures();
    ++injected_;
    ASSERT_FALSE(outcome) << symbol << " returned " << code;
    EXPECT_EQ(outcome.error().where, what.where) << symbol;
    EXPECT_EQ(outcome.error().native, code) << symbol;
    EXPECT_NE(outcome.error().code, vmm::errc::none) << symbol;
    EXPECT_STRNE(outcome.error().native_name, "") << symbol;
    EXPECT_STRNE(outcome.error().detail, "") << symbol;
    EXPECT_TRUE(same(before, fake().resource_counts())) << symbol << " returned " << code;
  }

  void sweep(const step& what, life& l) {
    std::vector<const char*> symbols = what.symbols;
    symbols.insert(symbols.end(), context_symbols.begin(), context_symbols.end());
    for (const char* symbol : symbols) {
      for (const int code : codes)
        for (const bool forever : forms) inject(what, l, symbol, code, forever);
    }
  }

  // The steps in their order, each with every failure first.
  void sweep_life(const std::vector<step>& steps, vmm::cuda_memory memory) {
    {
      auto opened = *cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY, .memory = memory});
      life l(opened);
      for (const step& each : steps) {
        sweep(each, l);
        if (HasFatalFailure()) return;
        const vmm::status outcome = each.run(l);
        ASSERT_TRUE(outcome) << vmm::describe(outcome.error());
      }
    }
    EXPECT_TRUE(fake().check_empty()) << fake().report();
    EXPECT_EQ(fake().misuse_count(), 0u);
    EXPECT_EQ(standin().context_references(0), 0);
    EXPECT_EQ(standin().context_references(1), 0);
    const std::size_t possible = possible_count(steps);
    std::printf("%zu of %zu possible failures injected\n", injected_, possible);
    EXPECT_EQ(injected_, possible);
  }

  std::size_t injected_ = 0;
};

TEST_F(Sweep, EveryEntryPointWithEveryCode) { sweep_life(all_steps(), vmm::cuda_memory::mapped); }

std::vector<step> plain_steps() {
  std::vector<step> all{
      {call::reserve,
       {"cuMemAlloc"},
       [](life& l) { return store(l.driver.reserve({.size_bytes = granule}), l.range); }},
  };
  const std::vector<step> between = work_steps();
  all.insert(all.end(), between.begin(), between.end());
  all.insert(all.end(), {{call::destroy_event,
                          {"cuEventDestroy"},
                          [](life& l) { return l.driver.destroy_event(l.event); }},
                         {call::destroy_stream,
                          {"cuStreamDestroy"},
                          [](life& l) { return l.driver.destroy_stream(l.stream); }},
                         {call::free_reservation, {"cuMemFree"}, [](life& l) {
                            return l.driver.free_reservation(l.range);
                          }}});
  return all;
}

// In plain memory the other calls reach no entry point.
TEST_F(Sweep, EveryEntryPointOfPlainMemory) { sweep_life(plain_steps(), vmm::cuda_memory::plain); }

// The calls of open(), each with each code: the error is reported and no reference is kept.
TEST_F(Sweep, EveryCallOfOpen) {
  for (const char* symbol :
       {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
        "cuCtxPushCurrent", "cuStreamCreate"}) {
    for (const int code : codes) {
      standin().fail(symbol, code, 1, false);
      const auto opened = cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY});
      standin().clear_failures();
      ASSERT_FALSE(opened) << symbol << " returned " << code;
      EXPECT_EQ(opened.error().native, code) << symbol;
      EXPECT_EQ(standin().context_references(0), 0) << symbol;
    }
  }
  EXPECT_TRUE(cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY}));
  EXPECT_TRUE(fake().check_empty()) << fake().report();
}

TEST_F(Sweep, WhatOpenAsksForPlainMemory) {
  const vmm::cuda_options plain{.driver_library = VMM_STANDIN_LIBRARY,
                                .memory = vmm::cuda_memory::plain};
  for (const char* symbol : {"cuMemGetAllocationGranularity", "cuMemGetInfo"}) {
    for (const int code : codes) {
      standin().fail(symbol, code, 1, false);
      const auto opened = cuda_driver::open(plain);
      standin().clear_failures();
      ASSERT_FALSE(opened) << symbol << " returned " << code;
      EXPECT_EQ(opened.error().native, code) << symbol;
      EXPECT_EQ(standin().context_references(0), 0) << symbol;
    }
  }
  EXPECT_TRUE(cuda_driver::open(plain));
  EXPECT_TRUE(fake().check_empty()) << fake().report();
}

}  // namespace
