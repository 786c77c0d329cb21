// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the contract holds over drivers with results that the specification allows and the
// simulated driver never returns, and for requests at its edges. Method: a detour before the
// distribution's loader serves single calls; everything else is the simulated driver's.
#include <sys/syscall.h>

#include <level_zero/ze_api.h>

#include "driver/detour.h"
#include "fixture.h"

import vmm.registry;

namespace {

using vmm::access, vmm::errc, vmm::level_zero_driver, ze_test::fake, ze_test::simulated,
    ze_test::unit;

constexpr std::uint64_t giant = 1ull << 30;

// The loader's own calls, and calls with other results.
struct detours {
  detours() {
    put = simulated().find<decltype(vmm_witness_detour)>("vmm_witness_detour");
    loader = simulated().find<decltype(vmm_witness_loader)>("vmm_witness_loader");
    if (put == nullptr || loader == nullptr) std::abort();
  }
  decltype(&vmm_witness_detour) put = nullptr;
  decltype(&vmm_witness_loader) loader = nullptr;
};
const detours& through() {
  static const detours only;
  return only;
}
template <class Function>
Function* own(const char* symbol) {
  return reinterpret_cast<Function*>(through().loader(symbol));
}

// What the detours below return and record. A detour is a plain function.
struct driver_play {
  const void* refused_start = nullptr;
  ze_result_t code = ZE_RESULT_SUCCESS;
  std::vector<const void*> starts;
  // Of the one call that a detour is slow with.
  std::atomic<void*> goes_on = nullptr;
  std::atomic<bool> is_inside = false;
  std::atomic<bool> may_leave = false;
};
driver_play play;

template <class Function>
struct slow;
template <class... Arguments>
struct slow<ze_result_t(Arguments...)> {
  static ze_result_t ZE_APICALL call(Arguments... arguments) {
    if (!play.is_inside.exchange(true))
      while (!play.may_leave) std::this_thread::yield();
    return reinterpret_cast<ze_result_t (*)(Arguments...)>(play.goes_on.load())(arguments...);
  }
};

struct LevelZeroAdversary : ze_test::OpenedDriver {
  void SetUp() override {
    OpenedDriver::SetUp();
    play.starts.clear();
    play.is_inside = play.may_leave = false;
  }
  void TearDown() override {
    for (const char* each : placed_) through().put(each, nullptr);
    OpenedDriver::TearDown();
  }
  template <class Function>
  void answer(const char* symbol, Function* with) {
    through().put(symbol, reinterpret_cast<void*>(with));
    placed_.push_back(symbol);
  }
  // The next call of a symbol waits, in the driver as it were, until it may leave. No other detour
  // stays.
  template <class Function>
  void slow_down(const char* symbol) {
    for (const char* each : placed_) through().put(each, nullptr);
    play.is_inside = play.may_leave = false;
    play.goes_on = through().loader(symbol);
    answer(symbol, &slow<Function>::call);
  }
  static void wait_until_inside() {
    while (!play.is_inside) std::this_thread::yield();
  }

