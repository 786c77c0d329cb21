// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: where there is no device, opening says why and what to do. Method: no loader; a library
// that is no loader; the machine's own loader with a driver that cannot be loaded.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

import vmm.backend;
import vmm.level_zero;

namespace {

// What a build without the headers says of everything.
bool is_absent(const vmm::error& why) {
  return std::string(why.detail).find("built without") != std::string::npos;
}

TEST(LevelZeroOpen, WithoutALoaderItSaysSo) {
  const auto opened = vmm::level_zero_driver::open({.loader_library = "libno_such_loader.so"});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable);
  const std::string text = vmm::describe(opened.error());
  if (is_absent(opened.error())) GTEST_SKIP() << text;
  EXPECT_NE(text.find("libze1"), std::string::npos) << text;
  EXPECT_NE(text.find("'libno_such_loader.so'"), std::string::npos) << "the library: " << text;
  EXPECT_NE(text.find("No such file"), std::string::npos) << "the system's reason: " << text;
}

TEST(LevelZeroOpen, TheLibraryOfTheVariableIsNamed) {
  ::setenv("VMM_LEVEL_ZERO_LIBRARY", "/nowhere/libze.so", 1);
  const auto opened = vmm::level_zero_driver::open();
  ::unsetenv("VMM_LEVEL_ZERO_LIBRARY");
  ASSERT_FALSE(opened);
  if (is_absent(opened.error())) GTEST_SKIP() << opened.error().detail;
  EXPECT_NE(std::string(opened.error().detail).find("'/nowhere/libze.so'"), std::string::npos);
}

TEST(LevelZeroOpen, ALibraryThatIsNoLoaderIsRefused) {
  const auto opened = vmm::level_zero_driver::open({.loader_library = "libc.so.6"});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable);
  const std::string text = vmm::describe(opened.error());
  const bool names_the_call = text.find("lacks the call") != std::string::npos;
  EXPECT_TRUE(is_absent(opened.error()) || names_the_call) << text;
  EXPECT_TRUE(is_absent(opened.error()) || text.find("'libc.so.6'") != std::string::npos) << text;
  EXPECT_TRUE(is_absent(opened.error()) || text.find("(zeInit)") != std::string::npos)
      << "the name of the call alone, without a code: " << text;
}

TEST(LevelZeroOpen, WithoutADriverItNamesTheLoadersAnswer) {
  ::setenv("ZE_ENABLE_ALT_DRIVERS", "libno_such_driver.so", 1);
  const auto opened = vmm::level_zero_driver::open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable);
  if (is_absent(opened.error())) GTEST_SKIP() << opened.error().detail;
  if (std::string(opened.error().native_name).empty()) GTEST_SKIP() << opened.error().detail;
  EXPECT_EQ(std::string(opened.error().native_name).rfind("ZE_RESULT_ERROR_", 0), 0u);
  EXPECT_NE(std::string(opened.error().detail).find("finds no driver"), std::string::npos);
  EXPECT_NE(std::string(opened.error().detail).find("'libno_such_driver.so'"), std::string::npos)
      << "the variable has a value: " << opened.error().detail;
}

TEST(LevelZeroOpen, WithoutADriverItNamesTheVariableForOne) {
  ::unsetenv("ZE_ENABLE_ALT_DRIVERS");
  const auto opened = vmm::level_zero_driver::open();
  if (opened) GTEST_SKIP() << "there is a device here";
  if (is_absent(opened.error())) GTEST_SKIP() << opened.error().detail;
  const std::string text = opened.error().detail;
  if (text.find("finds no driver") == std::string::npos) GTEST_SKIP() << text;
  EXPECT_NE(text.find("ZE_ENABLE_ALT_DRIVERS names a driver"), std::string::npos) << text;
}

TEST(LevelZeroOpen, ANegativeDeviceIsRefused) {
  const auto opened = vmm::level_zero_driver::open({.device = -1});
  ASSERT_FALSE(opened);
  EXPECT_TRUE(opened.error().code == vmm::errc::bad_option || is_absent(opened.error()));
}

}  // namespace
