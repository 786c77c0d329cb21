// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the CUDA backend's own code is right: entry points, contexts, devices, errors, options.
// Method: it runs on a stub libcuda over the fake driver, which refuses a call without a current
// context as the real one does; the fake's resource counts must be zero at the end of each test.
#include "../../backends/cuda/abi.h"
#include "../process/every_call.hpp"
#include "workbench.hpp"

import vmm.cuda;
import vmm.fake;
import vmm.manager;
import vmm.multi_device;
import vmm.stream;

namespace {

using cuda_test::standin, vmm::cuda_driver, vmm::errc;

constexpr std::uint64_t granule = 2ull << 20;

vmm::cuda_options options(int device = 0) {
  return {.device = device, .driver_library = VMM_STANDIN_LIBRARY};
}

vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(standin().fake()); }

// A stub driver without a device has no fake behind it.
struct Cuda : testing::Test {
  void SetUp() override { standin().reset(nullptr); }
  void TearDown() override {
    standin().clear_failures();
    standin().poison(0);
    if (standin().fake() == nullptr) return;
    EXPECT_TRUE(fake().check_empty()) << fake().report();
    EXPECT_EQ(fake().misuse_count(), 0u);
    for (int device = 0; device < 4; ++device)
      EXPECT_EQ(standin().context_references(device), 0) << device;
  }
  static cuda_driver open(const vmm::cuda_options& how = options()) {
    auto opened = cuda_driver::open(how);
    EXPECT_TRUE(opened) << vmm::describe(opened.error());
    return std::move(*opened);
  }
  static void refused(const vmm::cuda_options& how, errc code, std::string_view word) {
    const auto opened = cuda_driver::open(how);
    EXPECT_EQ(opened.error().code, code) << vmm::describe(opened.error());
    EXPECT_TRUE(contains(vmm::describe(opened.error()), word));
  }
};

// One granule of memory, mapped and open for the driver's device; given back at the end.
struct mapped_granule {
  explicit mapped_granule(cuda_driver& on) : driver(on) {
    range = *driver.reserve({.size_bytes = granule});
    memory = *driver.create({.size_bytes = granule, .where = driver.home()});
    const vmm::access_grant all[] = {{driver.home(), vmm::access::read_write}};
    EXPECT_TRUE(driver.map({range.base, granule, memory, 0}));
    EXPECT_TRUE(driver.set_access(range, all));
  }
  ~mapped_granule() {
    EXPECT_TRUE(driver.unmap(range));
    EXPECT_TRUE(driver.release(memory));
    EXPECT_TRUE(driver.free_reservation(range));
  }
  cuda_driver& driver;
  vmm::address_range range;
  vmm::physical_handle memory;
};

// ---- opening ------------------------------------------------------------------------------------

TEST_F(Cuda, SaysWhatTheDeviceIsAndCan) {
  const cuda_driver driver = open();
  EXPECT_EQ(driver.name(), "cuda");
  EXPECT_EQ(driver.home(), vmm::device(0));
  EXPECT_STREQ(driver.description().device_name, "vmm stub driver");
  EXPECT_GE(driver.description().driver_version, 12010);
  EXPECT_EQ(driver.description().compute_major, 9);
  EXPECT_TRUE(driver.description().dma_buf);
  const vmm::features& can = driver.feature_set();
  const vmm::features& behind = fake().feature_set();
  const auto features = [](const vmm::features& of) {
    return std::tie(of.spanning_unmap, of.partial_unmap, of.short_map, of.offset_map,
                    of.partial_access, of.release_while_mapped, of.access_per_location, of.alias,
                    of.compression, of.rdma, of.export_posix_fd, of.export_fabric,
                    of.host_node_location);
  };
  EXPECT_EQ(features(can), features(behind));
  EXPECT_FALSE(can.multicast) << "multicast was not requested";
}

TEST_F(Cuda, RefusesAMachineThatCannot) {
  vmm_standin_setup none{};
  none.device_count_less_two = -2;
  standin().reset(&none);
  refused(options(), errc::unavailable, "CUDA_ERROR_NO_DEVICE");
  vmm_standin_setup old{};
  old.no_vmm = true;
  standin().reset(&old);
  refused(options(), errc::not_supported, "virtual memory management");
  standin().reset(nullptr);
  refused(options(2), errc::unavailable, "device 2 was requested");
  refused(options(2), errc::unavailable, "sees 2 devices");
  refused(options(-1), errc::bad_option, "cuda_options::device");
}