 private:
  std::vector<const char*> placed_;
};

// ---- requests at their edges --------------------------------------------------------------------

// docs/contract.md: the alignment is a power of two or 0.
TEST_F(LevelZeroAdversary, AnAlignmentThatIsNoPowerOfTwoIsRefused) {
  for (const std::uint64_t wrong :
       {std::uint64_t{3}, unit - 1, unit / 2 + 1, 3 * unit, UINT64_MAX}) {
    const auto range = driver().reserve({.size_bytes = unit, .alignment_bytes = wrong});
    ASSERT_FALSE(range) << wrong;
    EXPECT_EQ(range.error().code, errc::invalid_argument) << wrong;
  }
  EXPECT_TRUE(driver().reserve({.size_bytes = unit, .alignment_bytes = 1}));
}

TEST_F(LevelZeroAdversary, SizesThatRunOverTheEndAreRefused) {
  constexpr std::uint64_t top = 1ull << 63;
  const std::uint64_t most = ~0ull / unit * unit;
  for (const auto& [size, alignment] : std::map<std::uint64_t, std::uint64_t>{
           {most, 0}, {top, top}, {top - unit, top}, {unit, top}, {most - unit, 4 * unit}}) {
    const auto range = driver().reserve({.size_bytes = size, .alignment_bytes = alignment});
    ASSERT_FALSE(range) << size << " at " << alignment;
    EXPECT_EQ(range.error().code, errc::out_of_addresses) << size << " at " << alignment;
  }
  EXPECT_EQ(driver().create({.size_bytes = most, .where = driver().home()}).error().code,
            errc::out_of_memory);
  const vmm::address_range range = usable(1);
  EXPECT_FALSE(driver().unmap({range.base, ~0ull}));
  EXPECT_FALSE(driver().unmap({range.base, 0}));
  EXPECT_FALSE(driver().free_reservation({}));
  EXPECT_FALSE(driver().get_access({~0ull}, driver().home()));
  EXPECT_FALSE(driver().fill({{range.base, ~0ull}, 1, vmm::stream_handle::default_stream}));
  EXPECT_FALSE(driver().copy({range.base, {~0ull}, 2, vmm::stream_handle::default_stream}));
}

// An option is a user's word: it is refused, and ends no process.
TEST_F(LevelZeroAdversary, ALoaderWithoutANameIsRefused) {
  EXPECT_EQ(level_zero_driver::open({.loader_library = ""}).error().code, errc::bad_option);
}

TEST_F(LevelZeroAdversary, AVariableThatNamesNoLoaderIsRefused) {
  for (const char* wrong : {"/", "/dev/null", "/proc/self/exe", VMM_ZE_HEADER, VMM_ZE_DRIVER}) {
    ::setenv("VMM_LEVEL_ZERO_LIBRARY", wrong, 1);
    const auto opened = level_zero_driver::open();
    ASSERT_FALSE(opened) << wrong;
    EXPECT_EQ(opened.error().code, errc::bad_option) << wrong;
  }
  ::setenv("VMM_LEVEL_ZERO_LIBRARY", VMM_ZE_WITNESS, 1);
  for (const char* name : {"level_zero:", "level_zero:x", "level_zero:-1", "level_zero:1x",
                           "level_zero:99999999999", "level_zero:0:0"}) {
    const auto opened = vmm::open_backend(name);
    ASSERT_FALSE(opened) << name;
    EXPECT_EQ(opened.error().code, errc::bad_option) << name;
  }
  EXPECT_TRUE(vmm::open_backend("level_zero:1"));
  EXPECT_EQ(vmm::open_backend("level_zero:2").error().code, errc::unavailable);
  ::unsetenv("VMM_LEVEL_ZERO_LIBRARY");
}

// ---- where a reservation begins -----------------------------------------------------------------

ze_result_t ZE_APICALL reserve_elsewhere(ze_context_handle_t context, const void* start,
                                         std::size_t size, void** base) {
  play.starts.push_back(start);
  if (start == play.refused_start) return play.code;
  return own<decltype(zeVirtualMemReserve)>("zeVirtualMemReserve")(context, start, size, base);
}

// docs/contract.md: the hint is optional. A driver's refusal of a start is not the result of the
// request.
TEST_F(LevelZeroAdversary, AHintThatTheDriverRefusesIsForgotten) {
  open();
  answer("zeVirtualMemReserve", &reserve_elsewhere);
  constexpr std::uint64_t wish = 5 * unit;
  play.refused_start = reinterpret_cast<const void*>(wish);
  for (const ze_result_t code :
       {ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, ZE_RESULT_ERROR_INVALID_ARGUMENT,
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, ZE_RESULT_ERROR_UNSUPPORTED_SIZE,
        ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT}) {
    play.code = code;
    const auto range = driver().reserve({.size_bytes = unit, .hint = {wish}});
    ASSERT_TRUE(range) << vmm::describe(range.error());
    EXPECT_TRUE(driver().free_reservation(*range));
  }
}

// level_zero/ze_api.h: the starting address must be page aligned.
TEST_F(LevelZeroAdversary, AHintIsAskedForOnlyWhereAPageBegins) {
  open();
  answer("zeVirtualMemReserve", &reserve_elsewhere);
  play.refused_start = &play;
  for (const std::uint64_t wish : {std::uint64_t{1}, unit + 4096, UINT64_MAX}) {
    EXPECT_TRUE(driver().reserve({.size_bytes = unit, .hint = {wish}}));
  }
  for (const void* each : play.starts) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(each) % unit, 0u);
}

