// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the Level Zero backend does beyond the contract: which driver calls it makes, how it
// opens, how it uses native events again, what it does where the driver fails or differs.
// Method: the simulated driver under the distribution's loader, with its calls counted, its
// failures planned and its misuse noted.
#include <regex>

#include <level_zero/ze_api.h>

#include "fixture.h"

import vmm.containers;
import vmm.manager;

namespace {

using vmm::access, vmm::errc, vmm::level_zero_driver, ze_test::fake, ze_test::simulated,
    ze_test::unit;

constexpr std::uint64_t small_unit = 64ull << 10;

class LevelZero : public ze_test::OpenedDriver {};

// ---- opening ------------------------------------------------------------------------------------

TEST_F(LevelZero, DescribesItsDevice) {
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
  auto second = *opened(1);
  EXPECT_TRUE(second.home() == vmm::device(1));
  const auto memory = second.create({.size_bytes = unit, .where = second.home()});
  ASSERT_TRUE(memory);
  EXPECT_LT(fake().query_memory(vmm::device(1))->free_bytes,
            fake().query_memory(vmm::device(0))->free_bytes);
  const auto third = opened(2);
  EXPECT_EQ(third.error().code, errc::unavailable);
  EXPECT_TRUE(contains(vmm::describe(third.error()), "GPU 2 was requested"));
  EXPECT_TRUE(contains(vmm::describe(third.error()), "see 2 GPUs"));
}

// What the mask hides is not there, and what it shows is counted from 0.
TEST_F(LevelZero, TheMaskOfDevicesIsKept) {
  struct mask {
    const char* text;
    int shown_count;
    std::int32_t first;
  };
  for (const mask& each : {mask{"1", 1, 1}, mask{"0", 1, 0}, mask{"1,0", 2, 0}, mask{"1.0", 1, 1},
                           mask{"1,7", 1, 1}, mask{"", 2, 0}}) {
    SCOPED_TRACE(each.text);
    ::setenv("ZE_AFFINITY_MASK", each.text, 1);
    start(nullptr);
    open();
    create();
    EXPECT_LT(fake().query_memory(vmm::device(each.first))->free_bytes,
              fake().query_memory(vmm::device(1 - each.first))->free_bytes);
    const auto behind = opened(each.shown_count);
    ASSERT_FALSE(behind);
    const std::string text = vmm::describe(behind.error());
    const bool names_the_mask = text.find("ZE_AFFINITY_MASK is '") != std::string::npos;
    EXPECT_EQ(names_the_mask, *each.text != '\0') << text;
  }
  ::setenv("ZE_AFFINITY_MASK", "7", 1);
  start(nullptr);
  const auto none = opened();
  ::unsetenv("ZE_AFFINITY_MASK");
  ASSERT_FALSE(none);
  EXPECT_TRUE(contains(none.error().detail, "see no GPU"));
}

TEST_F(LevelZero, ADriverIsChosenByItsNumber) {
  const auto first = *opened(1, 0);
  EXPECT_TRUE(first.home() == vmm::device(1));
  EXPECT_EQ(first.description().driver_number, 0);
  const auto none = opened(0, 1);
  EXPECT_EQ(none.error().code, errc::unavailable);
  EXPECT_NE(std::string(none.error().detail).find("::driver is 1, and the loader has 1 driver;"),
            std::string::npos)
      << none.error().detail;
  EXPECT_EQ(opened(0, -2).error().code, errc::bad_option);
}

// A GPU that goes between the two calls that list them leaves no handle.
TEST_F(LevelZero, FewerDevicesThanWereCounted) {
  const vmm_ze_setup leaving{.device_count_less_two = -1, .device_count_leaving = 2};
  start(&leaving);
  open();
  for (const std::int32_t gone : {1, 2}) {
    EXPECT_EQ(opened(gone).error().code, errc::unavailable);
  }
}

TEST_F(LevelZero, WithoutADeviceItSaysSo) {
  const vmm_ze_setup none{.device_count_less_two = -2};
  start(&none);
  const auto made = opened();
  EXPECT_EQ(made.error().code, errc::unavailable);
  EXPECT_TRUE(contains(made.error().detail, "see no GPU"));
}

TEST_F(LevelZero, ADeviceWithoutVirtualMemoryIsRefused) {
  const vmm_ze_setup none{.no_vmm = true};
  start(&none);
  const auto made = opened();
  EXPECT_EQ(made.error().code, errc::not_supported);
  EXPECT_STREQ(made.error().native_name, "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE");
  EXPECT_TRUE(contains(made.error().detail, "no virtual memory"));
}

TEST_F(LevelZero, ADriverThatDoesNotStartIsNamed) {
  simulated().fail("zeInit", ZE_RESULT_ERROR_DEVICE_LOST, 1, true);
  const auto made = opened();
  if (simulated().calls("zeInit") == 0) GTEST_SKIP() << "this loader starts a driver once";
  EXPECT_EQ(made.error().code, errc::unavailable);
  EXPECT_STREQ(made.error().native_name, "ZE_RESULT_ERROR_DEVICE_LOST");
}

TEST_F(LevelZero, DemandPagesAreSaid) {
  EXPECT_FALSE(driver().feature_set().lazy_commit);
  const vmm_ze_setup lazy{.on_demand_pages = true};
  start(&lazy);
  EXPECT_TRUE(driver().feature_set().lazy_commit);
}

// ---- addresses and memory -----------------------------------------------------------------------

TEST_F(LevelZero, ThePageSizeDependsOnTheSize) {
  const auto of = [&](std::uint64_t size_bytes) {
    return *driver().query_granularity({.size_bytes = size_bytes, .where = driver().home()});
  };
  EXPECT_EQ(of(0).minimum_bytes, unit);
  EXPECT_EQ(of(small_unit).minimum_bytes, small_unit);
  EXPECT_EQ(of(small_unit).recommended_bytes, unit);
  EXPECT_EQ(of(3 * unit).minimum_bytes, unit);
  const auto range = *driver().reserve({.size_bytes = unit});
  const vmm::physical_handle memory = create(small_unit);
  const vmm::address_range part{range.base + 3 * small_unit, small_unit};
  EXPECT_TRUE(driver().map({part.base, small_unit, memory, 0}));
  EXPECT_TRUE(allow(part, access::read_write));
}

TEST_F(LevelZero, AlignmentIsKeptWhereTheDriverKeepsNone) {
  const vmm_ze_setup shifted{.address_shift_bytes = small_unit};
  start(&shifted);
  for (const std::uint64_t alignment : {std::uint64_t{0}, unit, 64 * unit}) {
    const auto range = *driver().reserve({.size_bytes = 3 * unit, .alignment_bytes = alignment});
    EXPECT_EQ(range.base.value % (alignment == 0 ? unit : alignment), 0u);
    EXPECT_EQ(range.size_bytes, 3 * unit);
    const vmm::address_range last{range.base + 2 * unit, unit};
    const vmm::physical_handle memory = create();
    EXPECT_TRUE(driver().map({last.base, unit, memory, 0}));
    EXPECT_TRUE(allow(last, access::read_write)) << "it lies in what the driver reserved";
    EXPECT_TRUE(driver().unmap(last));
    EXPECT_TRUE(driver().release(memory));
    EXPECT_TRUE(driver().free_reservation(range));
  }
  EXPECT_EQ(fake().resource_counts().reservations, 0u);
}

TEST_F(LevelZero, ADriverThatTakesWishesLiterallyIsAskedForAnyAddress) {
  const vmm_ze_setup strict{.hint_or_nothing = true};
  start(&strict);
  const auto range = driver().reserve({.size_bytes = unit, .hint = {5 * unit}});
  if (range) {  // this loader's layer takes a null start
    EXPECT_EQ(simulated().calls("zeVirtualMemReserve"), 3u) << "there, elsewhere, anywhere";
    EXPECT_TRUE(driver().free_reservation(*range));
    return;
  }
  // Under a layer that refuses it nothing is left to try: the refusal is the driver's own word.
  EXPECT_EQ(range.error().code, errc::out_of_addresses);
  EXPECT_STREQ(range.error().native_name, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY");
}

// As the loader's own null driver.
TEST_F(LevelZero, ADriverThatGivesNothingIsNotBelieved) {
  const vmm_ze_setup no_address{.gives_no_address = true};
  start(&no_address);
  const auto range = driver().reserve({.size_bytes = unit});
  EXPECT_EQ(range.error().code, errc::internal);
  EXPECT_TRUE(contains(range.error().detail, "without a value"));

  const vmm_ze_setup no_memory{.gives_no_memory = true};
  start(&no_memory);
  EXPECT_EQ(driver().create({.size_bytes = unit, .where = driver().home()}).error().code,
            errc::internal);
  const auto info = driver().query_memory(driver().home());
  EXPECT_EQ(info->free_bytes, info->total_bytes);
}

TEST_F(LevelZero, AddressesThatAreGivenTwiceAreRefused) {
  const vmm_ze_setup repeating{.repeats_address = true};
  start(&repeating);
  const auto range = *driver().reserve({.size_bytes = 2 * unit});
  EXPECT_EQ(driver().reserve({.size_bytes = unit}).error().code, errc::internal);
  EXPECT_EQ(fake().resource_counts().reservations, 1u)
      << "the first reservation keeps its addresses";
  EXPECT_TRUE(driver().free_reservation(range));
}

TEST_F(LevelZero, AddressesThatTheDriverKeepsAreALostDevice) {
  const vmm_ze_setup shifted{.address_shift_bytes = small_unit};
  start(&shifted);
  open();
  simulated().fail("zeVirtualMemFree", ZE_RESULT_ERROR_UNKNOWN, 1, false);
  const auto range = driver().reserve({.size_bytes = unit});
  EXPECT_EQ(range.error().code, errc::device_lost);
  EXPECT_STREQ(range.error().native_name, "ZE_RESULT_ERROR_UNKNOWN");
  driver_.reset();
  EXPECT_EQ(fake().resource_counts().reservations, 1u) << "the driver has them still";
  simulated().reset(nullptr);
}

// Every code that the header names, and those of version 1.13 that an older one does not have.
TEST_F(LevelZero, EveryCodeHasTheNameThatTheHeaderGivesIt) {
  open();
  std::vector<std::pair<std::string, unsigned long>> codes{
      {"ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE", 0x7800001c},
      {"ZE_RESULT_EXT_RTAS_BUILD_RETRY", 0x7800001d},
      {"ZE_RESULT_EXT_RTAS_BUILD_DEFERRED", 0x7800001e},
      {"ZE_RESULT_EXT_ERROR_OPERANDS_INCOMPATIBLE", 0x7800001f},
      {"ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED", 0x78000020}};
  std::ifstream header(VMM_ZE_HEADER);
  const std::regex wanted(R"(^ *(ZE_RESULT_[A-Z_]+) = (0x[0-9a-f]+|[0-9]+),.*)");
  std::smatch parts;
  for (std::string line; std::getline(header, line);) {
    if (!std::regex_match(line, parts, wanted)) continue;
    codes.emplace_back(parts[1], std::stoul(parts[2], nullptr, 0));
  }
  EXPECT_GT(codes.size(), 40u) << "in " << VMM_ZE_HEADER;
  for (const auto& [name, code] : codes) {
    if (code == ZE_RESULT_SUCCESS || code == ZE_RESULT_FORCE_UINT32) continue;
    simulated().fail("zePhysicalMemCreate", static_cast<int>(code), 1, false);
    const auto made = driver().create({.size_bytes = unit, .where = driver().home()});
    ASSERT_FALSE(made) << name;
    EXPECT_EQ(made.error().native_name, name);
    EXPECT_EQ(made.error().native, static_cast<std::int64_t>(code));
  }
}

// ---- rights -------------------------------------------------------------------------------------

TEST_F(LevelZero, TheDriverMapsWhenRightsAreGiven) {
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
  const vmm::address_range range = usable(1);
  const std::vector<std::byte> written(64, std::byte{42});
  ASSERT_TRUE(driver().write(range.base, written));
  ASSERT_TRUE(allow(range, access::none));
  ASSERT_TRUE(allow(range, access::read_write));
  std::vector<std::byte> seen(64);
  ASSERT_TRUE(driver().read(seen, range.base));
  EXPECT_EQ(seen, written);
}

TEST_F(LevelZero, RightsThatNoDriverPromisesAreRefused) {
  const vmm::address_range range = mapped(1);
  EXPECT_EQ(allow(range, access::read).error().code, errc::not_supported);
  const vmm::access_grant other[] = {{vmm::device(1), access::read_write}};
  EXPECT_EQ(driver().set_access(range, other).error().code, errc::not_supported);
  EXPECT_EQ(driver().get_access(range.base, vmm::device(1)).error().code, errc::not_supported);
}

TEST_F(LevelZero, AFailureMidwayIsUndone) {
  const vmm::address_range range = mapped(4);
  ASSERT_TRUE(allow({range.base + unit, unit}, access::read_write));
  simulated().fail("zeVirtualMemMap", ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 3, false);
  const vmm::status given = allow(range, access::read_write);
  EXPECT_EQ(given.error().code, errc::out_of_memory);
  EXPECT_EQ(fake().resource_counts().mappings, 1u) << "what had rights before has them still";
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::none);
  EXPECT_EQ(*driver().get_access(range.base + unit, driver().home()), access::read_write);

  ASSERT_TRUE(allow(range, access::read_write));
  simulated().fail("zeVirtualMemUnmap", ZE_RESULT_ERROR_UNKNOWN, 4, false);
  const vmm::status unmapped = driver().unmap(range);
  EXPECT_EQ(unmapped.error().code, errc::internal);
  EXPECT_EQ(fake().resource_counts().mappings, 4u);
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::read_write);
}

