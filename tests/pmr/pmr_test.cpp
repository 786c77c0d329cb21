// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: containers of the standard library live in memory of a pool or manager, get only
// std::bad_alloc without memory, and are refused if the host cannot touch the memory.
// Method: a std::pmr::vector, map and string on the host driver, compared element by element;
// budgets and alignments that cannot be met; the fake driver, whose memory is not for the host.
#include <memory_resource>
#include <new>
#include <numeric>

#include "../support/test.h"

import vmm.containers;
import vmm.fake;
import vmm.host;
import vmm.manager;
import vmm.stream;

namespace {

using vmm::errc, vmm::host_memory_resource;

template <class Allocator>
struct Pmr : testing::Test {
  using options_type = std::conditional_t<std::is_same_v<Allocator, vmm::manager>,
                                          vmm::manager_options, vmm::pool_options>;
  void open(const options_type& options = {}) {
    memory.emplace(driver, options);
    auto opened = host_memory_resource::open(*memory);
    ASSERT_TRUE(opened) << vmm::describe(opened.error());
    resource.emplace(*opened);
  }
  void TearDown() override {
    EXPECT_EQ(memory->statistics().live_count, 0u);
    resource.reset();
    memory.reset();
  }
  vmm::host_driver driver = vmm::host_driver::open().value();
  std::optional<Allocator> memory;
  std::optional<host_memory_resource> resource;
};
using allocators = testing::Types<vmm::stream_pool, vmm::manager>;
TYPED_TEST_SUITE(Pmr, allocators);

TYPED_TEST(Pmr, VectorOfNumbers) {
  this->open();
  std::pmr::vector<std::uint64_t> numbers(&*this->resource);
  for (std::uint64_t i = 0; i < 100'000; ++i) numbers.push_back(i * i);
  for (std::uint64_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], i * i);
  EXPECT_EQ(this->memory->statistics().live_count, 1u) << "what it grew out of is freed";
}

TYPED_TEST(Pmr, ContainersOfContainersOverAPoolOfTheLibrary) {
  this->open();
  {
    std::pmr::monotonic_buffer_resource small(&*this->resource);
    std::pmr::map<int, std::pmr::vector<std::pmr::string>> texts(&small);
    for (int i = 0; i < 200; ++i)
      texts[i % 20].emplace_back(std::string(static_cast<std::size_t>(40 + i), 'a'));
    ASSERT_EQ(texts.size(), 20u);
    for (const auto& [key, list] : texts) {
      ASSERT_EQ(list.size(), 10u);
      EXPECT_EQ(list.back().size(), static_cast<std::size_t>(40 + 180 + key));
    }
    EXPECT_GT(this->memory->statistics().live_count, 0u);
  }
  EXPECT_EQ(this->memory->statistics().live_count, 0u);
}

TYPED_TEST(Pmr, RequestsOfNoBytes) {
  this->open();
  void* const none = this->resource->allocate(0, 1);
  EXPECT_NE(none, nullptr);
  this->resource->deallocate(none, 0, 1);
}

TYPED_TEST(Pmr, ThrowsBadAllocOnly) {
  typename TestFixture::options_type options;
  options.budget_bytes = 4 * MiB;
  this->open(options);
  EXPECT_THROW((void)this->resource->allocate(64 * MiB, 64), std::bad_alloc) << "over the budget";
  EXPECT_THROW((void)this->resource->allocate(~std::size_t{0} / 2, 64), std::bad_alloc);
  void* const after = this->resource->allocate(MiB, 64);
  this->resource->deallocate(after, MiB, 64);
  std::pmr::vector<char> held(&*this->resource);
  EXPECT_THROW(held.resize(64 * MiB), std::bad_alloc);
  EXPECT_TRUE(held.empty());
}

TYPED_TEST(Pmr, Alignments) {
  this->open();
  for (std::size_t alignment = 1; alignment <= 2 * MiB; alignment *= 2) {
    void* const at = this->resource->allocate(100, alignment);
    EXPECT_EQ(vmm::address::from_native(at).value % alignment, 0u);
    this->resource->deallocate(at, 100, alignment);
  }
  if (std::is_same_v<TypeParam, vmm::stream_pool>)
    EXPECT_THROW((void)this->resource->allocate(100, 4 * MiB), std::bad_alloc);
}

TYPED_TEST(Pmr, EqualityIsThatOfTheAllocator) {
  this->open();
  const host_memory_resource same(*this->resource);
  EXPECT_TRUE(this->resource->is_equal(same));
  TypeParam other_memory(this->driver);
  const auto other = host_memory_resource::open(other_memory);
  EXPECT_FALSE(this->resource->is_equal(*other));
  EXPECT_FALSE(this->resource->is_equal(*std::pmr::new_delete_resource()));
  std::pmr::vector<int> first({1, 2, 3}, &*this->resource);
  std::pmr::vector<int> second(std::move(first), &*this->resource);
  EXPECT_EQ(second, (std::pmr::vector<int>{1, 2, 3}));
}

TEST(PmrRefused, WhereTheHostCannotTouchMemory) {
  vmm::fake_driver driver;
  vmm::stream_pool pool(driver);
  vmm::manager manager(driver);
  for (const vmm::allocator_ref memory : {vmm::allocator_ref(pool), vmm::allocator_ref(manager)}) {
    const auto opened = host_memory_resource::open(memory);
    EXPECT_EQ(opened.error().code, errc::not_supported);
    const std::string text = opened.error().detail;
    EXPECT_TRUE(contains(text, "the host cannot access"));
    EXPECT_TRUE(contains(text, "host driver")) << "says what to do: " << text;
  }
}

}  // namespace