// ---- pages --------------------------------------------------------------------------------------

ze_result_t ZE_APICALL giant_pages(ze_context_handle_t context, ze_device_handle_t device,
                                   std::size_t size, std::size_t* page) {
  if (size > giant) {
    *page = giant;
    return ZE_RESULT_SUCCESS;
  }
  return own<decltype(zeVirtualMemQueryPageSize)>("zeVirtualMemQueryPageSize")(context, device,
                                                                               size, page);
}

// The page size depends on the size, also above the gibibyte that open() queries.
TEST_F(LevelZeroAdversary, AReservationBeginsAtAPageOfItsSize) {
  answer("zeVirtualMemQueryPageSize", &giant_pages);
  const std::uint64_t size_bytes = 2 * giant;
  const auto unit_of =
      *driver().query_granularity({.size_bytes = size_bytes, .where = driver().home()});
  EXPECT_EQ(unit_of.minimum_bytes, giant);
  ASSERT_TRUE(driver().reserve({.size_bytes = unit}));
  const auto range = *driver().reserve({.size_bytes = size_bytes});
  EXPECT_EQ(range.base.value % giant, 0u);
  const vmm::physical_handle memory = create(size_bytes);
  EXPECT_TRUE(driver().map({range.base, size_bytes, memory, 0}));
  EXPECT_TRUE(allow(range, access::read_write));
  const auto part = driver().reserve({.size_bytes = giant + unit});
  ASSERT_FALSE(part) << "no multiple of the pages that this size has";
  EXPECT_EQ(part.error().code, errc::invalid_argument);
}

// ---- half a driver ------------------------------------------------------------------------------

ze_result_t ZE_APICALL no_physical(ze_context_handle_t, ze_device_handle_t, ze_physical_mem_desc_t*,
                                   ze_physical_mem_handle_t*) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}

// Intel's driver of 2022 reported the page size and reserved addresses, and had no physical memory.
TEST_F(LevelZeroAdversary, ADriverWithoutPhysicalMemoryDoesNotOpen) {
  answer("zePhysicalMemCreate", &no_physical);
  const auto half = opened();
  EXPECT_EQ(half.error().code, errc::not_supported);
  EXPECT_TRUE(contains(half.error().detail, "no virtual memory management"));
}

ze_result_t ZE_APICALL copies_apart(ze_device_handle_t, std::uint32_t* count,
                                    ze_command_queue_group_properties_t* out) {
  if (out == nullptr) {
    *count = 2;
    return ZE_RESULT_SUCCESS;
  }
  for (std::uint32_t i = 0; i < *count; ++i) {
    out[i].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE;
    if (i == 1) out[i].flags |= ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
    out[i].maxMemoryFillPatternSize = 16;
    out[i].numQueues = 1;
  }
  return ZE_RESULT_SUCCESS;
}

// The feature `copy` needs queues that copy; the simulated driver has them in its second group.
TEST_F(LevelZeroAdversary, QueuesThatComputeAndCopyAreChosen) {
  answer("zeDeviceGetCommandQueueGroupProperties", &copies_apart);
  const auto made = opened();
  EXPECT_TRUE(made) << vmm::describe(made.error());
}

// ---- success with nothing -----------------------------------------------------------------------

ze_result_t ZE_APICALL no_pool(ze_context_handle_t, const ze_event_pool_desc_t*, std::uint32_t,
                               ze_device_handle_t*, ze_event_pool_handle_t* pool) {
  *pool = nullptr;
  return ZE_RESULT_SUCCESS;
}
ze_result_t ZE_APICALL no_event(ze_event_pool_handle_t, const ze_event_desc_t*,
                                ze_event_handle_t* event) {
  *event = nullptr;
  return ZE_RESULT_SUCCESS;
}
ze_result_t ZE_APICALL no_device(ze_driver_handle_t, std::uint32_t* count,
                                 ze_device_handle_t* devices) {
  if (devices == nullptr) *count = 1;
  return ZE_RESULT_SUCCESS;
}
ze_result_t ZE_APICALL no_driver(std::uint32_t* count, ze_driver_handle_t* drivers) {
  if (drivers == nullptr) *count = 1;
  return ZE_RESULT_SUCCESS;
}

