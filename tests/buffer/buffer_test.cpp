// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a buffer owns its block, frees it once and on its stream, and a failed call changes
// nothing, over a pool, a manager and an allocator of the program's own.
// Method: every operation on both; moves and swaps with the live blocks counted; an allocator that
// records its calls and fails on request.
#include "both.hpp"

import vmm.containers;

namespace {

using vmm::address, vmm::allocator_ref, vmm::device_array, vmm::device_buffer, vmm::errc;

static_assert(vmm::stream_allocator<vmm::stream_pool> && vmm::stream_allocator<vmm::manager>);
static_assert(vmm::stream_allocator<allocator_ref> && vmm::stream_allocator<const allocator_ref>);
static_assert(!vmm::stream_allocator<vmm::fake_driver>);
static_assert(!std::is_copy_constructible_v<device_buffer> &&
              !std::is_copy_assignable_v<device_buffer>);
static_assert(std::is_nothrow_move_constructible_v<device_buffer> &&
              std::is_nothrow_move_assignable_v<device_buffer>);
static_assert(std::is_nothrow_move_constructible_v<device_array<int>>);

template <class Allocator>
class Buffer : public both::Both<Allocator> {};
TYPED_TEST_SUITE(Buffer, both::allocators);

TYPED_TEST(Buffer, OwnsABlockForItsLife) {
  {
    auto made = device_buffer::allocate(*this->memory, 3 * MiB, this->a);
    ASSERT_TRUE(made) << vmm::describe(made.error());
    EXPECT_TRUE(made->data_address());
    EXPECT_EQ(made->data(), made->data_address().template as<void>());
    EXPECT_EQ(made->size_bytes(), 3 * MiB);
    EXPECT_EQ(made->alignment_bytes(), device_buffer::alignment_bytes_default);
    EXPECT_EQ(made->data_address().value % device_buffer::alignment_bytes_default, 0u);
    EXPECT_EQ(made->stream(), this->a);
    EXPECT_TRUE(made->memory() == allocator_ref(*this->memory));
    EXPECT_EQ(&made->memory().driver(), &this->memory->driver());
    EXPECT_EQ(this->live_count(), 1u);
    this->run(this->a, {made->data_address(), made->size_bytes()});
  }
  EXPECT_EQ(this->live_count(), 0u);
}

TYPED_TEST(Buffer, NoBytesAreNoBlock) {
  const device_buffer none(*this->memory);
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.data_address());
  EXPECT_EQ(none.data(), nullptr);
  auto made = *device_buffer::allocate(*this->memory, 0, this->a);
  EXPECT_TRUE(made.empty());
  EXPECT_EQ(this->live_count(), 0u);
  made.reset();
  EXPECT_EQ(made.release(), address{});
}

