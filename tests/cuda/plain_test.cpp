// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: in plain memory a stream pool works as in mapped memory, users that need more are refused,
// and an observer's calls to a tool are made with the device's context current.
// Method: the CUDA backend on the stub driver, with cuda_memory::plain or VMM_CUDA_MEMORY; contents
// are compared while blocks are reused, split and merged, and every call for memory fails once and
// for ever. That it keeps the contract otherwise is conformance_standin's.
#include "../../backends/cuda/abi.h"
#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.containers;
import vmm.cuda;
import vmm.fake;
import vmm.manager;
import vmm.registry;
import vmm.stream;

namespace {

using cuda_test::standin, vmm::address, vmm::address_range, vmm::cuda_driver, vmm::cuda_memory,
    vmm::errc;

vmm::fake_driver& fake() { return *static_cast<vmm::fake_driver*>(standin().fake()); }

struct Plain : testing::Test {
  void SetUp() override {
    ::unsetenv("VMM_CUDA_MEMORY");
    standin().reset(nullptr);
  }
  void TearDown() override {
    ::unsetenv("VMM_CUDA_MEMORY");
    standin().clear_failures();
    EXPECT_TRUE(fake().check_empty()) << fake().report();
    EXPECT_EQ(fake().misuse_count(), 0u);
  }
  static vmm::result<cuda_driver> open(cuda_memory memory) {
    return cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY, .memory = memory});
  }
  // To 256 MiB.
  static void shrink_device() {
    vmm_standin_setup small{};
    small.device_bytes = 256 * MiB;
    standin().reset(&small);
  }
  static bool is_plain(cuda_memory memory) {
    const auto opened = open(memory);
    EXPECT_TRUE(opened);
    return opened && opened->feature_set().contents_stay;
  }
};

vmm::pool_options modest() {
  vmm::pool_options options;
  options.reservation_bytes = 64 * MiB;
  return options;
}

// Made before a pool that uses it, and destroyed after.
struct own_stream {
  explicit own_stream(cuda_driver& on) : driver(on), handle(*on.create_stream()) {}
  ~own_stream() { EXPECT_TRUE(driver.destroy_stream(handle)); }
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  cuda_driver& driver;
  vmm::stream_handle handle;
};

// ---- selection
// -----------------------------------------------------------------------------------

TEST_F(Plain, IsForThoseWhoSaySo) {
  EXPECT_FALSE(is_plain(cuda_memory::from_environment));
  EXPECT_TRUE(is_plain(cuda_memory::plain));
  ::setenv("VMM_CUDA_MEMORY", "plain", 1);
  EXPECT_TRUE(is_plain(cuda_memory::from_environment));
  EXPECT_FALSE(is_plain(cuda_memory::mapped)) << "the program's word counts";
  for (const char* value : {"mapped", ""}) {
    ::setenv("VMM_CUDA_MEMORY", value, 1);
    EXPECT_FALSE(is_plain(cuda_memory::from_environment)) << value;
  }
}

TEST_F(Plain, ValuesThatItCannotHaveAreRefused) {
  for (const char* value : {"Plain", "plain ", "1", "cuMemAlloc"}) {
    ::setenv("VMM_CUDA_MEMORY", value, 1);
    const auto opened = open(cuda_memory::from_environment);
    ASSERT_FALSE(opened) << value;
    EXPECT_EQ(opened.error().code, errc::bad_option);
    EXPECT_EQ(std::string(opened.error().detail),
              "VMM_CUDA_MEMORY takes one of mapped, plain; not '" + std::string(value) + "'");
    EXPECT_TRUE(open(cuda_memory::mapped)) << "the variable is not read then";
  }
  ::setenv("VMM_CUDA_MEMORY", "plain", 1);
  EXPECT_EQ(cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY, .allow_multicast = true})
                .error()
                .code,
            errc::bad_option);
}

TEST_F(Plain, SaysWhatItCannot) {
  auto driver = *open(cuda_memory::plain);
  const vmm::features& can = driver.feature_set();
  EXPECT_TRUE(can.contents_stay);
  EXPECT_TRUE(can.streams && can.copy && can.capture && can.spanning_unmap);
  EXPECT_EQ(can.alias, vmm::alias_level::none);
  EXPECT_EQ(can.read_only, vmm::read_only_level::refused);
  EXPECT_FALSE(can.export_posix_fd || can.export_fabric || can.retain || can.rdma ||
               can.compression || can.fresh_memory_zero || can.multicast);
}