// docs/contract.md: such a result is `internal`, and no assertion.
TEST_F(LevelZeroAdversary, AnEventOrPoolThatIsNoneIsNotBelieved) {
  constexpr auto plain = vmm::stream_handle::default_stream;
  const vmm::event_handle event = *driver().create_event();
  answer("zeEventPoolCreate", &no_pool);
  EXPECT_EQ(driver().record_event(event, plain).error().code, errc::internal);
  through().put("zeEventPoolCreate", nullptr);
  answer("zeEventCreate", &no_event);
  EXPECT_EQ(driver().record_event(event, plain).error().code, errc::internal);
  through().put("zeEventCreate", nullptr);
  EXPECT_TRUE(driver().record_event(event, plain));
}

TEST_F(LevelZeroAdversary, ADeviceOrDriverThatIsNoneIsNotBelieved) {
  answer("zeDeviceGet", &no_device);
  EXPECT_EQ(opened().error().code, errc::internal);
  through().put("zeDeviceGet", nullptr);
  answer("zeDriverGet", &no_driver);
  EXPECT_EQ(opened().error().code, errc::internal);
}

// ---- a refusal that did something ---------------------------------------------------------------

ze_result_t ZE_APICALL map_and_refuse(ze_context_handle_t context, const void* at, std::size_t size,
                                      ze_physical_mem_handle_t memory, std::size_t offset,
                                      ze_memory_access_attribute_t rights) {
  const auto real = own<decltype(zeVirtualMemMap)>("zeVirtualMemMap");
  const ze_result_t code = real(context, at, size, memory, offset, rights);
  return code == ZE_RESULT_SUCCESS ? ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY : code;
}

// Intel's driver maps, then makes the memory resident; where that fails it says so and the mapping
// stays.
TEST_F(LevelZeroAdversary, AMapThatFailsAtItsEndLeavesNothing) {
  const auto range = *driver().reserve({.size_bytes = unit});
  const vmm::physical_handle memory = create();
  ASSERT_TRUE(driver().map({range.base, unit, memory, 0}));
  answer("zeVirtualMemMap", &map_and_refuse);
  const vmm::status given = allow(range, access::read_write);
  EXPECT_EQ(given.error().code, errc::out_of_memory);
  EXPECT_EQ(fake().resource_counts().mappings, 0u) << "a failed call changes nothing";
  through().put("zeVirtualMemMap", nullptr);
  EXPECT_TRUE(allow(range, access::read_write));
  EXPECT_TRUE(driver().unmap(range));
  EXPECT_TRUE(driver().release(memory));
  EXPECT_EQ(fake().misuse_count(), 0u) << fake().report();
}

// ---- what the device says -----------------------------------------------------------------------

ze_result_t ZE_APICALL two_modules(ze_device_handle_t, std::uint32_t* count,
                                   ze_device_memory_properties_t* out) {
  if (out == nullptr) {
    *count = 2;
    return ZE_RESULT_SUCCESS;
  }
  for (std::uint32_t i = 0; i < *count; ++i) out[i].totalSize = (i + 1) * unit;
  return ZE_RESULT_SUCCESS;
}

TEST_F(LevelZeroAdversary, MemoryIsThatOfAllModulesAndNeverLessThanNone) {
  answer("zeDeviceGetMemoryProperties", &two_modules);
  const auto before = *driver().query_memory(driver().home());
  EXPECT_EQ(before.total_bytes, 3 * unit);
  EXPECT_EQ(before.free_bytes, 3 * unit);
  static_cast<void>(create(2 * unit));
  EXPECT_EQ(driver().query_memory(driver().home())->free_bytes, unit);
  static_cast<void>(create(2 * unit));
  EXPECT_EQ(driver().query_memory(driver().home())->free_bytes, 0u) << "memory may come when used";
}

ze_result_t ZE_APICALL no_gpu_first(ze_device_handle_t device, ze_device_properties_t* about) {
  const ze_result_t code =
      own<decltype(zeDeviceGetProperties)>("zeDeviceGetProperties")(device, about);
  static const ze_device_handle_t first = device;
  if (device == first) about->type = ZE_DEVICE_TYPE_VPU;
  return code;
}

TEST_F(LevelZeroAdversary, DevicesThatAreNoGpuHaveNoNumber) {
  answer("zeDeviceGetProperties", &no_gpu_first);
  static_cast<void>(create(unit));
  EXPECT_LT(fake().query_memory(vmm::device(1))->free_bytes,
            fake().query_memory(vmm::device(0))->free_bytes);
  EXPECT_EQ(opened(1).error().code, errc::unavailable);
}