TEST_F(LevelZero, WhatCannotBeUndoneIsALostDevice) {
  const vmm::address_range range = mapped(2);
  simulated().fail("zeVirtualMemMap", ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 2, false);
  // The first unmap is of the mapping that failed.
  simulated().fail("zeVirtualMemUnmap", ZE_RESULT_ERROR_UNKNOWN, 2, false);
  const vmm::status given = allow(range, access::read_write);
  EXPECT_EQ(given.error().code, errc::device_lost);
  EXPECT_STREQ(given.error().native_name, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY");
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::read_write);
}

// ---- work ---------------------------------------------------------------------------------------

// A native event may be set back only when neither a signal nor a wait needs it: the simulated
// driver would note it.
TEST_F(LevelZero, NativeEventsAreUsedAgain) {
  const vmm::address_range range = usable(2);
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
  constexpr std::uint64_t large_bytes = 4ull << 30;
  const auto range = *driver().reserve({.size_bytes = large_bytes});
  ASSERT_TRUE(driver().map({range.base, large_bytes, create(large_bytes), 0}));
  ASSERT_TRUE(allow(range, access::read_write));
  const vmm::stream_handle busy = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  ASSERT_TRUE(driver().fill({range, 1, busy}));
  ASSERT_TRUE(driver().record_event(event, vmm::stream_handle::default_stream));
  ASSERT_TRUE(driver().wait_event(busy, event));
  for (int round = 0; round < 200; ++round)
    ASSERT_TRUE(driver().record_event(event, vmm::stream_handle::default_stream));
  EXPECT_STREQ(simulated().misuse(), "");
  ASSERT_TRUE(driver().record_event(event, busy));
  EXPECT_FALSE(*driver().query_event(event)) << "the stream was busy all the while";
  ASSERT_TRUE(driver().synchronize_stream(busy));
}

