// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the Level Zero backend does beyond the contract: which driver calls it makes, how it
// opens, how it uses native events again, what it does where the driver fails or differs.
// Method: the simulated driver under the distribution's loader, with its calls counted, its
// failures planned and its misuse noted.
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <level_zero/ze_api.h>

#include "workbench.hpp"

import vmm.backend;
import vmm.fake;
import vmm.level_zero;
import vmm.manager;

namespace {

using vmm::access;
using vmm::errc;
using vmm::level_zero_driver;
using ze_test::simulated;

constexpr std::uint64_t unit = 2ull << 20;
constexpr std::uint64_t small_unit = 64ull << 10;

vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(simulated().fake()); }

class LevelZero : public testing::Test {
 protected:
  void SetUp() override { start(nullptr); }
  void TearDown() override {
    driver_.reset();
    EXPECT_STREQ(simulated().complaints(), "");
    EXPECT_STREQ(simulated().misuse(), "");
    EXPECT_EQ(simulated().reset(nullptr), 0u) << "the driver object left something";
  }

  void start(const vmm_ze_setup* setup) {
    driver_.reset();
    simulated().reset(setup);
    simulated().clear_complaints();
  }
  void open() {
    auto made = level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
    ASSERT_TRUE(made) << vmm::describe(made.error());
    driver_.emplace(std::move(*made));
  }
  level_zero_driver& driver() { return *driver_; }

  vmm::physical_handle create(std::uint64_t size_bytes = unit) {
    const auto made = driver().create({.size_bytes = size_bytes, .where = driver().home()});
    EXPECT_TRUE(made) << vmm::describe(made.error());
    return *made;
  }
  vmm::status allow(vmm::address_range range, access rights) {
    const vmm::access_grant all[] = {{driver().home(), rights}};
    return driver().set_access(range, all);
  }
  // A reservation of `count` mapped units, without rights.
  vmm::address_range mapped(std::uint64_t count) {
    const auto range = driver().reserve({.size_bytes = count * unit});
    EXPECT_TRUE(range);
    for (std::uint64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(driver().map({range->base + i * unit, unit, create(), 0}));
    }
    return *range;
  }
  std::optional<level_zero_driver> driver_;
};

// ---- opening ------------------------------------------------------------------------------------

TEST_F(LevelZero, DescribesItsDevice) {
  open();
  EXPECT_STREQ(driver().description().device_name, "vmm simulated GPU");
  EXPECT_EQ(driver().description().api_major, 1);
  EXPECT_EQ(driver().description().api_minor, 3);
  EXPECT_EQ(driver().description().vendor_id, 0x8086u);
  EXPECT_NE(driver().native_context(), 0u);
  EXPECT_NE(driver().native_device(), 0u);
  EXPECT_NE(driver().native_stream(vmm::stream_handle::default_stream), 0u);
  EXPECT_EQ(driver().native_stream(static_cast<vmm::stream_handle>(99)), 0u);
}

TEST_F(LevelZero, OpensEachDeviceByItsNumber) {
  auto second = level_zero_driver::open({.device = 1, .loader_library = VMM_ZE_WITNESS});
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->home() == vmm::device(1));
  const auto memory = second->create({.size_bytes = unit, .where = second->home()});
  ASSERT_TRUE(memory);
  EXPECT_LT(fake().query_memory(vmm::device(1))->free_bytes,
            fake().query_memory(vmm::device(0))->free_bytes);
  const auto third = level_zero_driver::open({.device = 2, .loader_library = VMM_ZE_WITNESS});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, errc::unavailable);
}

TEST_F(LevelZero, WithoutADeviceItSaysSo) {
  const vmm_ze_setup none{.device_count_less_two = -2};
  start(&none);
  const auto opened = level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, errc::unavailable);
  EXPECT_NE(std::string(opened.error().detail).find("see no GPU"), std::string::npos);
}

TEST_F(LevelZero, ADeviceWithoutVirtualMemoryIsRefused) {
  const vmm_ze_setup none{.no_vmm = true};
  start(&none);
  const auto opened = level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, errc::not_supported);
  EXPECT_STREQ(opened.error().native_name, "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE");
  EXPECT_NE(std::string(opened.error().detail).find("no virtual memory"), std::string::npos);
}

TEST_F(LevelZero, ADriverThatDoesNotStartIsNamed) {
  simulated().fail("zeInit", ZE_RESULT_ERROR_DEVICE_LOST, 1, true);
  const auto opened = level_zero_driver::open({.loader_library = VMM_ZE_WITNESS});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, errc::unavailable);
  EXPECT_STREQ(opened.error().native_name, "ZE_RESULT_ERROR_DEVICE_LOST");
}