// ---- addresses, once more -----------------------------------------------------------------------

TEST_F(LevelZeroAdversary, AMappingBeginsAtAPageOfItsMemory) {
  const auto range = *driver().reserve({.size_bytes = 2 * unit});
  const vmm::physical_handle memory = create(unit);
  for (const std::uint64_t offset : {std::uint64_t{4096}, std::uint64_t{64} << 10, unit / 2}) {
    const vmm::status mapped = driver().map({range.base + offset, unit, memory, 0});
    ASSERT_FALSE(mapped) << offset;
    EXPECT_EQ(mapped.error().code, errc::invalid_argument);
  }
  EXPECT_TRUE(driver().map({range.base + unit, unit, memory, 0}));
}

TEST_F(LevelZeroAdversary, ARunDoesNotCrossReservations) {
  vmm::address_range low = mapped(1);
  vmm::address_range high = mapped(1);
  if (high.base.value < low.base.value) std::swap(low, high);
  ASSERT_EQ(low.end(), high.base) << "the simulated driver gives neighbours";
  const vmm::address_range both{low.base, 2 * unit};
  EXPECT_EQ(allow(both, access::read_write).error().code, errc::invalid_argument);
  EXPECT_EQ(driver().unmap(both).error().code, errc::invalid_argument);
  EXPECT_EQ(*driver().get_access(high.base, driver().home()), access::none);
  EXPECT_TRUE(driver().unmap(low));
  EXPECT_TRUE(driver().unmap(high));
}

ze_result_t ZE_APICALL reserve_at_null(ze_context_handle_t context, const void* start,
                                       std::size_t size, void** base) {
  play.starts.push_back(start);
  if (start != nullptr) return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  const auto anywhere = reinterpret_cast<const void*>(1ull << 40);
  return own<decltype(zeVirtualMemReserve)>("zeVirtualMemReserve")(context, anywhere, size, base);
}

TEST_F(LevelZeroAdversary, ADriverThatTakesNoStartChoosesOne) {
  open();
  answer("zeVirtualMemReserve", &reserve_at_null);
  const auto range = driver().reserve({.size_bytes = unit, .hint = {5 * unit}});
  ASSERT_TRUE(range) << vmm::describe(range.error());
  EXPECT_EQ(play.starts.size(), 3u) << "there, elsewhere, anywhere";
}

// ---- codes and events ---------------------------------------------------------------------------

TEST_F(LevelZeroAdversary, CodesMeanWhatTheContractSays) {
  open();
  const std::map<ze_result_t, errc> meanings{
      {ZE_RESULT_ERROR_DEVICE_LOST, errc::device_lost},
      {ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, errc::out_of_host_memory},
      {ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, errc::out_of_memory},
      {ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET, errc::device_lost},
      {ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS, errc::not_permitted},
      {ZE_RESULT_ERROR_UNINITIALIZED, errc::unavailable},
      {ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, errc::not_supported},
      {ZE_RESULT_ERROR_UNSUPPORTED_SIZE, errc::invalid_argument},
      {ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, errc::in_use},
      {ZE_RESULT_ERROR_UNKNOWN, errc::internal},
      {static_cast<ze_result_t>(0x7fff0001), errc::internal}};
  for (const auto& [code, meaning] : meanings) {
    simulated().fail("zePhysicalMemCreate", code, 1, false);
    const auto made = driver().create({.size_bytes = unit, .where = driver().home()});
    EXPECT_EQ(made.error().code, meaning) << made.error().native_name;
  }
  for (const auto full :
       {ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY}) {
    simulated().fail("zeVirtualMemReserve", full, 1, true);
    EXPECT_EQ(driver().reserve({.size_bytes = unit}).error().code, errc::out_of_addresses);
    simulated().clear_failures();
  }
}