// A hundred points that nothing refers to and that stuck work will signal: they are not looked for
// again and again, and not made again and again.
TEST_F(LevelZero, StuckWorkHoldsOnlyItsOwnEvents) {
  open();
  fake().set_manual(true);
  const vmm::address_range range = usable(1);
  const vmm::stream_handle stuck = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  ASSERT_TRUE(driver().fill({range, 1, stuck}));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(driver().record_event(event, stuck));
  const auto before = simulated().calls("zeEventQueryStatus");
  constexpr int rounds = 2000;
  for (int i = 0; i < rounds; ++i) {
    ASSERT_TRUE(driver().record_event(event, vmm::stream_handle::default_stream));
    ASSERT_TRUE(driver().synchronize_event(event));
  }
  EXPECT_LE(simulated().calls("zeEventPoolCreate"), 3u);
  EXPECT_LE(simulated().calls("zeEventQueryStatus") - before, 4u * rounds);
  ASSERT_TRUE(fake().finish_all());
}

// Waits for one old event, which no synchronisation ends, take no more and more events.
TEST_F(LevelZero, WaitsWithoutAnEndTakeBoundedEvents) {
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
  const vmm::address_range range = usable(1);
  const vmm::stream_handle stream = *driver().create_stream();
  ASSERT_TRUE(driver().fill({range, 9, stream}));
  const std::uint64_t lists = fake().resource_counts().streams;
  ASSERT_TRUE(driver().destroy_stream(stream));
  EXPECT_EQ(fake().resource_counts().streams, lists) << "its work is not finished";
  EXPECT_FALSE(driver().fill({range, 9, stream})) << "but it is not a stream any more";
  ASSERT_TRUE(fake().finish_all());
  const vmm::stream_handle next = *driver().create_stream();
  EXPECT_EQ(fake().resource_counts().streams, lists) << "the old list went, a new one came";
  ASSERT_TRUE(driver().destroy_stream(next));
  ASSERT_TRUE(fake().finish_all());
}

