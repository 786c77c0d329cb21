// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: without a device, opening reports the reason and advice. Method: no loader; a library that
// is not a loader; the machine's own loader with a driver that cannot be loaded.
#include <dlfcn.h>

#include "../support/test.h"

import vmm.backend;
import vmm.level_zero;

namespace {

constexpr bool is_built = VMM_BUILT_WITH_LEVEL_ZERO;

// The text of a failure to open; empty, and the test has failed, where it is not a refusal of the
// build that this is.
std::string text_of(const vmm::result<vmm::level_zero_driver>& opened) {
  EXPECT_FALSE(opened);
  if (opened) return "";
  const std::string text = vmm::describe(opened.error());
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable) << text;
  EXPECT_EQ(text.find("built without") == std::string::npos, is_built) << text;
  return text;
}

TEST(LevelZeroOpen, WithoutALoaderItSaysSo) {
  const std::string text =
      text_of(vmm::level_zero_driver::open({.loader_library = "libno_such_loader.so"}));
  if (!is_built) return;
  EXPECT_TRUE(contains(text, "libze1"));
  EXPECT_TRUE(contains(text, "'libno_such_loader.so'")) << "the library: " << text;
  EXPECT_TRUE(contains(text, "No such file")) << "the system's reason: " << text;
}

// Else a program for a GPU runs on the host's memory and does not say so.
TEST(LevelZeroOpen, AVariableThatNamesNoLoaderIsABadOption) {
  ::setenv("VMM_LEVEL_ZERO_LIBRARY", "/nowhere/libze.so", 1);
  const auto opened = vmm::level_zero_driver::open();
  ::unsetenv("VMM_LEVEL_ZERO_LIBRARY");
  ASSERT_FALSE(opened);
  if (!is_built) return;
  const std::string text = vmm::describe(opened.error());
  EXPECT_EQ(opened.error().code, vmm::errc::bad_option) << text;
  EXPECT_TRUE(contains(text,
                       "VMM_LEVEL_ZERO_LIBRARY is '/nowhere/libze.so', which could not be loaded ("
                       "/nowhere/libze.so: cannot open shared object file"));
}

TEST(LevelZeroOpen, ALibraryThatIsNoLoaderIsRefused) {
  const std::string text = text_of(vmm::level_zero_driver::open({.loader_library = "libc.so.6"}));
  if (!is_built) return;
  EXPECT_TRUE(contains(text, "lacks the call"));
  EXPECT_TRUE(contains(text, "'libc.so.6'"));
  EXPECT_TRUE(contains(text, "(zeInit)")) << "the name of the call alone, without a code: " << text;
}

// Whether the machine has a loader is known before the call, not from its result.
bool has_loader() {
  void* const found = ::dlopen("libze_loader.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (found != nullptr) ::dlclose(found);
  return found != nullptr;
}

TEST(LevelZeroOpen, WithoutADriverItNamesTheLoadersAnswer) {
  if (!is_built || !has_loader()) GTEST_SKIP() << "no Level Zero loader to ask";
  ::setenv("ZE_ENABLE_ALT_DRIVERS", "libno_such_driver.so", 1);
  const auto opened = vmm::level_zero_driver::open();
  const std::string text = text_of(opened);
  ASSERT_FALSE(opened);
  EXPECT_EQ(std::string(opened.error().native_name).rfind("ZE_RESULT_ERROR_", 0), 0u) << text;
  EXPECT_TRUE(contains(text, "finds no driver"));
  EXPECT_TRUE(contains(text, "'libno_such_driver.so'")) << "the variable has a value: " << text;
}

TEST(LevelZeroOpen, WithoutADriverItNamesTheVariableForOne) {
  if (!is_built || !has_loader()) GTEST_SKIP() << "no Level Zero loader to ask";
  ::unsetenv("ZE_ENABLE_ALT_DRIVERS");
  const auto opened = vmm::level_zero_driver::open();
  if (opened) GTEST_SKIP() << "there is a device here";
  const std::string text = text_of(opened);
  EXPECT_TRUE(contains(text, "finds no driver"));
  EXPECT_TRUE(contains(text, "ZE_ENABLE_ALT_DRIVERS names a driver"));
}

TEST(LevelZeroOpen, ANegativeDeviceIsRefused) {
  EXPECT_EQ(vmm::level_zero_driver::open({.device = -1}).error().code,
            is_built ? vmm::errc::bad_option : vmm::errc::unavailable);
}

}  // namespace