ze_result_t ZE_APICALL visible_pool(ze_context_handle_t context, const ze_event_pool_desc_t* like,
                                    std::uint32_t count, ze_device_handle_t* devices,
                                    ze_event_pool_handle_t* pool) {
  if ((like->flags & ZE_EVENT_POOL_FLAG_HOST_VISIBLE) == 0) return ZE_RESULT_ERROR_UNKNOWN;
  const auto real = own<decltype(zeEventPoolCreate)>("zeEventPoolCreate");
  return real(context, like, count, devices, pool);
}
ze_result_t ZE_APICALL visible_event(ze_event_pool_handle_t pool, const ze_event_desc_t* like,
                                     ze_event_handle_t* event) {
  if ((like->signal & ZE_EVENT_SCOPE_FLAG_HOST) == 0) return ZE_RESULT_ERROR_UNKNOWN;
  return own<decltype(zeEventCreate)>("zeEventCreate")(pool, like, event);
}

TEST_F(LevelZeroAdversary, TheHostSeesWhatEventsSignal) {
  open();
  answer("zeEventPoolCreate", &visible_pool);
  answer("zeEventCreate", &visible_event);
  const vmm::event_handle event = *driver().create_event();
  const auto recorded = driver().record_event(event, vmm::stream_handle::default_stream);
  EXPECT_TRUE(recorded) << vmm::describe(recorded.error());
  EXPECT_TRUE(driver().synchronize_event(event));
}

// TearDown counts what is left.
TEST_F(LevelZeroAdversary, EventsGoWhereALaterOneFails) {
  const vmm::event_handle event = *driver().create_event();
  simulated().fail("zeEventCreate", ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 5, false);
  EXPECT_FALSE(driver().record_event(event, vmm::stream_handle::default_stream));
}

TEST_F(LevelZeroAdversary, SynchronisingWithoutAnEndTakesBoundedEvents) {
  for (int round = 0; round < 2000; ++round)
    ASSERT_TRUE(driver().synchronize_stream(vmm::stream_handle::default_stream));
  EXPECT_LE(simulated().calls("zeEventPoolCreate"), 1u);
}

TEST_F(LevelZeroAdversary, WorkOnNothingReachesNoDriver) {
  const vmm::address_range range = usable(1);
  const auto plain = vmm::stream_handle::default_stream;
  EXPECT_TRUE(driver().copy({range.base, range.base, 0, plain}));
  EXPECT_TRUE(driver().fill({{range.base, 0}, 1, plain}));
  EXPECT_EQ(simulated().calls("zeCommandListAppendBarrier"), 0u);
  EXPECT_EQ(simulated().calls("zeCommandListAppendMemoryCopy"), 0u);
  EXPECT_EQ(simulated().calls("zeCommandListAppendMemoryFill"), 0u);
}

// ---- threads ------------------------------------------------------------------------------------

// A thread and whether the kernel has it wait for long.
class watched_thread {
 public:
  template <class Work>
  explicit watched_thread(Work work) {
    thread_ = std::thread([this, work] {
      number_ = static_cast<int>(::syscall(SYS_gettid));
      work();
      is_done_ = true;
    });
  }
  ~watched_thread() { thread_.join(); }
  /// Whether the work ended; false once the thread has slept at a thousand looks without a break.
  [[nodiscard]] bool ends() const {
    for (int asleep = 0; asleep < 1000;) {
      if (is_done_) return true;
      asleep = is_asleep() ? asleep + 1 : 0;
      std::this_thread::yield();
    }
    return is_done_;
  }