TEST_F(LevelZero, ACopyOntoItselfIsRefused) {
  const vmm::address_range range = usable(1);
  const auto plain = vmm::stream_handle::default_stream;
  EXPECT_EQ(driver().copy({range.base + 64, range.base, 65, plain}).error().code,
            errc::invalid_argument);
  EXPECT_TRUE(driver().copy({range.base + 64, range.base, 64, plain}));
  EXPECT_TRUE(driver().synchronize_stream(plain));
}

TEST_F(LevelZero, TheDefaultStreamStays) {
  EXPECT_EQ(driver().destroy_stream(vmm::stream_handle::default_stream).error().code,
            errc::invalid_argument);
  EXPECT_TRUE(driver().synchronize_stream(vmm::stream_handle::default_stream));
}

TEST_F(LevelZero, HandlesThatAreNotLiveAreRefused) {
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
  const vmm::address_range range = mapped(3);
  ASSERT_TRUE(allow({range.base, unit}, access::read_write));
  static_cast<void>(driver().create_stream());
  static_cast<void>(driver().create_event());
}  // TearDown looks

// The caller's work is finished; a queued wait is the object's own.
TEST_F(LevelZero, AnObjectThatGoesWaitsForItsOwnMarkers) {
  open();
  fake().set_manual(true);
  const vmm::address_range range = usable(1);
  const vmm::stream_handle working = *driver().create_stream();
  const vmm::stream_handle waiting = *driver().create_stream();
  const vmm::stream_handle leaving = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  ASSERT_TRUE(driver().fill({range, 1, working}));
  ASSERT_TRUE(driver().record_event(event, working));
  for (const auto stream : {waiting, leaving, vmm::stream_handle::default_stream})
    ASSERT_TRUE(driver().wait_event(stream, event));
  ASSERT_TRUE(driver().destroy_stream(leaving));
  ASSERT_TRUE(driver().synchronize_event(event));
  driver_.reset();
  EXPECT_STREQ(simulated().misuse(), "");
}