// A manager moves blocks with their contents.
TEST_F(Plain, AManagerRefusesIt) {
  auto driver = *open(cuda_memory::plain);
  vmm::manager memory(driver);
  for (const vmm::errc code : {memory.set_up().error().code, memory.allocate(64).error().code})
    EXPECT_EQ(code, errc::not_supported);
  EXPECT_TRUE(contains(memory.set_up().error().detail, "VMM_CUDA_MEMORY=plain"));
  vmm::vector<int> numbers(memory);
  const vmm::status grown = numbers.emplace_back(1);
  EXPECT_EQ(grown.error().code, errc::not_supported);
}

// ---- reservations -------------------------------------------------------------------------------

TEST_F(Plain, IsThereFromReserveToFree) {
  vmm_standin_setup shifted{};
  shifted.plain_shift_bytes = 512;  // a driver that aligns to no granule
  standin().reset(&shifted);
  auto driver = *open(cuda_memory::plain);
  const std::uint64_t before = driver.query_memory(driver.home())->free_bytes;
  const auto small = driver.reserve({.size_bytes = 4 * MiB});
  const auto aligned = driver.reserve({.size_bytes = 2 * MiB, .alignment_bytes = 16 * MiB});
  ASSERT_TRUE(small && aligned);
  EXPECT_EQ(small->base.value % (2 * MiB), 0u);
  EXPECT_EQ(aligned->base.value % (16 * MiB), 0u);
  EXPECT_EQ(standin().calls("cuMemAlloc"), 2u);
  EXPECT_LE(driver.query_memory(driver.home())->free_bytes, before - 6 * MiB);
  const std::array<std::byte, 3> some{std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> seen{};
  for (const address_range each : {*small, *aligned}) {
    EXPECT_TRUE(driver.write(address{each.end().value - 3}, some));
    EXPECT_TRUE(driver.read(seen, address{each.end().value - 3}));
    EXPECT_EQ(seen, some);
    EXPECT_TRUE(driver.free_reservation(each));
  }
  EXPECT_EQ(driver.query_memory(driver.home())->free_bytes, before);
}

TEST_F(Plain, MappingMakesNoDriverCall) {
  auto driver = *open(cuda_memory::plain);
  {
    const own_stream stream(driver);
    vmm::stream_pool pool(driver, modest());
    const auto at = *pool.allocate(5 * MiB, stream.handle);
    EXPECT_TRUE(pool.free(at, stream.handle));
  }
  for (const char* symbol : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
                             "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"})
    EXPECT_EQ(standin().calls(symbol), 0u) << symbol;
  EXPECT_EQ(standin().calls("cuMemAlloc"), 1u);
  EXPECT_EQ(standin().calls("cuMemFree"), 1u);
}

// The end of such a range is 0, which lies below the end of every reservation.
TEST_F(Plain, AMappingAtTheEndOfTheAddressSpaceIsRefused) {
  auto driver = *open(cuda_memory::plain);
  const auto range = *driver.reserve({.size_bytes = 4 * MiB});
  const auto memory = driver.create({.size_bytes = 2 * MiB, .where = driver.home()});
  ASSERT_TRUE(memory);
  const vmm::address last{0 - 2 * MiB};
  EXPECT_EQ(driver.map({.at = last, .size_bytes = 2 * MiB, .memory = *memory}).error().code,
            vmm::errc::invalid_argument);
  EXPECT_TRUE(driver.release(*memory)) << "a mapping that was refused holds it";
  EXPECT_TRUE(driver.free_reservation(range));
}

// Between the driver's cuMemFree and its return another thread is given the same addresses.
struct next_owner {
  cuda_driver& driver;
  std::vector<address_range> given;

  static void reserve(void* self) {
    auto& owner = *static_cast<next_owner*>(self);
    if (!owner.given.empty()) return;
    const auto range = *owner.driver.reserve({.size_bytes = 4 * MiB});
    owner.given.push_back(range);
  }
};