 private:
  [[nodiscard]] bool is_asleep() const {
    if (number_ == 0) return false;
    std::ifstream about("/proc/self/task/" + std::to_string(number_) + "/stat");
    std::string text;
    std::getline(about, text);
    const auto state = text.rfind(") ");
    return state != std::string::npos && text[state + 2] == 'S';
  }
  std::atomic<int> number_ = 0;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

// docs/contract.md: calls that touch different objects and ranges do not disturb each other. No
// memory call waits for one that the driver is slow with, nor does a query.
TEST_F(LevelZeroAdversary, ASlowMemoryCallDelaysNoOther) {
  const auto plain = vmm::stream_handle::default_stream;
  const vmm::event_handle event = *driver().create_event();
  ASSERT_TRUE(driver().record_event(event, plain));
  const vmm::address_range staying = usable(1);
  const auto others_work = [&] {
    const vmm::location home = driver().home();
    const auto range = driver().reserve({.size_bytes = unit});
    const auto memory = driver().create({.size_bytes = unit, .where = home});
    ASSERT_TRUE(range && memory && driver().map({range->base, unit, *memory, 0}));
    EXPECT_TRUE(allow(*range, access::read_write));
    EXPECT_TRUE(driver().fill({*range, 1, plain}));
    EXPECT_EQ(*driver().get_access(staying.base, home), access::read_write);
    EXPECT_TRUE(driver().get_properties(*memory) && driver().query_memory(home));
    EXPECT_TRUE(driver().query_event(event));
    EXPECT_TRUE(driver().record_event(event, plain) && driver().wait_event(plain, event));
    std::byte bytes[8] = {};
    EXPECT_TRUE(driver().synchronize_stream(plain));
    EXPECT_TRUE(driver().write(range->base, bytes) && driver().read(bytes, staying.base));
    EXPECT_TRUE(driver().unmap(*range) && driver().release(*memory));
    EXPECT_TRUE(driver().free_reservation(*range));
  };
  const vmm::address_range going = mapped(2);
  const vmm::address_range first{going.base, unit};
  const auto slow_work = [&](const std::function<bool()>& work) {
    const watched_thread slow([&] { EXPECT_TRUE(work()); });
    wait_until_inside();
    const watched_thread other(others_work);
    EXPECT_TRUE(other.ends()) << "a call waits for another thread's call elsewhere";
    play.may_leave = true;
  };
  vmm::result<vmm::address_range> range = vmm::address_range{};
  vmm::result<vmm::physical_handle> memory = vmm::physical_handle::none;
  slow_down<decltype(zeVirtualMemMap)>("zeVirtualMemMap");
  slow_work([&] { return allow(first, access::read_write).has_value(); });
  slow_down<decltype(zeVirtualMemUnmap)>("zeVirtualMemUnmap");
  slow_work([&] { return driver().unmap(going).has_value(); });
  slow_down<decltype(zeVirtualMemReserve)>("zeVirtualMemReserve");
  slow_work([&] { return (range = driver().reserve({.size_bytes = unit})).has_value(); });
  slow_down<decltype(zeVirtualMemFree)>("zeVirtualMemFree");
  slow_work([&] { return driver().free_reservation(*range).has_value(); });
  slow_down<decltype(zePhysicalMemCreate)>("zePhysicalMemCreate");
  slow_work([&] {
    memory = driver().create({.size_bytes = unit, .where = driver().home()});
    return memory.has_value();
  });
  slow_down<decltype(zePhysicalMemDestroy)>("zePhysicalMemDestroy");
  slow_work([&] { return driver().release(*memory).has_value(); });
}

// A call that needs memory in transit waits for it if the outcome matters, and is refused if the
// former state forbids it.
TEST_F(LevelZeroAdversary, WhatIsInTransitIsWaitedForOrRefused) {
  const auto range = *driver().reserve({.size_bytes = unit});
  const vmm::physical_handle memory = create();
  const vmm::physical_handle another = create();
  ASSERT_TRUE(driver().map({range.base, unit, memory, 0}));
  ASSERT_TRUE(allow(range, access::read_write));
  slow_down<decltype(zeVirtualMemUnmap)>("zeVirtualMemUnmap");
  {
    const watched_thread unmapping([&] { EXPECT_TRUE(driver().unmap(range)); });
    wait_until_inside();
    const watched_thread asking([&] {
      EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::read_write);
      EXPECT_EQ(driver().map({range.base, unit, another, 0}).error().code, errc::overlap);
      EXPECT_EQ(driver().release(memory).error().code, errc::in_use);
      EXPECT_EQ(driver().free_reservation(range).error().code, errc::in_use);
    });
    EXPECT_TRUE(asking.ends());
    const auto refused = [](const vmm::status& answer) {
      EXPECT_EQ(answer.error().code, errc::invalid_argument);
    };
    const watched_thread again([&] { refused(driver().unmap(range)); });
    const watched_thread giving([&] { refused(allow(range, access::read_write)); });
    const watched_thread filling(
        [&] { refused(driver().fill({range, 1, vmm::stream_handle::default_stream})); });
    EXPECT_FALSE(again.ends());
    EXPECT_FALSE(giving.ends());
    EXPECT_FALSE(filling.ends());
    play.may_leave = true;
  }
  EXPECT_EQ(fake().resource_counts().mappings, 0u);
}