TEST_F(LevelZero, AFinishedObjectAsksForNothingWhenItGoes) {
  open();
  driver_.reset();
  EXPECT_EQ(simulated().calls("zeEventPoolCreate"), 0u);
  EXPECT_EQ(simulated().calls("zeEventHostSynchronize"), 0u);
}

TEST_F(LevelZero, WhatBelongsToAnotherObjectIsRefused) {
  auto other = *opened();
  const vmm::address_range range = usable(1);
  const vmm::physical_handle memory = create();
  const vmm::stream_handle stream = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  const auto its_range = *other.reserve({.size_bytes = unit});
  static_cast<void>(other.create({.size_bytes = unit, .where = other.home()}));
  static_cast<void>(other.create_stream());
  static_cast<void>(other.create_event());
  const auto wrong = errc::invalid_argument;
  EXPECT_EQ(other.map({its_range.base, unit, memory, 0}).error().code, wrong);
  EXPECT_EQ(other.release(memory).error().code, wrong);
  EXPECT_EQ(other.get_properties(memory).error().code, wrong);
  EXPECT_EQ(other.unmap(range).error().code, wrong);
  EXPECT_EQ(other.free_reservation(range).error().code, wrong);
  EXPECT_EQ(other.destroy_stream(stream).error().code, wrong);
  EXPECT_EQ(other.query_event(event).error().code, wrong);
  EXPECT_EQ(other.fill({range, 1, vmm::stream_handle::default_stream}).error().code, wrong);
  EXPECT_TRUE(driver().release(memory)) << "it is whole where it belongs";
}