TEST_F(LevelZero, DemandPagesAreSaid) {
  open();
  EXPECT_FALSE(driver().feature_set().lazy_commit);
  const vmm_ze_setup lazy{.on_demand_pages = true};
  start(&lazy);
  open();
  EXPECT_TRUE(driver().feature_set().lazy_commit);
}

// ---- addresses and memory -----------------------------------------------------------------------

TEST_F(LevelZero, ThePageSizeDependsOnTheSize) {
  open();
  const auto of = [&](std::uint64_t size_bytes) {
    return *driver().query_granularity({.size_bytes = size_bytes, .where = driver().home()});
  };
  EXPECT_EQ(of(0).minimum_bytes, unit);
  EXPECT_EQ(of(small_unit).minimum_bytes, small_unit);
  EXPECT_EQ(of(small_unit).recommended_bytes, unit);
  EXPECT_EQ(of(3 * unit).minimum_bytes, unit);
  const auto range = driver().reserve({.size_bytes = unit});
  ASSERT_TRUE(range);
  const vmm::physical_handle memory = create(small_unit);
  const vmm::address_range part{range->base + 3 * small_unit, small_unit};
  EXPECT_TRUE(driver().map({part.base, small_unit, memory, 0}));
  EXPECT_TRUE(allow(part, access::read_write));
}

TEST_F(LevelZero, AlignmentIsKeptWhereTheDriverKeepsNone) {
  const vmm_ze_setup shifted{.address_shift_bytes = small_unit};
  start(&shifted);
  open();
  for (const std::uint64_t alignment : {std::uint64_t{0}, unit, 64 * unit}) {
    const auto range = driver().reserve({.size_bytes = 3 * unit, .alignment_bytes = alignment});
    ASSERT_TRUE(range);
    EXPECT_EQ(range->base.value % (alignment == 0 ? unit : alignment), 0u);
    EXPECT_EQ(range->size_bytes, 3 * unit);
    const vmm::address_range last{range->base + 2 * unit, unit};
    const vmm::physical_handle memory = create();
    EXPECT_TRUE(driver().map({last.base, unit, memory, 0}));
    EXPECT_TRUE(allow(last, access::read_write)) << "it lies in what the driver reserved";
    EXPECT_TRUE(driver().unmap(last));
    EXPECT_TRUE(driver().release(memory));
    EXPECT_TRUE(driver().free_reservation(*range));
  }
  EXPECT_EQ(fake().ledger().reservations, 0u);
}

TEST_F(LevelZero, WithTheLayerADriverThatTakesWishesLiterallyReservesNothing) {
  const vmm_ze_setup strict{.hint_or_nothing = true};
  start(&strict);
  open();
  const auto range = driver().reserve({.size_bytes = unit, .hint = {5 * unit}});
  // Under the validation layer nothing is left to try: the refusal is the driver's own word.
  ASSERT_FALSE(range);
  EXPECT_EQ(range.error().code, errc::out_of_addresses);
  EXPECT_STREQ(range.error().native_name, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY");
}

// ---- rights -------------------------------------------------------------------------------------

TEST_F(LevelZero, TheDriverMapsWhenRightsAreGiven) {
  open();
  const vmm::address_range range = mapped(3);
  EXPECT_EQ(simulated().calls("zeVirtualMemMap"), 0u);
  ASSERT_TRUE(allow(range, access::read_write));
  EXPECT_EQ(simulated().calls("zeVirtualMemMap"), 3u);
  ASSERT_TRUE(allow(range, access::read_write));
  EXPECT_EQ(simulated().calls("zeVirtualMemMap"), 3u)
      << "rights that are there are not given again";
  ASSERT_TRUE(allow({range.base + unit, unit}, access::none));
  EXPECT_EQ(simulated().calls("zeVirtualMemUnmap"), 1u);
  ASSERT_TRUE(driver().unmap(range));
  EXPECT_EQ(simulated().calls("zeVirtualMemUnmap"), 3u) << "one for each mapping with rights";
  EXPECT_EQ(simulated().calls("zeVirtualMemSetAccessAttribute"), 0u);
}

TEST_F(LevelZero, ContentsOutliveRightsThatAreTaken) {
  open();
  const vmm::address_range range = mapped(1);
  ASSERT_TRUE(allow(range, access::read_write));
  const std::vector<std::byte> written(64, std::byte{42});
  ASSERT_TRUE(driver().write(range.base, written));
  ASSERT_TRUE(allow(range, access::none));
  ASSERT_TRUE(allow(range, access::read_write));
  std::vector<std::byte> seen(64);
  ASSERT_TRUE(driver().read(seen, range.base));
  EXPECT_EQ(seen, written);
}

TEST_F(LevelZero, RightsThatNoDriverPromisesAreRefused) {
  open();
  const vmm::address_range range = mapped(1);
  EXPECT_EQ(allow(range, access::read).error().code, errc::not_supported);
  const vmm::access_grant other[] = {{vmm::device(1), access::read_write}};
  EXPECT_EQ(driver().set_access(range, other).error().code, errc::not_supported);
  EXPECT_EQ(driver().get_access(range.base, vmm::device(1)).error().code, errc::not_supported);
}

TEST_F(LevelZero, AFailureMidwayIsUndone) {
  open();
  const vmm::address_range range = mapped(4);
  ASSERT_TRUE(allow({range.base + unit, unit}, access::read_write));
  simulated().fail("zeVirtualMemMap", ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 3, false);
  const vmm::status given = allow(range, access::read_write);
  ASSERT_FALSE(given);
  EXPECT_EQ(given.error().code, errc::out_of_memory);
  EXPECT_EQ(fake().ledger().mappings, 1u) << "what had rights before has them still";
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::none);
  EXPECT_EQ(*driver().get_access(range.base + unit, driver().home()), access::read_write);

  ASSERT_TRUE(allow(range, access::read_write));
  simulated().fail("zeVirtualMemUnmap", ZE_RESULT_ERROR_UNKNOWN, 4, false);
  const vmm::status unmapped = driver().unmap(range);
  ASSERT_FALSE(unmapped);
  EXPECT_EQ(unmapped.error().code, errc::internal);
  EXPECT_EQ(fake().ledger().mappings, 4u);
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::read_write);
}