TEST_F(Cuda, RefusesADriverThatDoesNotStart) {
  constexpr int system_not_ready = 802;
  constexpr int out_of_memory = 2;
  standin().fail("cuInit", system_not_ready, 1, false);
  refused(options(), errc::unavailable, "CUDA_ERROR_SYSTEM_NOT_READY");
  standin().fail("cuDeviceGetCount", system_not_ready, 1, false);
  refused(options(), errc::unavailable, "CUDA_ERROR_SYSTEM_NOT_READY");
  standin().fail("cuDeviceGet", system_not_ready, 1, false);
  refused(options(), errc::unavailable, "CUDA_ERROR_SYSTEM_NOT_READY");
  standin().fail("cuDevicePrimaryCtxRetain", out_of_memory, 1, false);
  refused(options(), errc::out_of_memory, "primary context");
  standin().fail("cuStreamCreate", out_of_memory, 1, false);
  refused(options(), errc::out_of_memory, "create_stream");
  (void)open();
}

TEST_F(Cuda, RefusesADriverThatLacksACall) {
  standin().hide("cuMemRetainAllocationHandle");
  refused(options(), errc::unavailable, "' has no cuMemRetainAllocationHandle: ");
}

TEST_F(Cuda, FindsEntryPointsWithTheFirstFinderToo) {
  cuda_test::controls old(VMM_STANDIN_OLD_LIBRARY);
  ASSERT_EQ(old.find<void()>("cuGetProcAddress_v2"), nullptr) << "the library must look old";
  old.reset(nullptr);
  cuda_driver driver = open({.driver_library = VMM_STANDIN_OLD_LIBRARY});
  EXPECT_TRUE(driver.query_memory(driver.home()));
}

TEST_F(Cuda, GivesTheContextBack) {
  {
    cuda_driver first = open();
    EXPECT_EQ(standin().context_references(0), 1);
    cuda_driver second = open();
    EXPECT_EQ(standin().context_references(0), 2);
    first = std::move(second);
    EXPECT_EQ(standin().context_references(0), 1);
    const cuda_driver third = std::move(first);
    EXPECT_EQ(standin().context_references(0), 1);
    EXPECT_NE(third.native_context(), 0u);
  }
  EXPECT_EQ(standin().context_references(0), 0);
}

// ---- contexts -----------------------------------------------------------------------------------

// What the calling thread has current, and a way to set it.
CUcontext current_context() {
  CUcontext now = nullptr;
  standin().find<CUresult(CUcontext*)>("cuCtxGetCurrent")(&now);
  return now;
}
void set_current_context(CUcontext context) {
  standin().find<CUresult(CUcontext)>("cuCtxSetCurrent")(context);
}

TEST_F(Cuda, WorksInAThreadThatNeverTouchedCuda) {
  cuda_driver driver = open();
  std::thread([&] {
    EXPECT_EQ(current_context(), nullptr);
    const mapped_granule one(driver);
    const std::array<std::byte, 3> sent{std::byte{1}, std::byte{2}, std::byte{3}};
    EXPECT_TRUE(driver.write(one.range.base + 5, sent));
    std::array<std::byte, 3> received{};
    EXPECT_TRUE(driver.read(received, one.range.base + 5));
    EXPECT_EQ(received, sent);
    EXPECT_EQ(current_context(), nullptr) << "the thread has nothing current afterwards either";
  }).join();
}

TEST_F(Cuda, RestoresTheCallersContext) {
  cuda_driver here = open(options(0));
  cuda_driver there = open(options(1));
  auto* const theirs = reinterpret_cast<CUcontext>(there.native_context());
  auto* const ours = reinterpret_cast<CUcontext>(here.native_context());
  ASSERT_NE(theirs, ours);
  set_current_context(theirs);
  const auto range = *here.reserve({.size_bytes = granule});
  EXPECT_EQ(current_context(), theirs);
  EXPECT_FALSE(here.free_reservation({range.base, granule + 1}));
  EXPECT_EQ(current_context(), theirs) << "after a refused call too";
  fake().clear_misuses();
  EXPECT_TRUE(here.free_reservation(range));

  set_current_context(ours);
  const auto pushes = standin().calls("cuCtxPushCurrent");
  EXPECT_TRUE(here.query_memory(here.home()));
  EXPECT_EQ(standin().calls("cuCtxPushCurrent"), pushes) << "nothing to switch: one look only";
  EXPECT_EQ(current_context(), ours);
  set_current_context(nullptr);
}