// Each object has a context of its own; the driver and the loader stay for the other one.
TEST_F(LevelZero, TwoDevicesGoIndependently) {
  auto second = *opened(1);
  EXPECT_NE(driver().native_context(), second.native_context());
  EXPECT_NE(driver().native_device(), second.native_device());
  const vmm::physical_request elsewhere{.size_bytes = unit, .where = vmm::device(0)};
  EXPECT_EQ(second.create(elsewhere).error().code, errc::not_supported);
  const vmm::address_range range = usable(1);
  const auto its_range = *second.reserve({.size_bytes = unit});
  EXPECT_FALSE(its_range.overlaps(range)) << "all devices share one address space";
  std::array<std::byte, 4> bytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  ASSERT_TRUE(driver().write(range.base, bytes));
  {
    const level_zero_driver gone = std::move(second);
  }
  EXPECT_EQ(fake().resource_counts().reservations, 1u);
  std::array<std::byte, 4> read{};
  ASSERT_TRUE(driver().read(read, range.base));
  EXPECT_EQ(read, bytes);
}

TEST_F(LevelZero, AnObjectMovesOverAnotherOne) {
  auto second = *opened(1);
  ASSERT_TRUE(second.reserve({.size_bytes = unit}));
  static_cast<void>(mapped(1));
  driver() = std::move(second);
  EXPECT_TRUE(driver().home() == vmm::device(1));
  EXPECT_EQ(fake().resource_counts().mappings, 0u) << "what the target held is given back";
  EXPECT_EQ(fake().resource_counts().reservations, 1u);
}

TEST_F(LevelZero, AnObjectThatWasMovedFromEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "fast");
  level_zero_driver target = std::move(driver());
  EXPECT_DEATH(static_cast<void>(driver().home()), "moved from is used");
  EXPECT_DEATH(static_cast<void>(driver().reserve({.size_bytes = unit})), "moved from is used");
  EXPECT_DEATH(static_cast<void>(driver().create_stream()), "moved from is used");
  driver() = std::move(target);
}

// ---- threads ------------------------------------------------------------------------------------

template <class Work>
void in_threads(int count, Work&& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& each : threads) each.join();
}