TEST_F(Plain, AddressesThatAreFreedMayBeReservedBeforeTheCallReturns) {
  auto driver = open(cuda_memory::plain);
  ASSERT_TRUE(driver);
  const auto first = *driver->reserve({.size_bytes = 4 * MiB});
  next_owner next{*driver, {}};
  standin().on_free(&next_owner::reserve, &next);
  EXPECT_TRUE(driver->free_reservation(first));
  ASSERT_EQ(next.given.size(), 1u);
  ASSERT_EQ(next.given.front(), first) << "the driver gave other addresses: this shows nothing";
  const auto memory = *driver->create({.size_bytes = 4 * MiB, .where = driver->home()});
  EXPECT_TRUE(driver->map({first.base, 4 * MiB, memory, 0})) << "the new reservation is known";
  EXPECT_TRUE(driver->unmap(first));
  EXPECT_TRUE(driver->release(memory));
  standin().on_free(nullptr, nullptr);
  EXPECT_TRUE(driver->free_reservation(next.given.front()));
}

TEST_F(Plain, AReservationThatTheDriverKeepsStaysUsable) {
  auto driver = *open(cuda_memory::plain);
  const auto range = *driver.reserve({.size_bytes = 2 * MiB});
  standin().fail("cuMemFree", CUDA_ERROR_UNKNOWN, 1, false);
  EXPECT_FALSE(driver.free_reservation(range));
  const auto memory = *driver.create({.size_bytes = 2 * MiB, .where = driver.home()});
  EXPECT_TRUE(driver.map({range.base, 2 * MiB, memory, 0}));
  EXPECT_TRUE(driver.unmap(range));
  EXPECT_TRUE(driver.release(memory));
  EXPECT_TRUE(driver.free_reservation(range));
  EXPECT_EQ(driver.free_reservation(range).error().code, errc::invalid_argument);
}

// ---- a pool on it -------------------------------------------------------------------------------

// Blocks that come and go; each holds its own number, in its first and last byte, until it goes.
class player {
 public:
  player(const own_stream& stream, vmm::stream_pool& pool)
      : driver_(stream.driver), pool_(pool), stream_(stream.handle) {}

  void play(int count) {
    for (int i = 0; i < count; ++i) {
      if (live_.size() < 10 || (live_.size() < 40 && random_() % 2 == 0)) {
        make();
      } else {
        drop();
      }
      if (i % 100 == 50) (void)pool_.trim(0);
    }
    while (!live_.empty()) drop();
    EXPECT_TRUE(pool_.validate());
  }

 private:
  struct block {
    address first;
    address last;
    std::byte mark;
  };
  void make() {
    const std::uint64_t size = 2 + random_() % (random_() % 8 == 0 ? 5 * MiB : 5000);
    const auto at = pool_.allocate(size, stream_);
    ASSERT_TRUE(at) << vmm::describe(at.error());
    live_.push_back({*at, *at + (size - 1), static_cast<std::byte>(random_())});
    EXPECT_TRUE(driver_.synchronize_stream(stream_));
    for (const address each : {live_.back().first, live_.back().last})
      EXPECT_TRUE(driver_.write(each, std::span(&live_.back().mark, 1)));
  }
  void drop() {
    std::swap(live_[random_() % live_.size()], live_.back());
    std::byte seen{};
    for (const address each : {live_.back().first, live_.back().last}) {
      EXPECT_TRUE(driver_.read(std::span(&seen, 1), each));
      EXPECT_EQ(seen, live_.back().mark) << "two blocks share a byte";
    }
    EXPECT_TRUE(pool_.free(live_.back().first, stream_));
    live_.pop_back();
  }

  cuda_driver& driver_;
  vmm::stream_pool& pool_;
  vmm::stream_handle stream_;
  std::mt19937_64 random_{3};
  std::vector<block> live_;
};

TEST_F(Plain, APoolKeepsItsBlocksApart) {
  auto driver = *open(cuda_memory::plain);
  const own_stream stream(driver);
  vmm::stream_pool pool(driver, modest());
  player(stream, pool).play(1500);
  EXPECT_GT(pool.statistics().peak_mapped_bytes, 8 * MiB);
}

// A full device is short of memory, which a pool handles, not of addresses.
TEST_F(Plain, AFullDeviceIsShortOfMemory) {
  shrink_device();
  auto driver = *open(cuda_memory::plain);
  const auto first = *driver.reserve({.size_bytes = 160 * MiB});
  const auto second = driver.reserve({.size_bytes = 160 * MiB});
  EXPECT_EQ(second.error().code, vmm::errc::out_of_memory) << vmm::describe(second.error());
  EXPECT_TRUE(driver.free_reservation(first));
}