TEST_F(Cuda, AContextThatCannotBeMadeCurrentIsAnError) {
  cuda_driver driver = open();
  constexpr int context_is_destroyed = 709;
  standin().fail("cuCtxPushCurrent", context_is_destroyed, 1, false);
  const auto refused = driver.reserve({.size_bytes = granule});
  EXPECT_EQ(refused.error().code, errc::device_lost);
  EXPECT_EQ(refused.error().where, vmm::call::reserve);
  standin().fail("cuCtxGetCurrent", context_is_destroyed, 1, false);
  EXPECT_FALSE(driver.reserve({.size_bytes = granule}));
  EXPECT_EQ(fake().calls(vmm::call::reserve), 0u) << "no call was made in a wrong context";
}

TEST_F(Cuda, SeveralDevices) {
  cuda_driver first = open(options(0));
  cuda_driver second = open(options(1));
  EXPECT_EQ(second.home(), vmm::device(1));
  const auto before = *second.query_memory(vmm::device(1));
  const mapped_granule one(second);
  const auto after = *second.query_memory(vmm::device(1));
  EXPECT_EQ(before.free_bytes - after.free_bytes, granule);
  const auto seen_by_the_other = *first.query_memory(vmm::device(1));
  EXPECT_EQ(seen_by_the_other.free_bytes, after.free_bytes);
  EXPECT_EQ(standin().context_references(1), 1) << "a look at another device keeps nothing";
  EXPECT_EQ(first.query_memory(vmm::device(7)).error().code, errc::invalid_argument);
  EXPECT_EQ(first.query_memory(vmm::host_node(0)).error().code, errc::not_supported);

  const vmm::access_grant peers[] = {{vmm::device(1), vmm::access::read_write},
                                     {vmm::device(0), vmm::access::read}};
  ASSERT_TRUE(second.set_access(one.range, peers));
  const auto granted = *first.get_access(one.range.base, vmm::device(0));
  EXPECT_EQ(granted, vmm::access::read);
}

// Whatever the options allow and the device has.
TEST_F(Cuda, AForkedChildIsRefusedEachCall) {
  VMM_SKIP_UNDER_TSAN();
  for (const bool allowed : {false, true}) {
    vmm::cuda_options how = options();
    how.allow_multicast = allowed;
    cuda_driver driver = open(how);
    process_test::expect_good_child(allowed ? "multicast is allowed" : "multicast is off", [&] {
      process_test::use_every_call(driver, {});
      const auto refused = driver.reserve({.size_bytes = granule});
      process_test::expect(vmm::describe(refused.error()).find("forked") != std::string::npos,
                           "the error says nothing of a fork");
    });
    EXPECT_TRUE(driver.query_memory(driver.home())) << "the parent goes on";
  }
}

// ---- errors -------------------------------------------------------------------------------------