TYPED_TEST(Buffer, RefusesWhatTheAllocatorRefuses) {
  EXPECT_EQ(code_of(device_buffer::allocate(*this->memory, MiB, this->a, 3)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(device_buffer::allocate(*this->memory, MiB, this->a, 0)),
            errc::invalid_argument);
  for (const std::uint64_t bad : {std::uint64_t{0}, std::uint64_t{3}}) {
    EXPECT_EQ(code_of(device_buffer::allocate(*this->memory, 0, this->a, bad)),
              errc::invalid_argument)
        << bad << ": of no bytes, too";
  }
  EXPECT_NE(code_of(device_buffer::allocate(*this->memory, std::uint64_t{1} << 60, this->a)),
            errc::none);
  EXPECT_EQ(this->live_count(), 0u);
}

TYPED_TEST(Buffer, MovesItsBlock) {
  auto first = *device_buffer::allocate(*this->memory, MiB, this->a);
  const address at = first.data_address();
  device_buffer second(std::move(first));
  EXPECT_EQ(second.data_address(), at);
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(first.stream(), this->a);
  auto third = *device_buffer::allocate(*this->memory, 2 * MiB, this->b, 512);
  EXPECT_EQ(this->live_count(), 2u);
  third = std::move(second);
  EXPECT_EQ(this->live_count(), 1u) << "what was there is freed at once";
  EXPECT_EQ(third.data_address(), at);
  EXPECT_EQ(third.size_bytes(), MiB);
  EXPECT_EQ(third.alignment_bytes(), device_buffer::alignment_bytes_default);
  EXPECT_EQ(third.stream(), this->a);
  device_buffer& same = third;
  third = std::move(same);
  EXPECT_EQ(third.data_address(), at) << "assigned to itself";
}

TYPED_TEST(Buffer, Swaps) {
  auto first = *device_buffer::allocate(*this->memory, MiB, this->a);
  auto second = *device_buffer::allocate(*this->memory, 2 * MiB, this->b, 512);
  const address at[] = {first.data_address(), second.data_address()};
  swap(first, second);
  EXPECT_EQ(first.data_address(), at[1]);
  EXPECT_EQ(first.size_bytes(), 2 * MiB);
  EXPECT_EQ(first.stream(), this->b);
  EXPECT_EQ(first.alignment_bytes(), 512u);
  EXPECT_EQ(second.data_address(), at[0]);
  EXPECT_EQ(this->live_count(), 2u);
}

TYPED_TEST(Buffer, ReleasesItsBlockToTheCaller) {
  auto made = *device_buffer::allocate(*this->memory, MiB, this->a);
  const address at = made.release();
  EXPECT_TRUE(made.empty());
  made.reset();
  EXPECT_EQ(this->live_count(), 1u);
  made.memory().deallocate(at, MiB, made.alignment_bytes(), this->a);
  EXPECT_EQ(this->live_count(), 0u);
}

// The kernel runs on b, so that freeing on a would let the next block's kernel race with it.
TYPED_TEST(Buffer, FreesOnTheStreamThatWasSet) {
  auto made = *device_buffer::allocate(*this->memory, 2 * MiB, this->a);
  const vmm::address_range block{made.data_address(), made.size_bytes()};
  const auto point = *this->driver.create_event();
  ASSERT_TRUE(this->driver.record_event(point, this->a));
  ASSERT_TRUE(this->driver.wait_event(this->b, point));
  this->run(this->b, block);
  made.set_stream(this->b);
  EXPECT_EQ(made.stream(), this->b);
  made.reset();
  EXPECT_TRUE(made.empty());
  auto next = *device_buffer::allocate(*this->memory, 2 * MiB, this->a);
  this->run(this->a, {next.data_address(), next.size_bytes()});
  ASSERT_TRUE(this->driver.destroy_event(point));
}

TYPED_TEST(Buffer, ResizesWhereTheAllocatorCan) {
  auto made = *device_buffer::allocate(*this->memory, MiB, this->a);
  EXPECT_EQ(made.memory().can_resize(), this->is_manager);
  const address before = made.data_address();
  const vmm::status grown = made.resize(64 * MiB);
  if (this->is_manager) {
    ASSERT_TRUE(grown) << vmm::describe(grown.error());
    EXPECT_EQ(made.size_bytes(), 64 * MiB);
    EXPECT_TRUE(made.data_address());
  } else {
    ASSERT_EQ(code_of(grown), errc::not_supported);
    EXPECT_TRUE(contains(grown.error().detail, "manager"));
    EXPECT_EQ(made.size_bytes(), MiB);
    EXPECT_EQ(made.data_address(), before);
  }
  EXPECT_TRUE(made.resize(made.size_bytes())) << "nothing to do";
  EXPECT_EQ(this->live_count(), 1u);
  EXPECT_TRUE(made.resize(0));
  EXPECT_TRUE(made.empty());
  EXPECT_EQ(this->live_count(), 0u);
  EXPECT_TRUE(made.resize(MiB)) << "without a block it allocates";
  EXPECT_EQ(made.size_bytes(), MiB);
}

TYPED_TEST(Buffer, FailedResizeChangesNothing) {
  auto made = *device_buffer::allocate(*this->memory, MiB, this->a);
  const address before = made.data_address();
  EXPECT_FALSE(made.resize(std::uint64_t{1} << 60));
  EXPECT_EQ(made.data_address(), before);
  EXPECT_EQ(made.size_bytes(), MiB);
  EXPECT_EQ(this->live_count(), 1u);
}

TYPED_TEST(Buffer, ArrayOfElements) {
  auto made = device_array<double>::allocate(*this->memory, 1000, this->a);
  ASSERT_TRUE(made) << vmm::describe(made.error());
  EXPECT_EQ(made->size(), 1000u);
  EXPECT_EQ(made->size_bytes(), 8000u);
  EXPECT_EQ(address::from_native(made->data()), made->data_address());
  device_array<double> other(*this->memory, this->b);
  EXPECT_TRUE(other.empty());
  other.swap(*made);
  EXPECT_EQ(other.size(), 1000u);
  other.set_stream(this->a);
  const device_buffer bytes = other.release();
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(bytes.size_bytes(), 8000u);
  EXPECT_EQ(this->live_count(), 1u);
}

TYPED_TEST(Buffer, ArrayThatFitsNoAddressSpace) {
  constexpr std::uint64_t most = ~std::uint64_t{0};
  EXPECT_EQ(code_of(device_array<double>::allocate(*this->memory, most / 8 + 1, this->a)),
            errc::invalid_argument);
  auto made = *device_array<double>::allocate(*this->memory, 10, this->a);
  EXPECT_EQ(code_of(made.resize(most)), errc::invalid_argument);
  EXPECT_EQ(made.size(), 10u);
}

struct alignas(1024) wide {
  char bytes[1024];
};

TYPED_TEST(Buffer, ArrayKeepsTheAlignmentOfItsElements) {
  auto made = *device_array<wide>::allocate(*this->memory, 3, this->a);
  EXPECT_EQ(made.data_address().value % 1024, 0u);
}

TYPED_TEST(Buffer, AnArrayMadeEmptyAsksForTheAlignmentOfItsElements) {
  const auto off = *this->memory->allocate(512, std::uint64_t{256}, this->a);
  {
    device_array<wide> made(*this->memory, this->a);
    ASSERT_TRUE(made.resize(3));
    EXPECT_EQ(made.data_address().value % 1024, 0u);
  }
  this->memory->deallocate(off, 512, 256, this->a);
}

TYPED_TEST(Buffer, AReferenceRefusesWhatItsAllocatorRefuses) {
  const allocator_ref memory(*this->memory);
  const auto at = *memory.allocate(MiB, 256, this->a);
  const errc refused = this->is_manager ? errc::invalid_argument : errc::not_supported;
  EXPECT_EQ(code_of(memory.resize(at, 0)), refused) << "no bytes";
  const errc nowhere = this->is_manager ? errc::unknown_address : errc::not_supported;
  EXPECT_EQ(code_of(memory.resize(address{}, MiB)), nowhere);
  EXPECT_EQ(code_of(memory.synchronize(address{}, this->a)),
            this->is_manager ? errc::unknown_address : errc::none)
      << "a pool waits for the stream";
  memory.deallocate(at, MiB, 256, this->a);
}

// ---- an allocator of the program's own -----------------------------------------------

// Forwards to a pool, and refuses what does not fit its limit.
class limited {
 public:
  limited(vmm::stream_pool& below, std::uint64_t limit_bytes)
      : below_(below), left_bytes_(limit_bytes) {}
  vmm::result<address> allocate(std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                                vmm::stream_handle stream) {
    if (size_bytes > left_bytes_) return vmm::refuse(errc::over_budget, "the limit is reached");
    const auto at = below_.allocate(size_bytes, alignment_bytes, stream);
    if (at) left_bytes_ -= size_bytes;
    return at;
  }
  void deallocate(address at, std::uint64_t size_bytes, std::uint64_t alignment_bytes,
                  vmm::stream_handle stream) noexcept {
    left_bytes_ += size_bytes;
    alignments.push_back(alignment_bytes);
    below_.deallocate(at, size_bytes, alignment_bytes, stream);
  }
  vmm::driver_interface& driver() const noexcept { return below_.driver(); }

  [[nodiscard]] std::uint64_t left_bytes() const { return left_bytes_; }
  std::vector<std::uint64_t> alignments;

 private:
  vmm::stream_pool& below_;
  std::uint64_t left_bytes_;
};

TEST(OwnAllocator, GetsBackWhatItGave) {
  vmm::fake_driver driver;
  vmm::stream_pool pool(driver);
  limited memory(pool, 3 * MiB);
  {
    auto made = *device_buffer::allocate(memory, 2 * MiB, {}, 64);
    EXPECT_EQ(made.memory().users(), nullptr) << "it does not count its users";
    EXPECT_EQ(memory.left_bytes(), MiB);
    EXPECT_EQ(code_of(device_buffer::allocate(memory, 2 * MiB, {})), errc::over_budget);
    EXPECT_EQ(code_of(made.resize(MiB)), errc::not_supported);
    EXPECT_TRUE(made.memory().synchronize(made.data_address(), {}));
  }
  EXPECT_EQ(memory.left_bytes(), 3 * MiB);
  EXPECT_EQ(memory.alignments, std::vector<std::uint64_t>{64});
  EXPECT_EQ(pool.statistics().live_count, 0u);
}

// ---- `synchronize`-------------------------------------------------------------------------

TYPED_TEST(Buffer, SynchronizeWaitsForEarlierWork) {
  auto first = *device_buffer::allocate(*this->memory, 2 * MiB, this->a);
  this->run(this->a, {first.data_address(), 2 * MiB});
  first.reset();
  auto second = *device_buffer::allocate(*this->memory, 2 * MiB, this->a);
  const auto point = *this->driver.create_event();
  ASSERT_TRUE(this->driver.record_event(point, this->a));
  ASSERT_FALSE(*this->driver.query_event(point)) << "the earlier kernel runs";
  ASSERT_TRUE(second.memory().synchronize(second.data_address(), second.stream()));
  const std::vector<std::byte> bytes(64);
  EXPECT_TRUE(this->driver.write(second.data_address(), bytes)) << "a race would be a misuse";
  ASSERT_TRUE(this->driver.finish_all());
  ASSERT_TRUE(this->driver.destroy_event(point));
}

}  // namespace
