// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: at every limit (memory, capacity, descriptors, kernel mappings) the host driver returns the
// right error, changes nothing, and can still release its memory.
// Method: the limits are real ones. Each refusal is compared with the resource counts before it.
#include <sys/resource.h>

#include <cerrno>

#include "facts.hpp"

import vmm.base;

namespace {

using vmm::access, vmm::errc;

vmm::physical_request memory_of(std::uint64_t size_bytes) {
  return {.size_bytes = size_bytes, .where = vmm::host()};
}

TEST(HostLimits, MoreThanTheSystemHasIsRefused) {
  auto driver = open({});
  const auto info = driver.query_memory(vmm::host()).value();
  const auto before = driver.resource_counts();
  // The first could be committed, but not without taking what is kept for the rest of the system.
  const std::uint64_t kept = std::min<std::uint64_t>(256u << 20, info.total_bytes / 16);
  const std::uint64_t sizes[] = {vmm::round_up(info.free_bytes + kept / 2, page),
                                 vmm::round_up(info.total_bytes, page) * 2, 1ull << 50, 1ull << 62,
                                 1ull << 63};
  for (const std::uint64_t size : sizes) {
    const auto made = driver.create(memory_of(size));
    ASSERT_FALSE(made) << size;
    EXPECT_EQ(made.error().code, errc::out_of_memory);
    EXPECT_EQ(made.error().where, vmm::call::create);
  }
  EXPECT_TRUE(before == driver.resource_counts());
}

TEST(HostLimits, CapacityIsKept) {
  auto driver = open({.capacity_bytes = 10 * page});
  EXPECT_EQ(driver.query_memory(vmm::host())->total_bytes, 10 * page);
  const auto first = driver.create(memory_of(6 * page)).value();
  EXPECT_EQ(driver.query_memory(vmm::host())->free_bytes, 4 * page);
  EXPECT_EQ(code_of(driver.create(memory_of(5 * page))), errc::out_of_memory);
  const auto second = driver.create(memory_of(4 * page)).value();
  EXPECT_EQ(code_of(driver.create(memory_of(page))), errc::out_of_memory);
  ASSERT_TRUE(driver.release(first));
  EXPECT_EQ(driver.query_memory(vmm::host())->free_bytes, 6 * page);
  ASSERT_TRUE(driver.release(second));
}

TEST(HostLimits, HugePagesThatAreNotThereAreRefused) {
  auto opened = vmm::host_driver::open({.huge_pages = true});
  if (!opened) GTEST_SKIP() << "no huge pages on this system: " << vmm::describe(opened.error());
  const auto info = opened->query_memory(vmm::host()).value();
  vmm::physical_request request = memory_of(info.free_bytes + (2u << 20));
  for (const auto kind : {vmm::share_kind::none, vmm::share_kind::posix_fd}) {
    request.shareable = kind;
    const auto descriptors = open_descriptors();
    const auto made = opened->create(request);
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(made.error().code, errc::out_of_memory) << vmm::describe(made.error());
  }
  EXPECT_TRUE(opened->resource_counts().empty());
}

TEST(HostLimits, HugePagesThatAreThereServe) {
  auto opened = vmm::host_driver::open({.huge_pages = true});
  if (!opened) GTEST_SKIP() << "no huge pages on this system: " << vmm::describe(opened.error());
  const std::uint64_t size = opened->query_memory(vmm::host())->free_bytes;
  if (size == 0) GTEST_SKIP() << "the pool of huge pages is empty: see vm.nr_hugepages";
  EXPECT_EQ(opened->query_granularity({.where = vmm::host()})->minimum_bytes, 2u << 20);
  EXPECT_EQ(code_of(opened->create(memory_of(size + (64u << 20)))), errc::out_of_memory);
  EXPECT_EQ(opened->query_memory(vmm::host())->free_bytes, size) << "a half commit is undone";
  const auto memory = opened->create(memory_of(size)).value();
  const auto range = opened->reserve({.size_bytes = size}).value();
  ASSERT_TRUE(opened->map({range.base, size, memory, 0}));
  const vmm::access_grant grant{vmm::host(), access::read_write};
  ASSERT_TRUE(opened->set_access(range, {&grant, 1}));
  ASSERT_TRUE(opened->fill({range, 3}));
  ASSERT_TRUE(opened->release(memory));
  ASSERT_TRUE(opened->unmap(range));
  EXPECT_EQ(opened->query_memory(vmm::host())->free_bytes, size);
}

TEST(HostLimits, DescriptorsRunOut) {
  auto driver = open({});
  vmm::physical_request request = memory_of(page);
  request.shareable = vmm::share_kind::posix_fd;
  const auto first = driver.create(request).value();
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{0, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto before = driver.resource_counts();
  const auto made = driver.create(request);
  const auto exported = driver.export_handle(first, vmm::share_kind::posix_fd);
  const auto plain = driver.create(memory_of(page));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(made.error().code, errc::out_of_mappings);
  EXPECT_EQ(made.error().native, EMFILE);
  EXPECT_STREQ(made.error().native_name, "EMFILE");
  EXPECT_EQ(code_of(exported), errc::out_of_mappings);
  ASSERT_FALSE(plain) << "what is available cannot be read";
  EXPECT_EQ(plain.error().code, errc::out_of_mappings);
  EXPECT_EQ(plain.error().native, EMFILE);
  EXPECT_TRUE(before == driver.resource_counts());
  ASSERT_TRUE(driver.release(first));
}

// Maps one page of memory at every `stride`-th page, which the kernel cannot join, until the limit.
std::vector<vmm::address_range> map_to_the_limit(vmm::host_driver& driver, vmm::address_range range,
                                                 vmm::physical_handle memory,
                                                 std::uint64_t stride) {
  std::vector<vmm::address_range> mapped;
  for (std::uint64_t at = 0; at < range.size_bytes; at += stride * page) {
    const vmm::address_range one{range.base + at, page};
    const auto done = driver.map({one.base, page, memory, 0});
    if (done) {
      mapped.push_back(one);
      continue;
    }
    EXPECT_EQ(done.error().code, errc::out_of_mappings) << vmm::describe(done.error());
    EXPECT_STREQ(done.error().native_name, "ENOMEM");
    return mapped;
  }
  ADD_FAILURE() << "the limit was not reached";
  return mapped;
}

TEST(HostLimits, MappingsRunOutAndCanBeUndone) {
  auto driver = open({});
  const std::uint64_t limit = driver.feature_set().max_mapping_count;
  if (limit == 0 || limit > 1'000'000)
    GTEST_SKIP() << "vm.max_map_count is out of this test's reach: " << limit;
  const auto range = driver.reserve({.size_bytes = (limit + 10) * page}).value();
  const auto spread = driver.reserve({.size_bytes = (limit + 10) * page}).value();
  const auto memory = driver.create(memory_of(2 * page)).value();
  for (const auto& [where, stride] :
       {std::pair{range, std::uint64_t{1}}, std::pair{spread, std::uint64_t{2}}}) {
    auto mapped = map_to_the_limit(driver, where, memory, stride);
    EXPECT_GT(mapped.size(), limit / 4);
    const auto before = driver.resource_counts();
    EXPECT_EQ(code_of(driver.map({where.end() + (0 - 2 * page), page, memory, 0})),
              errc::out_of_mappings);
    EXPECT_TRUE(before == driver.resource_counts());
    // The middle first: that is where the kernel has to split.
    std::swap(mapped.front(), mapped[mapped.size() / 2]);
    for (const auto& each : mapped) {
      const auto undone = driver.unmap(each);
      ASSERT_TRUE(undone) << vmm::describe(undone.error());
    }
  }
  ASSERT_TRUE(driver.release(memory));
  ASSERT_TRUE(driver.free_reservation(range));
  ASSERT_TRUE(driver.free_reservation(spread));
  EXPECT_TRUE(driver.resource_counts().empty());
}

// Whether the process may read there, as the kernel sees it.
bool readable(vmm::address at) {
  int ends[2] = {-1, -1};
  if (::pipe(ends) != 0) return false;
  const bool done = ::write(ends[1], at.as<const void>(), 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return done;
}

TEST(HostLimits, RightsAtTheMappingLimitChangeWhollyOrNotAtAll) {
  auto driver = open({});
  const std::uint64_t limit = driver.feature_set().max_mapping_count;
  if (limit == 0 || limit > 1'000'000)
    GTEST_SKIP() << "vm.max_map_count is out of this test's reach: " << limit;
  const auto large = driver.reserve({.size_bytes = 8 * page}).value();
  const auto one = driver.create(memory_of(4 * page)).value();
  const auto two = driver.create(memory_of(4 * page)).value();
  // In this order the kernel cannot join them.
  ASSERT_TRUE(driver.map({large.base, 4 * page, two, 0}));
  ASSERT_TRUE(driver.map({large.base + 4 * page, 4 * page, one, 0}));
  const auto range = driver.reserve({.size_bytes = (limit + 10) * page}).value();
  const auto mapped = map_to_the_limit(driver, range, one, 1);
  const auto before = driver.resource_counts();
  // The first memory whole and a part of the second: the kernel changes the first before it fails
  // on the second.
  const vmm::access_grant grant{vmm::host(), access::read_write};
  const auto changed = driver.set_access({large.base, 6 * page}, {&grant, 1});
  EXPECT_EQ(changed.error().code, errc::out_of_mappings) << vmm::describe(changed.error());
  EXPECT_TRUE(before == driver.resource_counts());
  for (std::uint64_t at = 0; at < large.size_bytes; at += page) {
    EXPECT_EQ(driver.get_access(large.base + at, vmm::host()).value(), access::none);
    EXPECT_FALSE(readable(large.base + at)) << at / page;
  }
  ASSERT_TRUE(driver.unmap({range.base, mapped.size() * page}));
  ASSERT_TRUE(driver.set_access({large.base, 6 * page}, {&grant, 1})) << "with room it works";
  EXPECT_TRUE(readable(large.base));
  EXPECT_FALSE(readable(large.base + 6 * page));
  ASSERT_TRUE(driver.unmap(large));
}

}  // namespace
