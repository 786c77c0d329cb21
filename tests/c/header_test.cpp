// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: vmm.hpp owns what it should, gives it back, says what went wrong as exceptions and without
// them, and its resources hand out memory that may be used at once, or in the order of a stream.
// Method: short programs on the simulated device and on the host's memory, where the standard
// library's own containers live in a pool. The pool's numbers say whether anything was left.
#include <memory_resource>
#include <new>

#include "../support/test.h"
#include "vmm.hpp"

namespace {

template <class T>
constexpr bool moves_only =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(moves_only<vmm::driver> && moves_only<vmm::pool> && moves_only<vmm::manager>);
static_assert(moves_only<vmm::stream> && moves_only<vmm::device_buffer>);
static_assert(moves_only<vmm::device_array<int>> && moves_only<vmm::growing_array<int>>);
static_assert(std::is_copy_assignable_v<vmm::stream_resource>);

// As cuda::stream_ref and rmm::cuda_stream_view name their stream.
struct stream_with_get {
  vmm_stream stream;
  [[nodiscard]] vmm_stream get() const noexcept { return stream; }
};
struct stream_with_value {
  vmm_stream stream;
  [[nodiscard]] vmm_stream value() const noexcept { return stream; }
};

struct on_a_device : testing::Test {
  vmm::driver driver{"fake"};
  vmm::pool pool{driver};
  vmm::stream a{driver};
  vmm::stream b{driver};
  void TearDown() override {
    EXPECT_EQ(pool.statistics().live_count, 0u);
    EXPECT_EQ(vmm_pool_validate(pool.get()), VMM_SUCCESS);
    for (const vmm::stream* each : {&a, &b}) pool.forget(each->get());
    pool.reset();
  }
};
using Owners = on_a_device;
using Resources = on_a_device;

// ---- owners ------------------------------------------------------------------------------------

TEST_F(Owners, BuffersGiveTheirBlocksBack) {
  {
    vmm::device_buffer first(pool, 3 * MiB, a.get());
    EXPECT_EQ(first.size_bytes(), 3 * MiB);
    void* const at = first.data();
    vmm::device_buffer second(std::move(first));
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_EQ(first.size_bytes(), 0u);
    EXPECT_EQ(second.data(), at);
    first = std::move(second);
    EXPECT_EQ(first.data(), at);
    first = vmm::device_buffer(pool, MiB, a.get());
    EXPECT_EQ(pool.statistics().live_count, 1u);
    vmm::device_buffer& same = first;
    first = std::move(same);
    EXPECT_NE(first.data(), nullptr);
    vmm::device_buffer none(pool, 0, a.get());
    EXPECT_EQ(none.data(), nullptr);
  }
  EXPECT_EQ(pool.statistics().live_count, 0u);
}

TEST_F(Owners, ArraysHaveATypeAndAStream) {
  vmm::device_array<double> values(pool, 1000, a.get());
  EXPECT_EQ(values.size(), 1000u);
  EXPECT_EQ(values.size_bytes(), 8000u);
  EXPECT_EQ(values.stream(), a.get());
  std::vector<double> host(values.size(), 1.5);
  driver.write(values.data(), host.data(), values.size_bytes());
  std::vector<double> back(values.size());
  driver.read(back.data(), values.data(), values.size_bytes());
  EXPECT_EQ(back, host);
  values.set_stream(b.get());
  values = vmm::device_array<double>();
  EXPECT_EQ(values.data(), nullptr);
  EXPECT_THROW(vmm::device_array<double>(pool, ~std::size_t{0}, a.get()), vmm::out_of_memory);
}

TEST_F(Owners, HandlesAreGivenUp) {
  vmm::driver other("host");
  vmm_driver* const handle = other.release();
  EXPECT_FALSE(other);
  vmm::driver taken;
  taken.reset(handle);
  EXPECT_TRUE(taken);
  other = std::move(taken);
  EXPECT_EQ(other.get(), handle);
}

TEST_F(Owners, APoolThatMovesTakesItsStreamAlong) {
  vmm::pool other(driver);
  const vmm_stream idle = other.idle().get();
  const vmm::stream_resource resource(other);
  pool = std::move(other);  // the old one is destroyed before its own idle stream
  EXPECT_EQ(pool.idle().get(), idle);
  EXPECT_FALSE(other);
  void* const at = resource.allocate_sync(4096);
  EXPECT_EQ(pool.statistics().live_count, 1u);
  resource.deallocate_sync(at, 4096);
}

// What an owner had goes when it takes another's, and not with the other: that may outlive what the
// first was made on.
TEST_F(Owners, WhatWasOwnedGoesAtOnce) {
  vmm::stream kept(driver);
  const vmm_stream gone = kept.get();
  vmm::stream taken(driver);
  kept = std::move(taken);
  EXPECT_EQ(taken.get(), nullptr);
  EXPECT_NE(kept.get(), gone);
  vmm::stream& same = kept;
  kept = std::move(same);
  EXPECT_NE(kept.get(), nullptr);
  vmm::pool other(driver);
  vmm::pool last(driver);
  other = std::move(last);
  EXPECT_FALSE(last);
  EXPECT_EQ(last.idle().get(), nullptr);
  EXPECT_NE(other.idle().get(), nullptr);
  vmm::pool& itself = other;
  other = std::move(itself);
  EXPECT_TRUE(other);
  vmm::manager manager(driver);
  vmm::growing_array<int> one(manager, 1000, a.get());
  vmm::growing_array<int> two(manager, 2000, a.get());
  one = std::move(two);
  EXPECT_EQ(one.size(), 2000u);
  EXPECT_EQ(two.data(), nullptr);
  EXPECT_EQ(manager.statistics().live_count, 1u);
  one.resize(0);
  manager.forget(a.get());
}

TEST(Growing, ArraysKeepTheirContents) {
  vmm::driver driver("host");
  vmm::manager manager(driver);
  vmm::growing_array<int> values(manager, 1000, nullptr);
  manager.synchronize(values.data());
  for (int i = 0; i < 1000; ++i) values.data()[i] = i;
  values.resize(10'000'000);
  EXPECT_EQ(values.data()[999], 999);
  values.data()[9'999'999] = 7;
  vmm::growing_array<int> moved(std::move(values));
  EXPECT_EQ(values.data(), nullptr);
  EXPECT_EQ(moved.data()[9'999'999], 7);
  EXPECT_THROW(moved.resize(~std::size_t{0} / 8), vmm::out_of_memory);
  EXPECT_EQ(moved.size(), 10'000'000u);
  moved.resize(0);
  EXPECT_EQ(moved.data(), nullptr);
  EXPECT_EQ(manager.statistics().live_count, 0u);
  void* const block = manager.allocate(MiB, nullptr, 4 * MiB);
  EXPECT_EQ(manager.resize(block, 3 * MiB), block);
  EXPECT_EQ(manager.try_free(block), VMM_SUCCESS);
}

// ---- what goes wrong ---------------------------------------------------------------------------

TEST_F(Owners, ShortMemoryIsABadAlloc) {
  try {
    (void)pool.allocate(std::uint64_t{1} << 38, a.get());
    FAIL() << "256 GiB were given out";
  } catch (const std::bad_alloc& failure) {
    EXPECT_TRUE(contains(failure.what(), "out_of_memory"));
    const auto* const known = dynamic_cast<const vmm::failure*>(&failure);
    ASSERT_NE(known, nullptr);
    EXPECT_EQ(known->code(), VMM_ERROR_OUT_OF_MEMORY);
    EXPECT_STREQ(known->name(), "VMM_ERROR_OUT_OF_MEMORY");
  }
}

TEST_F(Owners, OtherFailuresAreErrors) {
  try {
    vmm::driver none("nvidia");
    FAIL() << "a driver of that name was opened";
  } catch (const vmm::error& failure) {
    EXPECT_EQ(failure.code(), VMM_ERROR_BAD_OPTION);
    EXPECT_TRUE(contains(failure.what(), "bad_option"));
  }
  int foreign = 0;
  EXPECT_THROW(pool.free(&foreign, nullptr), vmm::error);
}

TEST_F(Owners, NothingIsThrownByTry) {
  void* at = &driver;
  EXPECT_EQ(pool.try_allocate(0, a.get(), at), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(at, nullptr);
  EXPECT_EQ(pool.try_free(&driver, a.get()), VMM_ERROR_UNKNOWN_ADDRESS);
  vmm::driver none;
  EXPECT_EQ(vmm::driver::try_open("nvidia", VMM_ANY_DEVICE, none), VMM_ERROR_BAD_OPTION);
  EXPECT_FALSE(none);
  vmm::pool no_pool;
  EXPECT_EQ(vmm::pool::try_create(none, vmm::pool_options(), no_pool), VMM_ERROR_INVALID_HANDLE);
  vmm::manager no_manager;
  EXPECT_EQ(vmm::manager::try_create(none, vmm::manager_options(), no_manager),
            VMM_ERROR_INVALID_HANDLE);
  vmm::device_buffer kept(pool, MiB, a.get());
  void* const before = kept.data();
  EXPECT_EQ(vmm::device_buffer::try_allocate(pool, std::uint64_t{1} << 38, a.get(), kept),
            VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kept.data(), before);
}

// ---- resources ---------------------------------------------------------------------------------

TEST_F(Resources, InTheOrderOfAStream) {
  const vmm::stream_resource resource(pool);
  const stream_with_get on_a{a.get()};
  const stream_with_value on_b{b.get()};
  void* const first = resource.allocate(on_a, 3 * MiB);
  resource.deallocate(on_a, first, 3 * MiB);
  EXPECT_EQ(resource.allocate_async(3 * MiB, 256, on_a), first) << "reused in the stream's order";
  resource.deallocate_async(first, 3 * MiB, 256, on_a);
  void* const second = resource.allocate_async(100, on_b);
  resource.deallocate_async(second, 100, on_b);
  void* const none = resource.allocate(on_b, 0);
  EXPECT_NE(none, nullptr) << "no bytes have an address, too";
  resource.deallocate(on_b, none, 0);
  for (const std::size_t alignment : {std::size_t{4096}, std::size_t{65536}, 2 * MiB}) {
    void* const aligned = resource.allocate(on_a, 100, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % alignment, 0u);
    resource.deallocate(on_a, aligned, 100, alignment);
  }
  EXPECT_THROW((void)resource.allocate(on_a, 1, 4 * MiB), vmm::error);
  EXPECT_TRUE(resource == vmm::stream_resource(resource));
  vmm::pool other(driver);
  EXPECT_TRUE(resource != vmm::stream_resource(other));
}

TEST_F(Resources, AStreamBehindAnother) {
  void* const used = pool.allocate(3 * MiB, a.get());
  ASSERT_EQ(vmm_driver_fill(driver.get(), used, 1, 3 * MiB, a.get()), VMM_SUCCESS);
  driver.order(a.get(), b.get());
  ASSERT_EQ(vmm_driver_fill(driver.get(), used, 2, 1, b.get()), VMM_SUCCESS);
  driver.synchronize(b.get());
  driver.synchronize(a.get());
  unsigned char byte = 0;
  driver.read(&byte, used, 1);
  EXPECT_EQ(byte, 2);
  pool.free(used, a.get());
}

TEST_F(Resources, WithoutAStream) {
  const vmm::device_resource resource(pool);
  // Memory that another stream's unfinished work may use is waited for.
  void* const used = pool.allocate(3 * MiB, a.get());
  ASSERT_EQ(vmm_driver_fill(driver.get(), used, 1, 3 * MiB, a.get()), VMM_SUCCESS);
  pool.free(used, a.get());
  void* const at = resource.allocate_sync(3 * MiB);
  resource.deallocate_sync(at, 3 * MiB);
  void* const again = resource.allocate(3 * MiB, 512);
  EXPECT_EQ(again, at);
  resource.deallocate(again, 3 * MiB, 512);
  EXPECT_THROW(vmm::host_resource{pool}, vmm::error);
}

TEST(HostResources, HoldTheStandardContainers) {
  vmm::driver driver("host");
  vmm::pool pool(driver);
  EXPECT_THROW(vmm::stream_resource{pool}, vmm::error) << "no memory of a device";
  vmm::pmr_resource resource(pool);
  {
    std::pmr::vector<std::pmr::string> texts(&resource);
    for (int i = 0; i < 1000; ++i) texts.emplace_back(std::string(100, 'x') + std::to_string(i));
    EXPECT_EQ(texts.back().get_allocator().resource(), &resource);
    EXPECT_GE(pool.statistics().live_count, 1000u);
    const std::pmr::vector<std::pmr::string> copy(texts, &resource);
    EXPECT_EQ(copy.back().substr(100), "999");
  }
  EXPECT_EQ(pool.statistics().live_count, 0u);
  const vmm::pmr_resource same(pool);
  EXPECT_TRUE(resource.is_equal(same));
  EXPECT_FALSE(resource.is_equal(*std::pmr::new_delete_resource()));
  EXPECT_THROW((void)resource.allocate(std::size_t{1} << 60), std::bad_alloc);
}

}  // namespace