TEST_F(Cuda, EachAnswerOfTheDriverHasItsWord) {
  struct pair {
    int native;
    errc code;
    const char* name;
  };
  constexpr pair all[] = {
      {1, errc::invalid_argument, "CUDA_ERROR_INVALID_VALUE"},
      {2, errc::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, errc::unavailable, "CUDA_ERROR_NOT_INITIALIZED"},
      {4, errc::unavailable, "CUDA_ERROR_DEINITIALIZED"},
      {46, errc::device_lost, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
      {101, errc::invalid_argument, "CUDA_ERROR_INVALID_DEVICE"},
      {201, errc::internal, "CUDA_ERROR_INVALID_CONTEXT"},
      {208, errc::in_use, "CUDA_ERROR_ALREADY_MAPPED"},
      {214, errc::device_lost, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {304, errc::internal, "CUDA_ERROR_OPERATING_SYSTEM"},
      {400, errc::invalid_argument, "CUDA_ERROR_INVALID_HANDLE"},
      {401, errc::in_use, "CUDA_ERROR_ILLEGAL_STATE"},
      {700, errc::foreign_error, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {702, errc::foreign_error, "CUDA_ERROR_LAUNCH_TIMEOUT"},
      {709, errc::device_lost, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
      {719, errc::foreign_error, "CUDA_ERROR_LAUNCH_FAILED"},
      {800, errc::not_permitted, "CUDA_ERROR_NOT_PERMITTED"},
      {801, errc::not_supported, "CUDA_ERROR_NOT_SUPPORTED"},
      {900, errc::not_permitted, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {908, errc::not_permitted, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
      {999, errc::internal, "CUDA_ERROR_UNKNOWN"},
      {1000, errc::internal, "a code without a name"},
  };
  cuda_driver driver = open();
  for (const pair& each : all) {
    standin().fail("cuMemCreate", each.native, 1, false);
    const auto made = driver.create({.size_bytes = granule, .where = driver.home()});
    ASSERT_FALSE(made) << each.name;
    EXPECT_EQ(made.error().code, each.code) << each.name;
    EXPECT_EQ(made.error().where, vmm::call::create) << each.name;
    EXPECT_EQ(made.error().native, each.native) << each.name;
    EXPECT_STREQ(made.error().native_name, each.name);
    EXPECT_STRNE(made.error().detail, "") << each.name;
  }
  standin().fail("cuMemAddressReserve", 2, 1, false);
  EXPECT_EQ(driver.reserve({.size_bytes = granule}).error().code, errc::out_of_addresses);
}

TEST_F(Cuda, AForeignErrorIsToldApartAndNotKept) {
  cuda_driver driver = open();
  constexpr int illegal_address = 700;
  standin().poison(illegal_address);
  const auto refused = driver.reserve({.size_bytes = granule});
  EXPECT_EQ(refused.error().code, errc::foreign_error);
  EXPECT_STREQ(refused.error().native_name, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(driver.query_memory(driver.home()).error().code, errc::foreign_error);
  standin().poison(0);
  const auto range = driver.reserve({.size_bytes = granule});
  ASSERT_TRUE(range) << "the backend remembers nothing";
  EXPECT_TRUE(driver.free_reservation(*range));
}

// ---- properties ---------------------------------------------------------------------------------

TEST_F(Cuda, ReadsBackWhatWasGranted) {
  cuda_driver driver = open();
  const auto made = *driver.create({.size_bytes = granule,
                                    .where = driver.home(),
                                    .shareable = vmm::share_kind::posix_fd,
                                    .compressible = true,
                                    .rdma_capable = true});
  const auto granted = *driver.get_properties(made);
  EXPECT_EQ(granted.where, driver.home());
  EXPECT_EQ(granted.shareable, vmm::share_kind::posix_fd);
  EXPECT_TRUE(granted.compressible);
  EXPECT_TRUE(granted.rdma_capable);
  EXPECT_TRUE(driver.release(made));

  const auto on_host = *driver.create({.size_bytes = granule, .where = vmm::host_node(0)});
  EXPECT_EQ(driver.get_properties(on_host)->where, vmm::host_node(0));
  EXPECT_FALSE(driver.get_properties(on_host)->compressible);
  EXPECT_TRUE(driver.release(on_host));
}

TEST_F(Cuda, AWishMayBeDeclinedADemandIsRefused) {
  vmm_standin_setup poor{};
  poor.no_rdma = true;
  poor.no_compression = true;
  standin().reset(&poor);
  cuda_driver driver = open();
  const auto made =
      *driver.create({.size_bytes = granule, .where = driver.home(), .compressible = true});
  EXPECT_FALSE(driver.get_properties(made)->compressible);
  EXPECT_TRUE(driver.release(made));
  EXPECT_EQ(driver.create({.size_bytes = granule, .where = driver.home(), .rdma_capable = true})
                .error()
                .code,
            errc::not_supported);
}

TEST_F(Cuda, FabricIsProbedByDoing) {
  cuda_driver driver = open();
  EXPECT_TRUE(driver.feature_set().export_fabric) << "the device says that it can";
  const vmm::status probed = driver.probe_fabric();
  ASSERT_FALSE(probed) << "and this process may not";
  EXPECT_EQ(probed.error().code, errc::not_permitted);
}

TEST_F(Cuda, ADescriptorCarriesMemoryAndStaysTheCallers) {
  cuda_driver driver = open();
  const auto made = *driver.create(
      {.size_bytes = granule, .where = driver.home(), .shareable = vmm::share_kind::posix_fd});
  const auto sent = driver.export_handle(made, vmm::share_kind::posix_fd);
  ASSERT_TRUE(sent) << vmm::describe(sent.error());
  EXPECT_EQ(sent->kind, vmm::share_kind::posix_fd);
  const auto received = driver.import_handle(*sent);
  ASSERT_TRUE(received) << vmm::describe(received.error());
  EXPECT_EQ(close(static_cast<int>(sent->descriptor)), 0) << "the import left it open";
  EXPECT_FALSE(driver.import_handle(*sent)) << "closed";
  EXPECT_TRUE(driver.release(made));
  EXPECT_TRUE(driver.get_properties(*received)) << "the memory lives through the import";
  EXPECT_TRUE(driver.release(*received));
  EXPECT_EQ(driver.export_handle(*received, vmm::share_kind::win32).error().code,
            errc::not_supported);
  fake().clear_misuses();
}

TEST_F(Cuda, ManyGrantsInOneCall) {
  cuda_driver driver = open();
  const mapped_granule one(driver);
  std::vector<vmm::access_grant> grants(40, {driver.home(), vmm::access::read_write});
  grants.push_back({driver.home(), vmm::access::read});
  ASSERT_TRUE(driver.set_access(one.range, grants));
  EXPECT_EQ(*driver.get_access(one.range.base, driver.home()), vmm::access::read);
}

TEST_F(Cuda, GivesOutTheDriversOtherCalls) {
  const cuda_driver driver = open();
  EXPECT_NE(driver.entry_point("cuMemAlloc", 3020), nullptr);
  EXPECT_EQ(driver.entry_point("cuMemAllocAsync", 11000), nullptr) << "newer than requested";
  EXPECT_EQ(driver.entry_point("cuThereIsNoSuchCall", 13000), nullptr);
  EXPECT_EQ(driver.entry_point("cuMulticastCreate", 12010), nullptr) << "multicast is off";
}

// ---- captures -----------------------------------------------------------------------------------

TEST_F(Cuda, TellsWhatIsBeingCaptured) {
  cuda_driver driver = open();
  ASSERT_TRUE(driver.feature_set().capture);
  const vmm::stream_handle stream = *driver.create_stream();
  EXPECT_EQ(driver.query_capture(stream)->state, vmm::capture_state::none);
  EXPECT_TRUE(driver.is_uncaptured(stream));
  EXPECT_FALSE(driver.is_uncaptured(vmm::stream_handle{})) << "queried in the device's context "
                                                              "only";
  ASSERT_TRUE(fake().begin_capture(stream, vmm::capture_mode::any_thread));
  EXPECT_FALSE(driver.is_uncaptured(stream));
  const auto seen = *driver.query_capture(stream);
  EXPECT_EQ(seen.state, vmm::capture_state::active);
  EXPECT_EQ(seen.id, fake().query_capture(stream)->id);
  EXPECT_EQ(driver.query_capture(vmm::stream_handle{})->state, vmm::capture_state::none);
  for (const std::uint64_t legacy : {0u, 1u})
    EXPECT_FALSE(vmm::can_capture(driver.feature_set(), vmm::stream_handle{legacy}));
  EXPECT_TRUE(vmm::can_capture(driver.feature_set(), vmm::stream_handle{2}))
      << "that of each thread";
  EXPECT_TRUE(vmm::can_capture(driver.feature_set(), stream));
  EXPECT_EQ(fake().begin_capture(vmm::stream_handle{}, vmm::capture_mode::relaxed).error().native,
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(driver.exchange_capture_mode(vmm::capture_mode::relaxed),
            vmm::capture_mode::any_thread);
  const auto event = *driver.create_event();
  EXPECT_TRUE(driver.query_event(event)) << "a relaxed thread may";
  EXPECT_EQ(driver.exchange_capture_mode(vmm::capture_mode::any_thread),
            vmm::capture_mode::relaxed);
  EXPECT_EQ(driver.query_event(event).error().code, errc::not_permitted);
  EXPECT_EQ(driver.query_capture(stream)->state, vmm::capture_state::invalidated);
  EXPECT_FALSE(fake().end_capture(stream));
  ASSERT_TRUE(driver.destroy_event(event));
  ASSERT_TRUE(driver.destroy_stream(stream));
}

TEST_F(Cuda, OneEventStandsForAllWork) {
  cuda_driver driver = open();
  ASSERT_TRUE(driver.feature_set().record_all);
  const vmm::stream_handle stream = *driver.create_stream();
  const auto event = *driver.create_event();
  fake().set_manual(true);
  ASSERT_TRUE(fake().launch(stream, {.duration_us = 1}));
  ASSERT_TRUE(driver.record_all(event));
  EXPECT_FALSE(driver.query_event(event).value_or(true));
  ASSERT_TRUE(fake().finish_all());
  EXPECT_TRUE(driver.query_event(event).value_or(false));
  ASSERT_TRUE(fake().begin_capture(stream, vmm::capture_mode::relaxed));
  const vmm::status refused = driver.record_all(event);
  EXPECT_EQ(refused.error().code, errc::not_permitted);
  EXPECT_EQ(refused.error().native, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_FALSE(fake().end_capture(stream)) << "the capture was spoiled";
  fake().set_manual(false);
  ASSERT_TRUE(driver.destroy_event(event));
  ASSERT_TRUE(driver.destroy_stream(stream));
}

TEST_F(Cuda, StreamsOfAProgramHaveIdentities) {
  cuda_driver driver = open();
  ASSERT_TRUE(driver.feature_set().stream_identity);
  const vmm::stream_handle stream = *driver.create_stream();
  EXPECT_NE(driver.stream_identity(stream), 0u);
  ASSERT_TRUE(fake().begin_capture(stream, vmm::capture_mode::relaxed));
  EXPECT_EQ(driver.stream_identity(stream), 0u);
  const auto graph = fake().end_capture(stream);
  ASSERT_TRUE(graph) << "the capture was spoiled";
  ASSERT_TRUE(fake().destroy_graph(*graph));
  ASSERT_TRUE(driver.destroy_stream(stream));
}

// Driver calls of a warm allocate and a warm free, by options: the least that decision 0034 allows.
TEST_F(Cuda, AWarmCallOfAPoolQueriesWhatItsOptionsLeaveOpen) {
  struct row {
    bool created, announced, forgotten;
    std::uint64_t capturing_allocate, identity_allocate, capturing_free;
  };
  for (const row& each : {row{false, false, false, 0, 0, 0}, row{true, false, false, 1, 1, 1},
                          row{true, false, true, 1, 0, 1}, row{true, true, false, 1, 1, 0},
                          row{true, true, true, 0, 0, 0}}) {
    SCOPED_TRACE(testing::Message() << each.created << each.announced << each.forgotten);
    standin().reset(nullptr);
    cuda_driver driver = open();
    const auto stream = each.created ? *driver.create_stream() : vmm::stream_handle{};
    {
      vmm::pool_options how;
      how.captures_announced = each.announced;
      how.streams_forgotten = each.forgotten;
      vmm::stream_pool pool(driver, how);
      ASSERT_TRUE(pool.free(*pool.allocate(granule, stream), stream));
      const auto capturing = [] { return standin().calls("cuStreamIsCapturing"); };
      const auto identities = [] { return standin().calls("cuStreamGetId"); };
      const std::uint64_t captures_before = capturing();
      const std::uint64_t identities_before = identities();
      const vmm::address at = *pool.allocate(granule, stream);
      EXPECT_EQ(capturing() - captures_before, each.capturing_allocate);
      EXPECT_EQ(identities() - identities_before, each.identity_allocate);
      const std::uint64_t captures_between = capturing();
      ASSERT_TRUE(pool.free(at, stream));
      EXPECT_EQ(capturing() - captures_between, each.capturing_free);
      EXPECT_EQ(identities() - identities_before, each.identity_allocate);
    }
    if (each.created) ASSERT_TRUE(driver.destroy_stream(stream));
  }
}

TEST_F(Cuda, ADriverWithoutIdentitiesSaysSo) {
  standin().hide("cuStreamGetId");
  cuda_driver driver = open();
  EXPECT_FALSE(driver.feature_set().stream_identity);
  const vmm::stream_handle stream = *driver.create_stream();
  EXPECT_EQ(driver.stream_identity(stream), 0u);
  ASSERT_TRUE(driver.destroy_stream(stream));
}

TEST_F(Cuda, AllWorkIsWaitedForOutsideOfCaptures) {
  cuda_driver driver = open();
  const vmm::stream_handle stream = *driver.create_stream();
  const vmm::stream_handle gone = *driver.create_stream();
  ASSERT_TRUE(fake().launch(gone, {.duration_us = 1e6}));
  ASSERT_TRUE(driver.destroy_stream(gone));
  ASSERT_TRUE(driver.synchronize_all());
  EXPECT_EQ(fake().resource_counts().pending_work, 0u);
  ASSERT_TRUE(fake().begin_capture(stream, vmm::capture_mode::relaxed));
  EXPECT_EQ(driver.synchronize_all().error().code, errc::not_permitted);
  EXPECT_FALSE(fake().end_capture(stream)) << "the capture was spoiled";
  ASSERT_TRUE(driver.destroy_stream(stream));
}

TEST_F(Cuda, ADriverWithoutTheEventForAllWorkSaysSo) {
  standin().hide("cuCtxRecordEvent");
  cuda_driver driver = open();
  EXPECT_FALSE(driver.feature_set().record_all);
  EXPECT_EQ(driver.record_all(vmm::event_handle::none).error().code, errc::not_supported);
}

TEST_F(Cuda, ADriverWithoutCaptureSaysSo) {
  standin().hide("cuThreadExchangeStreamCaptureMode");
  cuda_driver driver = open();
  EXPECT_FALSE(driver.feature_set().capture);
  EXPECT_EQ(driver.query_capture(vmm::stream_handle{}).error().code, errc::not_supported);
  EXPECT_EQ(driver.exchange_capture_mode(vmm::capture_mode::relaxed), vmm::capture_mode::relaxed);
}

// ---- multicast: never on a real device ----------------------------------------------------------
// Each of these opens the library of options(), whose controls SetUp() has bound: with another one
// than the stub driver the process has ended there. tests/tidiness checks that no other code allows
// it.

TEST_F(Cuda, MulticastIsOffUnlessAskedFor) {
  cuda_driver driver = open();
  EXPECT_FALSE(driver.feature_set().multicast);
  EXPECT_TRUE(driver.feature_set().multicast_capable) << "the device's own feature is reported "
                                                         "all the same";
  const vmm::multicast_request request{granule, 2, vmm::share_kind::none};
  EXPECT_EQ(driver.query_multicast_granularity(request).error().code, errc::not_permitted);
  EXPECT_EQ(driver.create_multicast(request).error().code, errc::not_permitted);
  const auto team = static_cast<vmm::multicast_handle>(1);
  EXPECT_EQ(driver.add_multicast_device(team, vmm::device(0)).error().code, errc::not_permitted);
  EXPECT_EQ(driver.bind_multicast({}).error().code, errc::not_permitted);
  EXPECT_EQ(driver.bind_multicast_address({}).error().code, errc::not_permitted);
  EXPECT_EQ(driver.unbind_multicast({}).error().code, errc::not_permitted);
  EXPECT_EQ(vmm::multicast_team::create(driver, request).error().code, errc::not_permitted);
  for (const char* symbol :
       {"cuMulticastGetGranularity", "cuMulticastCreate", "cuMulticastAddDevice",
        "cuMulticastBindMem", "cuMulticastBindAddr", "cuMulticastUnbind"}) {
    EXPECT_EQ(standin().calls(symbol), 0u) << symbol;
  }
}

TEST_F(Cuda, MulticastGoesThroughWhereItIsAllowed) {
  vmm::cuda_options how = options();
  how.allow_multicast = true;
  cuda_driver driver = open(how);
  EXPECT_TRUE(driver.feature_set().multicast);
  vmm::multicast_request request{0, 2, vmm::share_kind::none};
  const auto unit = driver.query_multicast_granularity(request);
  ASSERT_TRUE(unit) << vmm::describe(unit.error());
  request.size_bytes = unit->minimum_bytes;
  const auto team = driver.create_multicast(request);
  ASSERT_TRUE(team) << vmm::describe(team.error());
  ASSERT_TRUE(driver.add_multicast_device(*team, vmm::device(0)));
  ASSERT_TRUE(driver.add_multicast_device(*team, vmm::device(1)));
  EXPECT_EQ(driver.add_multicast_device(*team, vmm::device(9)).error().code,
            errc::invalid_argument);
  const auto memory = *driver.create({.size_bytes = request.size_bytes, .where = vmm::device(1)});
  const vmm::multicast_binding binding{*team, vmm::device(1), memory, 0, 0, request.size_bytes};
  ASSERT_TRUE(driver.bind_multicast(binding));
  ASSERT_TRUE(driver.unbind_multicast(binding));
  EXPECT_TRUE(driver.release(memory));
  EXPECT_TRUE(driver.release(static_cast<vmm::physical_handle>(*team)));
  EXPECT_GT(standin().calls("cuMulticastUnbind"), 0u);
}

// The state machine's calls, over the stub driver alone.
TEST_F(Cuda, AMulticastTeamGoesThroughWhereItIsAllowed) {
  vmm::cuda_options how = options();
  how.allow_multicast = true;
  cuda_driver driver = open(how);
  vmm::multicast_team team = *vmm::multicast_team::create(driver, {granule, 2});
  const auto memory = driver.create({.size_bytes = granule, .where = vmm::device(1)});
  vmm::aliased_memory mapped = *vmm::aliased_memory::make(driver, {.size_bytes = granule});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(team.add(vmm::device(i)));
  ASSERT_TRUE(team.bind({vmm::device(1), *memory, 0, 0, granule}));
  ASSERT_TRUE(team.bind(vmm::multicast_team::mapped_part{vmm::device(0), mapped.mappings()[0], 0}));
  EXPECT_EQ(standin().calls("cuMulticastBindAddr"), 1u);
  const vmm::access_grant grants[] = {{vmm::device(0)}, {vmm::device(1)}};
  const auto where = team.map(grants);
  ASSERT_TRUE(where) << vmm::describe(where.error());
  ASSERT_TRUE(fake().write_tag(*where, 8));
  EXPECT_EQ(*fake().read_tag(mapped.mappings()[0].base), 8u);
  ASSERT_TRUE(team.release());
  ASSERT_TRUE(mapped.release());
  ASSERT_TRUE(driver.release(*memory));
}

// ---- devices side by side ------------------------------------------------------------

TEST_F(Cuda, TellsWhatLiesBetweenDevices) {
  cuda_driver driver = open();
  ASSERT_TRUE(driver.feature_set().peers);
  const auto link = driver.query_peer({vmm::device(0), vmm::device(1)});
  ASSERT_TRUE(link) << vmm::describe(link.error());
  EXPECT_EQ(link->link, vmm::link_kind::peer);
  EXPECT_TRUE(link->native_atomics);
  EXPECT_EQ(driver.query_peer({vmm::device(1), vmm::device(1)})->link, vmm::link_kind::itself);
  EXPECT_EQ(driver.query_peer({vmm::device(0), vmm::host_node(0)})->link, vmm::link_kind::host);
  EXPECT_EQ(driver.query_peer({vmm::device(0), vmm::device(7)}).error().native,
            CUDA_ERROR_INVALID_DEVICE);
  const unsigned long long asked = standin().calls("cuDeviceGetP2PAttribute");
  EXPECT_EQ(asked, 2u) << "rank and atomics, of the pair alone";
  standin().fail("cuDeviceCanAccessPeer", 999, 1, false);
  EXPECT_EQ(driver.query_peer({vmm::device(0), vmm::device(1)}).error().native, 999);
}

TEST_F(Cuda, GivesRightsToSeveralDevicesInOneCall) {
  cuda_driver driver = open();
  vmm::grant_list peers;
  ASSERT_TRUE(peers.set({vmm::device(1), vmm::access::read}));
  vmm::manager managed(driver, {{.peers = peers}});
  const unsigned long long before = standin().calls("cuMemSetAccess");
  const vmm::address at = *managed.allocate(4 * granule);
  EXPECT_EQ(standin().calls("cuMemSetAccess"), before + 1);
  EXPECT_EQ(*driver.get_access(at, vmm::device(0)), vmm::access::read_write);
  EXPECT_EQ(*driver.get_access(at, vmm::device(1)), vmm::access::read);
  const vmm::access_grant none{vmm::device(1), vmm::access::none};
  ASSERT_TRUE(managed.set_peers({&none, 1}));
  EXPECT_EQ(*driver.get_access(at, vmm::device(1)), vmm::access::none);
  ASSERT_TRUE(managed.free(at));
}

TEST_F(Cuda, HandsARangeOutAsADmaBuf) {
  cuda_driver driver = open();
  ASSERT_TRUE(driver.feature_set().export_dma_buf);
  vmm::manager managed(driver, *vmm::registrable_options(*vmm::driver_ref(driver)));
  const vmm::address at = *managed.allocate(2 * granule);
  const auto made = driver.export_range({at, 2 * granule});
  ASSERT_TRUE(made) << vmm::describe(made.error());
  EXPECT_GE(made->descriptor, 0);
  EXPECT_EQ(close(static_cast<int>(made->descriptor)), 0);
  EXPECT_EQ(driver.export_range({at, 100}).error().code, errc::invalid_argument);
  ASSERT_TRUE(managed.free(at));
}

TEST_F(Cuda, PeersThatTheDriverDoesNotTellAreNotSupported) {
  standin().hide("cuDeviceGetP2PAttribute");
  standin().hide("cuMemGetHandleForAddressRange");
  cuda_driver driver = open();
  EXPECT_FALSE(driver.feature_set().peers);
  EXPECT_EQ(driver.query_peer({vmm::device(0), vmm::device(1)}).error().code, errc::not_supported);
  EXPECT_EQ(driver.export_range({{granule}, granule}).error().code, errc::not_supported);
}

TEST_F(Cuda, MulticastThatTheDriverLacksIsNotSupported) {
  standin().hide("cuMulticastBindMem");
  vmm::cuda_options how = options();
  how.allow_multicast = true;
  cuda_driver driver = open(how);
  EXPECT_EQ(driver.create_multicast({granule, 2}).error().code, errc::not_supported);
  EXPECT_FALSE(driver.feature_set().multicast) << "what lacks a call may not be used";
  EXPECT_TRUE(driver.feature_set().multicast_capable);
}

}  // namespace
