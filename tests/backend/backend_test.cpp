// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the vocabulary of vmm.backend means what its comments say.
// Method: each conversion and parser against values worked out by hand.
#include <new>

#include "../support/test.h"

import vmm.backend;
import vmm.base;

namespace {

TEST(Result, HoldsAValueOrAnError) {
  const vmm::result<int> value = 7;
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(*value, 7);
  const vmm::result<int> failure = vmm::refuse(vmm::errc::out_of_memory, "no");
  ASSERT_FALSE(failure.has_value());
  EXPECT_EQ(failure.error().code, vmm::errc::out_of_memory);
  EXPECT_EQ(failure.value_or(3), 3);
}

// The number of leading bytes that a success writes and is recognised by.
template <class T, class... Value>
std::size_t success_bytes(Value... value) {
  alignas(T) std::array<std::byte, sizeof(T)> room;
  room.fill(std::byte{0xab});
  new (room.data()) T(value...);
  const auto written = std::find_if(room.rbegin(), room.rend(),
                                    [](std::byte each) { return each != std::byte{0xab}; });
  return static_cast<std::size_t>(room.rend() - written);
}

TEST(Result, ASuccessWritesItsArenaAlone) {
  EXPECT_LE(success_bytes<vmm::status>(), 8u);
  EXPECT_LE(success_bytes<vmm::result<vmm::address>>(vmm::address{7}), 16u);
  EXPECT_GT(sizeof(vmm::status), sizeof(vmm::error)) << "the size of an error does not change "
                                                        "that of a success";
}

TEST(ResultDeathTest, AskingForWhatIsNotThereDies) {
  const vmm::result<int> failure = vmm::refuse(vmm::errc::out_of_memory, "no");
  EXPECT_DEATH((void)failure.value(), "value\\(\\) of a result that holds an error");
  const vmm::result<int> value = 7;
  EXPECT_DEATH((void)value.error(), "error\\(\\) of a result that holds a value");
  EXPECT_DEATH((void)vmm::status{vmm::error{}}, "error without a code");
}

TEST(Error, WrongAddressesAndShortages) {
  int wrong_count = 0;
  int short_count = 0;
  for (int i = 0; i <= static_cast<int>(vmm::errc::internal); ++i) {
    const auto code = static_cast<vmm::errc>(i);
    wrong_count += vmm::is_wrong_address(code);
    short_count += vmm::is_shortage(code);
    EXPECT_FALSE(vmm::is_wrong_address(code) && vmm::is_shortage(code)) << vmm::name_of(code);
  }
  EXPECT_EQ(wrong_count, 3);
  EXPECT_EQ(short_count, 3);
  EXPECT_TRUE(vmm::is_wrong_address(vmm::errc::not_allocated));
}

TEST(Conversions, PointersAndAddresses) {
  float local[4] = {1, 2, 3, 4};
  const vmm::address at = vmm::address::from_native(local);
  EXPECT_EQ(at.as<float>(), local);
  EXPECT_EQ(*(at + 2 * sizeof(float)).as<const float>(), 3);
  const volatile float& fixed = local[1];
  EXPECT_EQ(vmm::address::from_native(&fixed), at + sizeof(float));
  EXPECT_EQ(vmm::address::from_native(nullptr), vmm::address{});
  EXPECT_EQ(vmm::address{}.as<void>(), nullptr);
}

struct native_stream_record;

TEST(Conversions, StreamsOfEveryPointerType) {
  int record = 0;
  auto* const native = reinterpret_cast<native_stream_record*>(&record);
  const vmm::stream_handle stream = vmm::stream_from_native(native);
  EXPECT_EQ(vmm::native_stream<native_stream_record*>(stream), native);
  EXPECT_EQ(vmm::native_stream<void*>(stream), static_cast<void*>(&record));
  EXPECT_EQ(vmm::stream_from_native(static_cast<native_stream_record*>(nullptr)),
            vmm::stream_handle::default_stream);
  EXPECT_EQ(vmm::native_stream<void*>(vmm::stream_handle::default_stream), nullptr);
  auto* const per_thread = reinterpret_cast<native_stream_record*>(std::uintptr_t{2});
  EXPECT_EQ(vmm::stream_from_native(per_thread), vmm::stream_handle{2});
}

template <class T>
concept converts_to_stream = requires(T native) { vmm::stream_from_native(native); };
static_assert(converts_to_stream<void*> && converts_to_stream<native_stream_record*>);
static_assert(!converts_to_stream<int> && !converts_to_stream<vmm::address>);

TEST(Error, IsDescribedInOneLine) {
  const vmm::error failure{vmm::errc::out_of_memory, vmm::call::create, 2,
                           "CUDA_ERROR_OUT_OF_MEMORY", "trim first"};
  EXPECT_EQ(vmm::describe(failure),
            "out of memory in create (CUDA_ERROR_OUT_OF_MEMORY 2): trim first");
  EXPECT_EQ(vmm::describe(vmm::refuse(vmm::errc::overlap, "")), "overlap");
}

TEST(Error, EveryCallAndCodeHasAName) {
  for (std::size_t i = 0; i < vmm::call_count; ++i)
    EXPECT_STRNE(vmm::name_of(static_cast<vmm::call>(i)), "unknown call") << i;
  EXPECT_STREQ(vmm::name_of(vmm::call::unbind_multicast), "unbind_multicast");
  for (int i = 0; i <= static_cast<int>(vmm::errc::internal); ++i)
    EXPECT_STRNE(vmm::name_of(static_cast<vmm::errc>(i)), "unknown error code") << i;
}

TEST(Environment, ParsesByteCounts) {
  EXPECT_EQ(vmm::parse_bytes("0"), 0u);
  EXPECT_EQ(vmm::parse_bytes("0.0KiB"), 0u);
  EXPECT_FALSE(vmm::parse_bytes("0.0001KiB")) << "0 may stand for no limit";
  EXPECT_EQ(vmm::parse_bytes("1536"), 1536u);
  EXPECT_EQ(vmm::parse_bytes("64KiB"), 65536u);
  EXPECT_EQ(vmm::parse_bytes("20MB"), 20'000'000u);
  EXPECT_EQ(vmm::parse_bytes("20M"), 20u << 20);
  EXPECT_EQ(vmm::parse_bytes("8TiB"), 8ull << 40);
  EXPECT_EQ(vmm::parse_bytes("9223372036854775807"), (std::uint64_t{1} << 63) - 1);
  EXPECT_EQ(vmm::parse_bytes("8388607TiB"), 8388607ull << 40);
  EXPECT_EQ(vmm::parse_bytes("64PiB"), 64ull << 50);
  EXPECT_EQ(vmm::parse_bytes("1.5GiB"), 3ull << 29);
  EXPECT_EQ(vmm::parse_bytes("0.29KB"), 290u);
  EXPECT_EQ(vmm::parse_bytes("8191.999999999999999999PiB"), (8192ull << 50) - 1);
  EXPECT_EQ(vmm::parse_bytes("23.679993152618408203125gib"), 25426199040u);
  for (const char* same : {"24GiB", "24gib", "24 GiB", " 24 g ", "24G", "25769803776", "24.0GIB",
                           "25769803776 B", "024GiB"})
    EXPECT_EQ(vmm::parse_bytes(same), 24ull << 30) << same;
  for (const char* large :
       {"9223372036854775808", "8388608TiB", "8192PiB", "8EiB", "99999999999999999999"})
    EXPECT_FALSE(vmm::parse_bytes(large).has_value()) << large;
  for (const char* bad : {"", " ", "MB", "-1", "+1", "1.5", "1.5B", "1.GiB", ".5GiB", "1,5GiB",
                          "1 1GiB", "1e9", "0x10", "1GiBs", "1Gi B", "inf", "nan", "1x"}) {
    EXPECT_FALSE(vmm::parse_bytes(bad).has_value()) << bad;
  }
}

TEST(Environment, RefusesWhatItCannotRead) {
  double ratio = 0.25;
  ::unsetenv("VMM_TEST_RATIO");
  EXPECT_TRUE(vmm::read_number_option("VMM_TEST_RATIO", ratio, "detail"));
  EXPECT_EQ(ratio, 0.25);
  ::setenv("VMM_TEST_RATIO", "0.5", 1);
  EXPECT_TRUE(vmm::read_number_option("VMM_TEST_RATIO", ratio, "detail"));
  EXPECT_EQ(ratio, 0.5);
  for (const char* bad : {"half", "0.5x", "nan", "inf", " 0.5"}) {
    ::setenv("VMM_TEST_RATIO", bad, 1);
    const vmm::status read =
        vmm::read_number_option("VMM_TEST_RATIO", ratio, "VMM_TEST_RATIO takes a number");
    ASSERT_FALSE(read) << bad;
    EXPECT_EQ(read.error().code, vmm::errc::bad_option);
    EXPECT_EQ(std::string(read.error().detail),
              "VMM_TEST_RATIO takes a number; not '" + std::string(bad) + "'");
  }
  EXPECT_EQ(ratio, 0.5);
  bool flag = false;
  ::setenv("VMM_TEST_SWITCH", "on", 1);
  EXPECT_TRUE(vmm::read_switch_option("VMM_TEST_SWITCH", flag, "detail"));
  EXPECT_TRUE(flag);
  ::setenv("VMM_TEST_SWITCH", "yes", 1);
  EXPECT_FALSE(vmm::read_switch_option("VMM_TEST_SWITCH", flag, "detail"));
  EXPECT_EQ(std::string(vmm::refuse_variable("VMM_TEST_SWITCH", "on or off").detail),
            "on or off; not 'yes'");
  EXPECT_EQ(std::string(vmm::refuse_value(std::string(70, 'x'), "short").detail),
            "short; not '" + std::string(60, 'x') + "...'");
}

TEST(Environment, TextIsTakenAsItIs) {
  std::string_view text = "before";
  ::unsetenv("VMM_TEST_TEXT");
  vmm::read_text_option("VMM_TEST_TEXT", text);
  EXPECT_EQ(text, "before");
  ::setenv("VMM_TEST_TEXT", "", 1);
  vmm::read_text_option("VMM_TEST_TEXT", text);
  EXPECT_EQ(text, "before");
  ::setenv("VMM_TEST_TEXT", "fake:host", 1);
  vmm::read_text_option("VMM_TEST_TEXT", text);
  EXPECT_EQ(text, "fake:host");
}

TEST(AddressRange, KnowsItsBounds) {
  constexpr vmm::address_range range{vmm::address{100}, 50};
  EXPECT_TRUE(range.contains(vmm::address{100}));
  EXPECT_TRUE(range.contains(vmm::address{149}));
  EXPECT_FALSE(range.contains(vmm::address{150}));
  // A range that a program made up: its end wraps to 0, which is below the end of any range.
  constexpr vmm::address_range wrapped{vmm::address{~std::uint64_t{0} - 49}, 50};
  EXPECT_FALSE(range.contains(wrapped));
  EXPECT_FALSE(range.contains(vmm::address_range{vmm::address{120}, ~std::uint64_t{0} - 10}));
  // One that ends with the address space has its addresses.
  EXPECT_TRUE(wrapped.contains(vmm::address{~std::uint64_t{0}}));
  EXPECT_TRUE(wrapped.contains(wrapped));
  EXPECT_TRUE(range.overlaps({vmm::address{149}, 1}));
  EXPECT_FALSE(range.overlaps({vmm::address{150}, 1}));
  EXPECT_EQ(vmm::round_up(101, 2), 102u);
  EXPECT_EQ(vmm::round_up(0, 2), 0u);
}

}  // namespace
