// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the contract stand on: a fresh driver object for each, short words for making
// things, and a teardown that gives them back.
#pragma once

#include "conformance.h"

import vmm.base;

namespace conformance {

using vmm::access, vmm::address, vmm::address_range, vmm::errc, vmm::physical_handle;

template <class T>
errc code_of(const vmm::result<T>& answer) {
  return answer ? errc::none : answer.error().code;
}

/// The call was refused with one of the codes that the contract names, and says which call it was.
template <class T>
::testing::AssertionResult refused(const vmm::result<T>& answer, vmm::call where,
                                   std::initializer_list<errc> codes) {
  if (answer) return ::testing::AssertionFailure() << "success, where a refusal was due";
  const vmm::error& failure = answer.error();
  if (std::find(codes.begin(), codes.end(), failure.code) == codes.end())
    return ::testing::AssertionFailure() << "another refusal: " << vmm::describe(failure);
  if (failure.where != where)
    return ::testing::AssertionFailure() << "names another call: " << vmm::describe(failure);
  return ::testing::AssertionSuccess();
}

template <class T>
::testing::AssertionResult fine(const vmm::result<T>& answer) {
  if (answer) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << vmm::describe(answer.error());
}

class Conformance : public ::testing::TestWithParam<tested_backend> {
 public:
  vmm::driver_interface& driver() const { return made_->driver(); }
  /// What the type has, and of it what the object can do.
  const refinements& has() const { return GetParam().has; }
  const vmm::features& can() const { return driver().feature_set(); }
  bool has_streams_here() const { return has().streams && can().streams; }
  bool has_bytes_here() const { return has().bytes && can().copy; }
  const conformance::unseen& unseen() const { return unseen_; }
  std::uint64_t unit() const { return unit_; }
  vmm::location home() const { return driver().home(); }

  // ---- making things that teardown gives back ----

  address_range reserved(std::uint64_t units, address hint = {}) {
    const auto range = driver().reserve({units * unit(), 0, hint});
    EXPECT_TRUE(fine(range));
    if (!range) return {};
    ranges_.push_back(*range);
    return *range;
  }
  physical_handle created(std::uint64_t units) { return created(request(units)); }
  physical_handle created(const vmm::physical_request& wanted) {
    const auto handle = driver().create(wanted);
    EXPECT_TRUE(fine(handle));
    if (!handle) return physical_handle::none;
    handles_.push_back(*handle);
    return *handle;
  }
  vmm::physical_request request(std::uint64_t units) {
    vmm::physical_request wanted{};
    wanted.size_bytes = units * unit();
    wanted.where = home();
    return wanted;
  }
  address_range slots(address_range range, std::uint64_t first, std::uint64_t units) {
    return {range.base + first * unit(), units * unit()};
  }
  /// A whole handle, without rights.
  void mapped(address_range where, physical_handle handle) {
    ASSERT_TRUE(fine(driver().map({where.base, where.size_bytes, handle, 0})));
    mappings_.push_back(where);
  }
  /// A whole handle with all rights for home().
  void usable(address_range where, physical_handle handle) {
    mapped(where, handle);
    ASSERT_TRUE(fine(rights(where, access::read_write)));
  }
  void noted(address_range where) { mappings_.push_back(where); }
  void adopted(physical_handle handle) { handles_.push_back(handle); }

  vmm::status rights(address_range where, access value) {
    const vmm::access_grant grant{home(), value};
    return driver().set_access(where, {&grant, 1});
  }
  access rights_at(address at) {
    const auto value = driver().get_access(at, home());
    EXPECT_TRUE(fine(value));
    return value.value_or(access::none);
  }

  // ---- giving them back early ----

  void unmapped(address_range where) {
    ASSERT_TRUE(fine(driver().unmap(where)));
    std::erase(mappings_, where);
  }
  void forget_mapping(address_range where) { std::erase(mappings_, where); }
  void released(physical_handle handle) {
    ASSERT_TRUE(fine(driver().release(handle)));
    std::erase(handles_, handle);
  }
  void freed(address_range range) {
    ASSERT_TRUE(fine(driver().free_reservation(range)));
    std::erase(ranges_, range);
  }
  void close(const vmm::shared_handle& shared) { made_->close(shared); }

  /// Everything that is left. Copies of the lists: what fails to go is not tried twice.
  void give_back() {
    finish();
    for (const auto where : std::vector<address_range>(mappings_)) unmapped(where);
    for (const auto range : std::vector<address_range>(ranges_)) freed(range);
    for (const auto handle : std::vector<physical_handle>(handles_)) released(handle);
  }

  // ---- bytes ----

  void put(address at, std::uint8_t first, std::size_t count = 64) {
    if (has().bytes) ASSERT_TRUE(fine(driver().write(at, pattern(first, count))));
  }
  void expect_bytes(address at, std::uint8_t first, std::size_t count = 64) {
    if (!has().bytes) return;
    std::vector<std::byte> seen(count);
    ASSERT_TRUE(fine(driver().read(seen, at)));
    EXPECT_EQ(seen, pattern(first, count));
  }
  void expect_all(address_range where, std::uint8_t value) {
    std::vector<std::byte> seen(where.size_bytes);
    ASSERT_TRUE(fine(driver().read(seen, where.base)));
    EXPECT_EQ(std::ranges::count(seen, std::byte{value}), std::ssize(seen));
  }
  static std::vector<std::byte> pattern(std::uint8_t first, std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i)
      bytes[i] = static_cast<std::byte>(static_cast<std::uint8_t>(first + i));
    return bytes;
  }
  void finish(vmm::stream_handle stream = vmm::stream_handle::default_stream) {
    if (has_streams_here()) ASSERT_TRUE(fine(driver().synchronize_stream(stream)));
  }

 protected:
  void SetUp() override {
    auto made = GetParam().make();
    if (!made.driver) GTEST_SKIP() << made.why_not;
    made_ = std::move(*made.driver);
    unseen_ = GetParam().unseen();
    const auto granule = driver().query_granularity(request_of_nothing());
    ASSERT_TRUE(fine(granule));
    unit_ = granule->minimum_bytes;
  }

  void TearDown() override {
    if (made_ == nullptr) return;
    give_back();
    EXPECT_TRUE(made_->nothing_left()) << "the driver counts resources that are left";
  }

 private:
  vmm::physical_request request_of_nothing() {
    vmm::physical_request wanted{};
    wanted.where = home();
    return wanted;
  }

  std::unique_ptr<made_driver> made_;
  conformance::unseen unseen_{};
  std::uint64_t unit_ = 0;
  std::vector<address_range> ranges_;
  std::vector<physical_handle> handles_;
  std::vector<address_range> mappings_;
};

}  // namespace conformance