TEST_F(LevelZero, WhatCannotBeUndoneIsALostDevice) {
  open();
  const vmm::address_range range = mapped(2);
  simulated().fail("zeVirtualMemMap", ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 2, false);
  simulated().fail("zeVirtualMemUnmap", ZE_RESULT_ERROR_UNKNOWN, 1, false);
  const vmm::status given = allow(range, access::read_write);
  ASSERT_FALSE(given);
  EXPECT_EQ(given.error().code, errc::device_lost);
  EXPECT_STREQ(given.error().native_name, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY");
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::read_write);
}

// ---- work ---------------------------------------------------------------------------------------

// A native event may be set back only when neither a signal nor a wait needs it: the simulated
// driver would note it.
TEST_F(LevelZero, NativeEventsAreUsedAgain) {
  open();
  const vmm::address_range range = mapped(2);
  ASSERT_TRUE(allow(range, access::read_write));
  const vmm::stream_handle streams[] = {*driver().create_stream(), *driver().create_stream()};
  const vmm::event_handle event = *driver().create_event();
  for (int round = 0; round < 1000; ++round) {
    const vmm::stream_handle from = streams[round % 2];
    const vmm::stream_handle to = streams[(round + 1) % 2];
    ASSERT_TRUE(driver().fill({{range.base, unit}, static_cast<std::uint8_t>(round), from}));
    ASSERT_TRUE(driver().record_event(event, from));
    ASSERT_TRUE(driver().wait_event(to, event));
    if (round % 100 == 99) ASSERT_TRUE(driver().synchronize_stream(to));
  }
  EXPECT_LE(simulated().calls("zeEventPoolCreate"), 4u);
  ASSERT_TRUE(driver().synchronize_stream(streams[0]));
  ASSERT_TRUE(driver().synchronize_stream(streams[1]));
  ASSERT_TRUE(driver().destroy_event(event));
  for (const auto stream : streams) ASSERT_TRUE(driver().destroy_stream(stream));
}

// A stream that is busy for a millisecond waits for an event whose signal has long been seen.
TEST_F(LevelZero, AQueuedWaitKeepsItsNativeEvent) {
  open();
  constexpr std::uint64_t large_bytes = 4ull << 30;
  const auto range = driver().reserve({.size_bytes = large_bytes});
  ASSERT_TRUE(range);
  ASSERT_TRUE(driver().map({range->base, large_bytes, create(large_bytes), 0}));
  ASSERT_TRUE(allow(*range, access::read_write));
  const vmm::stream_handle busy = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  ASSERT_TRUE(driver().fill({*range, 1, busy}));
  ASSERT_TRUE(driver().record_event(event, vmm::stream_handle::default_stream));
  ASSERT_TRUE(driver().wait_event(busy, event));
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(driver().record_event(event, vmm::stream_handle::default_stream));
  }
  EXPECT_STREQ(simulated().misuse(), "");
  ASSERT_TRUE(driver().record_event(event, busy));
  EXPECT_FALSE(*driver().query_event(event)) << "the stream was busy all the while";
  ASSERT_TRUE(driver().synchronize_stream(busy));
}

// Waits for one old event, which no synchronisation ends, take no more and more events.
TEST_F(LevelZero, WaitsWithoutAnEndTakeBoundedEvents) {
  open();
  const vmm::stream_handle stream = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  for (int round = 0; round < 5000; ++round) {
    ASSERT_TRUE(driver().record_event(event, vmm::stream_handle::default_stream));
    ASSERT_TRUE(driver().wait_event(stream, event));
  }
  EXPECT_LE(simulated().calls("zeEventPoolCreate"), 4u);
}