TEST_F(LevelZero, ObjectsComeAndGoInSeveralThreads) {
  std::atomic<int> failed_count = 0;
  in_threads(4, [&](int which) {
    for (int round = 0; round < 10; ++round) {
      auto made = opened(which % 2);
      const bool works = made && made->reserve({.size_bytes = unit}) &&
                         made->create({.size_bytes = unit, .where = made->home()});
      failed_count += works ? 0 : 1;
    }
  });
  EXPECT_EQ(failed_count, 0);
}

// Streams and events end while other threads wait for them: the waiting threads hold the points.
TEST_F(LevelZero, StreamsAndEventsEndUnderThoseThatWait) {
  const vmm::address_range range = usable(1);
  for (int round = 0; round < 50; ++round) {
    const vmm::stream_handle stream = *driver().create_stream();
    const vmm::event_handle event = *driver().create_event();
    ASSERT_TRUE(driver().fill({range, 1, stream}));
    ASSERT_TRUE(driver().record_event(event, stream));
    std::atomic<int> strange_count = 0;
    const auto as_expected = [&](const vmm::status& answer) {
      const bool fine = answer || answer.error().code == errc::invalid_argument;
      strange_count += fine ? 0 : 1;
    };
    in_threads(6, [&](int which) {
      if (which < 2) as_expected(driver().synchronize_event(event));
      if (which == 2 || which == 3) as_expected(driver().synchronize_stream(stream));
      if (which == 4) as_expected(driver().destroy_event(event));
      if (which == 5) as_expected(driver().destroy_stream(stream));
    });
    EXPECT_EQ(strange_count, 0);
    EXPECT_EQ(driver().destroy_stream(stream).error().code, errc::invalid_argument);
  }
}

// Each thread has a part of one reservation, and streams and bytes of its own.
TEST_F(LevelZero, ThreadsWorkBesideEachOther) {
  const auto range = *driver().reserve({.size_bytes = 4 * unit});
  std::atomic<int> failed_count = 0;
  in_threads(4, [&](int which) {
    const vmm::address_range mine{range.base + static_cast<std::uint64_t>(which) * unit, unit};
    for (int round = 0; round < 20; ++round) {
      const auto memory = driver().create({.size_bytes = unit, .where = driver().home()});
      const auto stream = driver().create_stream();
      const auto value = static_cast<std::uint8_t>(which * 20 + round);
      std::array<std::byte, 8> read{};
      const bool works = memory && stream && driver().map({mine.base, unit, *memory, 0}) &&
                         allow(mine, access::read_write) && driver().fill({mine, value, *stream}) &&
                         driver().synchronize_stream(*stream) &&
                         driver().read(read, mine.base + 100) && driver().unmap(mine) &&
                         driver().release(*memory) && driver().destroy_stream(*stream);
      failed_count += works && read[7] == static_cast<std::byte>(value) ? 0 : 1;
    }
  });
  EXPECT_EQ(failed_count, 0);
}

