// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: allocate and deallocate in the field's shape do what the calls beside them do, for a pool
// and a manager, and say what is wrong with an alignment.
// Method: each alignment there is on both; frees behind a stream's work, seen by the fake driver.
#include <bit>

#include "both.hpp"

namespace {

using vmm::address, vmm::errc;

template <class Allocator>
class Shapes : public both::Both<Allocator> {};
TYPED_TEST_SUITE(Shapes, both::allocators);

TYPED_TEST(Shapes, EveryAlignmentThatThereIs) {
  const std::uint64_t largest = this->is_manager ? 64 * MiB : 2 * MiB;
  std::vector<address> blocks;
  for (std::uint64_t alignment = 1; alignment <= largest; alignment *= 2) {
    const auto at = this->memory->allocate(1000, alignment, this->a);
    ASSERT_TRUE(at) << alignment << ": " << vmm::describe(at.error());
    EXPECT_EQ(at->value % alignment, 0u) << alignment;
    blocks.push_back(*at);
  }
  EXPECT_EQ(this->live_count(), blocks.size());
  std::uint64_t alignment = 1;
  for (const address at : blocks) {
    this->memory->deallocate(at, 1000, alignment, this->a);
    alignment *= 2;
  }
  EXPECT_EQ(this->live_count(), 0u);
}

TYPED_TEST(Shapes, AlignmentsThatCannotBe) {
  for (const std::uint64_t alignment :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{513}, std::uint64_t{768},
        std::numeric_limits<std::uint64_t>::max()}) {
    const auto at = this->memory->allocate(MiB, alignment, this->a);
    ASSERT_EQ(code_of(at), errc::invalid_argument) << alignment;
    const std::string detail = at.error().detail;
    EXPECT_EQ(detail.find("an alignment is a power of two"), 0u) << detail;
    EXPECT_TRUE(detail.ends_with("; not '" + std::to_string(alignment) + "'")) << detail;
  }
  for (const std::uint64_t alignment : {4 * MiB, std::uint64_t{1} << 63}) {
    const auto at = this->memory->allocate(MiB, alignment, this->a);
    if (!at && !this->is_manager) {
      EXPECT_EQ(at.error().code, errc::not_supported);
      EXPECT_TRUE(contains(at.error().detail, "2 MiB"));
    } else if (at) {
      EXPECT_TRUE(this->is_manager) << "a pool has no such alignment";
      this->memory->deallocate(*at, MiB, alignment, this->a);
    } else {
      EXPECT_EQ(at.error().code, errc::invalid_argument) << alignment;
    }
  }
  EXPECT_EQ(this->live_count(), 0u);
}

TYPED_TEST(Shapes, NoBytes) {
  EXPECT_EQ(code_of(this->memory->allocate(0, 256, this->a)), errc::invalid_argument);
}

// What is given back behind unfinished work serves another stream behind that work only: the fake
// driver reports a kernel that would run over it.
TYPED_TEST(Shapes, FreesBehindTheStreamsWork) {
  const auto first = *this->memory->allocate(2 * MiB, 256, this->a);
  this->run(this->a, {first, 2 * MiB});
  this->memory->deallocate(first, 2 * MiB, 256, this->a);
  const auto second = *this->memory->allocate(2 * MiB, 256, this->b);
  this->run(this->b, {second, 2 * MiB});
  this->memory->deallocate(second, 2 * MiB, 256, this->b);
}

TYPED_TEST(Shapes, DriverIsTheOneBelow) {
  EXPECT_EQ(this->memory->driver().name(), this->driver.name());
  EXPECT_EQ(this->memory->driver().home(), this->driver.home());
}

// A driver's failure leaves the block live, to be freed at the end.
TEST(Deallocate, LeavesTheBlockWhereTheDriverCannot) {
  vmm::fake_driver driver;
  const auto stream = *driver.create_stream();
  std::uint64_t live_count = 0;
  {
    vmm::manager_options options;
    options.leak_hook = {[](void* seen, const vmm::live_blocks& left) noexcept {
                           *static_cast<std::uint64_t*>(seen) = left.count;
                         },
                         &live_count};
    vmm::manager memory(driver, options);
    const auto at = *memory.allocate(MiB, 256, stream);
    driver.fail({vmm::call::record_event, 1, false, {errc::device_lost, 1, "INJECTED"}});
    memory.deallocate(at, MiB, 256, stream);
    EXPECT_EQ(memory.statistics().live_count, 1u);
    ASSERT_TRUE(driver.finish_all());
  }
  EXPECT_EQ(live_count, 1u);
  ASSERT_TRUE(driver.destroy_stream(stream));
  EXPECT_TRUE(driver.check_empty()) << driver.report();
}

}  // namespace