TEST_F(LevelZero, ADestroyedStreamFinishesFirst) {
  open();
  fake().set_manual(true);
  const vmm::address_range range = mapped(1);
  ASSERT_TRUE(allow(range, access::read_write));
  const vmm::stream_handle stream = *driver().create_stream();
  ASSERT_TRUE(driver().fill({range, 9, stream}));
  const std::uint64_t lists = fake().ledger().streams;
  ASSERT_TRUE(driver().destroy_stream(stream));
  EXPECT_EQ(fake().ledger().streams, lists) << "its work is not finished";
  EXPECT_FALSE(driver().fill({range, 9, stream})) << "but it is no stream any more";
  ASSERT_TRUE(fake().finish_all());
  const vmm::stream_handle next = *driver().create_stream();
  EXPECT_EQ(fake().ledger().streams, lists) << "the old list went, a new one came";
  ASSERT_TRUE(driver().destroy_stream(next));
  ASSERT_TRUE(fake().finish_all());
}

TEST_F(LevelZero, TheDefaultStreamStays) {
  open();
  EXPECT_EQ(driver().destroy_stream(vmm::stream_handle::default_stream).error().code,
            errc::invalid_argument);
  EXPECT_TRUE(driver().synchronize_stream(vmm::stream_handle::default_stream));
}

TEST_F(LevelZero, HandlesThatAreNotLiveAreRefused) {
  open();
  const auto stream = static_cast<vmm::stream_handle>(77);
  const auto event = static_cast<vmm::event_handle>(77);
  const auto plain = vmm::stream_handle::default_stream;
  EXPECT_EQ(driver().synchronize_stream(stream).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().destroy_stream(stream).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().record_event(event, plain).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().query_event(event).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().wait_event(plain, event).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().synchronize_event(event).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().destroy_event(event).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().fill({{}, 0, stream}).error().code, errc::invalid_argument);
}

// ---- life ---------------------------------------------------------------------------------------

TEST_F(LevelZero, WhatIsLeftGoesWithTheObject) {
  open();
  const vmm::address_range range = mapped(3);
  ASSERT_TRUE(allow({range.base, unit}, access::read_write));
  static_cast<void>(driver().create_stream());
  static_cast<void>(driver().create_event());
}  // TearDown looks

TEST_F(LevelZero, AForkedChildIsRefused) {
  open();
  const vmm::address_range range = mapped(1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::byte bytes[8] = {};
    const bool refused =
        driver().unmap(range).error().code == errc::not_permitted &&
        driver().create_stream().error().code == errc::not_permitted &&
        driver().write(range.base, bytes).error().code == errc::not_permitted &&
        driver().query_memory(driver().home()).error().code == errc::not_permitted &&
        driver().native_stream(vmm::stream_handle::default_stream) == 0;
    const auto before = simulated().calls("zeContextDestroy");
    driver_.reset();
    _exit(refused && simulated().calls("zeContextDestroy") == before ? 0 : 1);
  }
  int outcome = 0;
  ASSERT_EQ(waitpid(child, &outcome, 0), child);
  EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
  EXPECT_TRUE(driver().unmap(range));
}

// The witness would see a refusal that is no driver's: here one is made.
TEST_F(LevelZero, TheWitnessSeesTheLayersComplaints) {
  open();
  const auto map = simulated().find<decltype(zeVirtualMemMap)>("zeVirtualMemMap");
  const auto context = reinterpret_cast<ze_context_handle_t>(driver().native_context());
  EXPECT_NE(map(context, nullptr, unit, nullptr, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE),
            ZE_RESULT_SUCCESS);
  EXPECT_NE(std::string(simulated().complaints()).find("zeVirtualMemMap"), std::string::npos);
  simulated().clear_complaints();
}

// The engine above: blocks come, move and go through this backend's capabilities.
TEST_F(LevelZero, AManagerWorksOnIt) {
  open();
  {
    vmm::manager memory(driver());
    ASSERT_TRUE(memory.set_up());
    std::vector<vmm::address> blocks;
    for (std::uint64_t i = 1; i <= 20; ++i) {
      const auto block = memory.allocate({.size_bytes = i * unit / 2});
      ASSERT_TRUE(block) << vmm::describe(block.error());
      blocks.push_back(*block);
    }
    for (const vmm::address each : blocks) ASSERT_TRUE(memory.free(each));
  }
  EXPECT_EQ(fake().ledger().mappings, 0u);
  EXPECT_EQ(fake().misuse_count(), 0u) << fake().report();
}

}  // namespace