// Bytes follow no stream: bytes that the host writes before queued zeros are lost, and the
// simulation reports it. A wait before the write keeps them.
TEST_F(LevelZero, BytesAreOrderedWithNoStream) {
  open();
  fake().set_manual(true);
  const vmm::address_range range = usable(1);
  constexpr auto stream = vmm::stream_handle::default_stream;
  const std::array written{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> seen{};
  ASSERT_TRUE(driver().fill({range, 0, stream}));
  ASSERT_TRUE(driver().write(range.base, written));
  EXPECT_EQ(fake().misuse_count(vmm::fake::misuse_kind::in_flight), 1u);
  ASSERT_TRUE(driver().synchronize_stream(stream));
  ASSERT_TRUE(driver().read(seen, range.base));
  EXPECT_EQ(seen, (std::array<std::byte, 3>{}));
  fake().clear_misuses();
  ASSERT_TRUE(driver().fill({range, 0, stream}));
  ASSERT_TRUE(driver().synchronize_stream(stream));
  ASSERT_TRUE(driver().write(range.base, written));
  ASSERT_TRUE(driver().read(seen, range.base));
  EXPECT_EQ(seen, written);
  EXPECT_EQ(fake().misuse_count(), 0u) << fake().report();
}

// ---- the layer, the end, the engine -------------------------------------------------------------

TEST_F(LevelZero, AForkedChildIsRefused) {
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

// The witness detects a refusal that no driver made: here is one.
TEST_F(LevelZero, TheWitnessSeesTheLayersComplaints) {
  const auto map = simulated().find<decltype(zeVirtualMemMap)>("zeVirtualMemMap");
  const auto context = reinterpret_cast<ze_context_handle_t>(driver().native_context());
  EXPECT_NE(map(context, nullptr, unit, nullptr, 0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE),
            ZE_RESULT_SUCCESS);
  EXPECT_TRUE(contains(simulated().complaints(), "zeVirtualMemMap"));
  simulated().clear_complaints();
}

// A null start is accepted only if the driver itself refused another one just before.
TEST_F(LevelZero, TheWitnessTakesNoNullStartForGranted) {
  const auto reserve = simulated().find<decltype(zeVirtualMemReserve)>("zeVirtualMemReserve");
  const auto context = reinterpret_cast<ze_context_handle_t>(driver().native_context());
  void* base = nullptr;
  const ze_result_t code = reserve(context, nullptr, unit, &base);
  if (code == ZE_RESULT_SUCCESS) {
    const auto free = simulated().find<decltype(zeVirtualMemFree)>("zeVirtualMemFree");
    EXPECT_EQ(free(context, base, unit), ZE_RESULT_SUCCESS);
    GTEST_SKIP() << "this loader's layer takes a null start";
  }
  EXPECT_TRUE(contains(simulated().complaints(), "zeVirtualMemReserve"));
  simulated().clear_complaints();
}

// The engine above: blocks come, move and go through this backend's capabilities.
TEST_F(LevelZero, AManagerWorksOnIt) {
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
  EXPECT_EQ(fake().resource_counts().mappings, 0u);
  EXPECT_EQ(fake().misuse_count(), 0u) << fake().report();
}

// A vector that is full grows from 16 MiB to 32 MiB, more than once over the same memory: its bytes
// are where they were, and the zeros that a resize queued are waited for before they are written.
TEST_F(LevelZero, AVectorKeepsItsBytesWhenItGrows) {
  constexpr std::uint64_t count = (16ull << 20) / sizeof(std::uint64_t);
  constexpr std::uint64_t part_count = 1ull << 16;
  {
    vmm::manager memory(driver());
    for (std::uint64_t round = 1; round <= 3; ++round) {
      vmm::vector<std::uint64_t> numbers(memory, 2 * count);
      ASSERT_TRUE(numbers.resize(count));
      ASSERT_TRUE(driver().synchronize_stream(numbers.stream()));
      std::vector<std::uint64_t> part(part_count);
      for (std::uint64_t at = 0; at < count; at += part_count) {
        for (std::uint64_t i = 0; i < part_count; ++i) part[i] = (at + i) * round;
        const vmm::address place = numbers.data_address() + at * sizeof(std::uint64_t);
        ASSERT_TRUE(driver().write(place, std::as_bytes(std::span(part))));
      }
      ASSERT_TRUE(numbers.reserve(2 * count));
      std::uint64_t wrong_count = 0;
      for (std::uint64_t at = 0; at < count; at += part_count) {
        ASSERT_TRUE(numbers.read(at, part));
        for (std::uint64_t i = 0; i < part_count; ++i) wrong_count += part[i] != (at + i) * round;
      }
      EXPECT_EQ(wrong_count, 0u) << "round " << round;
    }
  }
  EXPECT_EQ(fake().misuse_count(), 0u) << fake().report();
}

}  // namespace