// What the driver has no memory for is halved until it has.
TEST_F(Plain, APoolTakesLessWhereItsReservationIsMoreThanTheDevice) {
  shrink_device();
  auto driver = *open(cuda_memory::plain);
  const own_stream stream(driver);
  vmm::stream_pool pool(driver);
  player(stream, pool).play(100);
  EXPECT_LE(standin().calls("cuMemAlloc"), 3u) << "more than the device has is not requested";
}

// Its reservation fails, once and for ever, and giving it back fails once.
TEST_F(Plain, APoolStandsEveryFailureOfTheMemory) {
  constexpr auto plain_stream = vmm::stream_handle::default_stream;
  for (const int code : {1, 2, 4, 201, 700, 999}) {
    for (const bool forever : {false, true}) {
      auto driver = *open(cuda_memory::plain);
      vmm::stream_pool pool(driver, modest());
      standin().fail("cuMemAlloc", code, 1, forever);
      const auto first = pool.allocate(40 * MiB, plain_stream);
      const bool tried_again = code == CUDA_ERROR_OUT_OF_MEMORY && !forever;
      ASSERT_EQ(first.has_value(), tried_again) << code;
      if (!first) EXPECT_EQ(first.error().native, code);
      EXPECT_EQ(pool.allocate(40 * MiB, plain_stream).has_value(), !forever) << code;
      standin().clear_failures();
      EXPECT_TRUE(pool.validate());
      EXPECT_TRUE(pool.allocate(40 * MiB, plain_stream));
      standin().fail("cuMemFree", code, 1, false);  // it is tried again when the pool goes
    }
    EXPECT_TRUE(fake().check_empty()) << code << fake().report();
  }
}

// ---- the context of callbacks -------------------------------------------------------------------

CUcontext current_context() {
  CUcontext now = nullptr;
  EXPECT_EQ(standin().find<CUresult(CUcontext*)>("cuCtxGetCurrent")(&now), CUDA_SUCCESS);
  return now;
}

struct context_witness final : vmm::block_observer {
  void reserved(address_range) noexcept override { look(0); }
  void unreserved(address_range) noexcept override { look(1); }
  void mapped(address_range) noexcept override { look(2); }
  void unmapped(address_range) noexcept override { look(3); }
  void allocated(address_range) noexcept override { look(4); }
  void freed(address) noexcept override { look(5); }

  void look(std::size_t what) {
    ++reported[what];
    EXPECT_EQ(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(current_context())), mine)
        << what;
  }
  std::uint64_t mine = 0;
  std::array<int, 6> reported{};
};

template <class Driver>
void play_on_a_thread(Driver& driver, context_witness& seen) {
  std::thread([&] {
    EXPECT_EQ(current_context(), nullptr) << "this thread never touched CUDA";
    {
      vmm::pool_options options = modest();
      options.observer = &seen;
      vmm::stream_pool pool(driver, options);
      const auto at = *pool.allocate(100, vmm::stream_handle::default_stream);
      EXPECT_TRUE(pool.free(at, vmm::stream_handle::default_stream));
    }
    EXPECT_EQ(current_context(), nullptr) << "and is left as it was";
  }).join();
  for (const int count : seen.reported) EXPECT_EQ(count, 1);
}

TEST_F(Plain, AnObserverIsToldWithTheContextCurrent) {
  for (const cuda_memory memory : {cuda_memory::plain, cuda_memory::mapped}) {
    auto driver = *open(memory);
    context_witness seen;
    seen.mine = driver.native_context();
    play_on_a_thread(driver, seen);
  }
}

TEST_F(Plain, SoItIsBehindADriverChosenByName) {
  ::setenv("VMM_CUDA_LIBRARY", VMM_STANDIN_LIBRARY, 1);
  ::setenv("VMM_CUDA_MEMORY", "plain", 1);
  auto opened = *vmm::open_backend("cuda");
  EXPECT_TRUE(opened.feature_set().contents_stay);
  context_witness seen;
  seen.mine = vmm::driver_in<cuda_driver>(opened)->native_context();
  play_on_a_thread(opened, seen);
  ::unsetenv("VMM_CUDA_LIBRARY");
}

}  // namespace
