// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: growable ranges through vmm.h do what the header says: they grow in place with zeros, share
// a manager's memory, pin what views show, and refuse every wrong use by a code.
// Method: on the host's memory, read and written directly, and on the simulated device.
#include "bench.hpp"
#include "vmm.h"

namespace {

using c_test::sized, c_test::queried;

struct Growable : c_test::Bench {
  vmm_growable* make(std::uint64_t most, std::uint64_t segments = 1) {
    vmm_growable_options options;
    EXPECT_GOOD(vmm_growable_options_init(&options, sizeof(options)));
    options.segment_bytes_max = most;
    options.segment_count = segments;
    vmm_growable* made = nullptr;
    EXPECT_GOOD(vmm_growable_create(manager, &options, &made));
    return made;
  }
  static vmm_status resize(vmm_growable* range, std::uint64_t size_bytes,
                           std::uint32_t change = VMM_GROWABLE_ANY) {
    auto request = sized<vmm_growable_request>(size_bytes);
    request.change = change;
    return vmm_growable_resize(range, &request);
  }
  static vmm_growable_info info_of(vmm_growable* range) {
    return queried(vmm_growable_query, range);
  }
};

struct GrowableOnHost : Growable {
  void SetUp() override { open("host"); }
};

TEST_F(GrowableOnHost, GrowsInPlaceAndGivesBack) {
  vmm_growable* const range = make(64 * MiB, 3);
  EXPECT_EQ(info_of(range).physical_bytes, 0u);
  ASSERT_GOOD(resize(range, 2 * MiB, VMM_GROWABLE_GROW));
  void* base = nullptr;
  std::uint64_t size_bytes = 0;
  ASSERT_GOOD(vmm_growable_segment(range, 2, &base, &size_bytes));
  EXPECT_EQ(size_bytes, 2 * MiB);
  EXPECT_GOOD(vmm_growable_synchronize(range, nullptr));
  std::memset(base, 7, 2 * MiB);
  ASSERT_GOOD(resize(range, 6 * MiB, VMM_GROWABLE_GROW));
  const auto* const bytes = static_cast<const unsigned char*>(base);
  EXPECT_EQ(bytes[2 * MiB - 1], 7);
  EXPECT_EQ(bytes[2 * MiB], 0);
  const vmm_growable_info info = info_of(range);
  EXPECT_EQ(static_cast<unsigned char*>(info.base) + 2 * info.stride_bytes, base);
  EXPECT_EQ(info.size_bytes, 18 * MiB);
  std::uint64_t count = 0;
  ASSERT_GOOD(vmm_growable_parts(range, 0, nullptr, 0, &count));
  std::vector<vmm_growable_part> pieces(count);
  ASSERT_GOOD(vmm_growable_parts(range, 0, pieces.data(), count, &count));
  std::uint64_t sum_bytes = 0;
  for (const vmm_growable_part& each : pieces) sum_bytes += each.size_bytes;
  EXPECT_EQ(sum_bytes, 6 * MiB);
  EXPECT_FAILS(vmm_manager_free(manager, info.base), VMM_ERROR_IN_USE);
  EXPECT_FAILS(vmm_manager_destroy(manager), VMM_ERROR_IN_USE);
  ASSERT_GOOD(resize(range, 0, VMM_GROWABLE_SHRINK));
  EXPECT_EQ(info_of(range).physical_bytes, 0u);
  EXPECT_GOOD(vmm_growable_validate(range));
  EXPECT_GOOD(vmm_growable_destroy(range, nullptr));
  EXPECT_FAILS(vmm_growable_destroy(range, nullptr), VMM_ERROR_INVALID_HANDLE);
  EXPECT_FAILS(resize(range, MiB), VMM_ERROR_INVALID_HANDLE);
}

TEST_F(Growable, HoldsKeepBytes) {
  vmm_growable* const range = make(64 * MiB);
  ASSERT_GOOD(resize(range, 8 * MiB));
  std::uint64_t pin = 0;
  EXPECT_FAILS(vmm_growable_pin(range, 8 * MiB + 1, 0, 0, &pin), VMM_ERROR_INVALID_ARGUMENT);
  ASSERT_GOOD(vmm_growable_pin(range, 4 * MiB, 0, 0, &pin));
  EXPECT_FAILS(resize(range, 2 * MiB), VMM_ERROR_IN_USE);
  EXPECT_GOOD(resize(range, 4 * MiB));
  EXPECT_FAILS(vmm_growable_destroy(range, nullptr), VMM_ERROR_IN_USE);
  EXPECT_GOOD(vmm_growable_unpin(range, pin));
  EXPECT_FAILS(vmm_growable_unpin(range, pin), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_growable_destroy(range, nullptr));
}

TEST_F(Growable, WrongUsesAreRefused) {
  vmm_growable* made = nullptr;
  auto options = sized<vmm_growable_options>();
  EXPECT_FAILS(vmm_growable_create(manager, &options, &made), VMM_ERROR_BAD_OPTION);
  EXPECT_FAILS(vmm_growable_create(manager, nullptr, &made), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_growable_create(nullptr, &options, &made), VMM_ERROR_INVALID_HANDLE);
  options.segment_bytes_max = MiB;
  options.segment_count = 1;
  options.handle_bytes = 100;
  EXPECT_FAILS(vmm_growable_create(manager, &options, &made), VMM_ERROR_BAD_OPTION);
  options.handle_bytes = 0;
  options.gives_tail = 2;
  EXPECT_FAILS(vmm_growable_create(manager, &options, &made), VMM_ERROR_BAD_OPTION);
  options.gives_tail = 1;
  options.keep_dirty = 2;
  EXPECT_FAILS(vmm_growable_create(manager, &options, &made), VMM_ERROR_BAD_OPTION);
  EXPECT_EQ(made, nullptr);

  vmm_growable* const range = make(8 * MiB, 2);
  EXPECT_FAILS(resize(range, 8 * MiB + 1), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(resize(range, ~std::uint64_t{0}), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(resize(range, MiB, VMM_GROWABLE_SHRINK), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(resize(range, MiB, 3), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_growable_resize(range, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  vmm_growable_request unsized_request{};
  EXPECT_FAILS(vmm_growable_resize(range, &unsized_request), VMM_ERROR_INVALID_ARGUMENT);
  auto request = sized<vmm_growable_request>();
  request.first_segment = 2;
  EXPECT_FAILS(vmm_growable_resize(range, &request), VMM_ERROR_INVALID_ARGUMENT);
  request.first_segment = 0;
  request.size_bytes = MiB;
  request.one_handle = 2;
  EXPECT_FAILS(vmm_growable_resize(range, &request), VMM_ERROR_INVALID_ARGUMENT);
  request.one_handle = 0;
  request.no_wait = 2;
  EXPECT_FAILS(vmm_growable_resize(range, &request), VMM_ERROR_INVALID_ARGUMENT);
  void* at = nullptr;
  std::uint64_t number = 0;
  EXPECT_FAILS(vmm_growable_segment(range, 2, &at, &number), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_growable_segment(range, 0, nullptr, &number), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_growable_parts(range, 0, nullptr, 1, &number), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_growable_pin(range, 0, 0, 0, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  auto info = sized<vmm_growable_info>();
  EXPECT_FAILS(vmm_growable_query(reinterpret_cast<vmm_growable*>(manager), &info),
               VMM_ERROR_INVALID_HANDLE);
  EXPECT_EQ(info_of(range).size_bytes, 0u);
  EXPECT_GOOD(vmm_growable_destroy(range, nullptr));
  EXPECT_GOOD(vmm_growable_destroy(nullptr, nullptr));
}

}  // namespace