// docs/contract.md: a failed call changes nothing, and not even for a moment where others look.
TEST_F(LevelZeroAdversary, RightsChangeWhenTheDriverIsThrough) {
  const vmm::address_range range = mapped(2);
  slow_down<decltype(zeVirtualMemMap)>("zeVirtualMemMap");
  simulated().fail("zeVirtualMemMap", ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 2, false);
  {
    const watched_thread giving([&] { EXPECT_FALSE(allow(range, access::read_write)); });
    wait_until_inside();
    EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::none);
    play.may_leave = true;
  }
  EXPECT_EQ(*driver().get_access(range.base, driver().home()), access::none);
  EXPECT_EQ(fake().resource_counts().mappings, 0u);
  EXPECT_TRUE(driver().unmap(range));
}

// docs/contract.md: what puts something into a stream waits while its queue is full; nothing else
// does.
TEST_F(LevelZeroAdversary, AFullQueueDelaysItsOwnStreamAlone) {
  const vmm::address_range range = usable(1);
  const vmm::stream_handle full = *driver().create_stream();
  const vmm::stream_handle ending = *driver().create_stream();
  const auto plain = vmm::stream_handle::default_stream;
  const vmm::event_handle event = *driver().create_event();
  const vmm::event_handle late = *driver().create_event();
  ASSERT_TRUE(driver().record_event(event, full));
  slow_down<decltype(zeCommandListAppendMemoryFill)>("zeCommandListAppendMemoryFill");
  {
    const watched_thread filling([&] { EXPECT_TRUE(driver().fill({range, 1, full})); });
    wait_until_inside();
    const watched_thread recording([&] { EXPECT_TRUE(driver().record_event(late, full)); });
    EXPECT_FALSE(recording.ends()) << "a list is used by two threads at once";
    const watched_thread others([&] {
      EXPECT_TRUE(driver().query_event(event) && driver().query_event(late));
      EXPECT_TRUE(driver().record_event(event, plain) && driver().wait_event(plain, event));
      EXPECT_TRUE(driver().fill({range, 2, plain}) && driver().synchronize_stream(plain));
      EXPECT_TRUE(driver().synchronize_event(event) && driver().destroy_event(event));
      EXPECT_TRUE(driver().destroy_stream(ending) && driver().create_stream());
      EXPECT_NE(driver().native_stream(full), 0u);
    });
    EXPECT_TRUE(others.ends()) << "a stream waits for the full queue of another one";
    play.may_leave = true;
  }
  EXPECT_TRUE(driver().synchronize_event(late));
}

// A destroyed stream ends when no thread has its turn any more; waiting threads are refused.
TEST_F(LevelZeroAdversary, AStreamEndsWhileOthersWaitForTheirTurn) {
  const vmm::address_range range = usable(1);
  const vmm::stream_handle stream = *driver().create_stream();
  const vmm::event_handle event = *driver().create_event();
  slow_down<decltype(zeCommandListAppendMemoryFill)>("zeCommandListAppendMemoryFill");
  {
    const watched_thread filling([&] { EXPECT_TRUE(driver().fill({range, 1, stream})); });
    wait_until_inside();
    const watched_thread ending([&] { EXPECT_TRUE(driver().destroy_stream(stream)); });
    EXPECT_FALSE(ending.ends());
    const auto fine = [](const vmm::status& answer) {
      EXPECT_TRUE(answer || answer.error().code == errc::invalid_argument);
    };
    const watched_thread recording([&] { fine(driver().record_event(event, stream)); });
    const watched_thread waiting([&] { fine(driver().synchronize_stream(stream)); });
    EXPECT_FALSE(recording.ends());
    EXPECT_FALSE(waiting.ends());
    play.may_leave = true;
  }
  EXPECT_EQ(driver().fill({range, 1, stream}).error().code, errc::invalid_argument);
  EXPECT_TRUE(driver().synchronize_event(event));
}

// docs/contract.md: a forked child may open a driver of its own.
TEST_F(LevelZeroAdversary, AForkedChildOpensItsOwn) {
  open();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto its = opened();
    const bool works = its && its->reserve({.size_bytes = unit});
    const bool refused = !its && its.error().code == errc::unavailable;
    _exit(works || refused ? 0 : 1);
  }
  int outcome = 0;
  ASSERT_EQ(waitpid(child, &outcome, 0), child);
  EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
}

}  // namespace
