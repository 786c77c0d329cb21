// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: without a usable CUDA driver, opening the backend returns a clear error and never crashes.
// Method: names a missing library, one that is not a CUDA driver, and a bad device number.
#include "../support/test.h"

import vmm.backend;
import vmm.cuda;

namespace {

static_assert(vmm::backend<vmm::cuda_driver>);
static_assert(vmm::stream_backend<vmm::cuda_driver>);
static_assert(vmm::copy_backend<vmm::cuda_driver>);
static_assert(vmm::retain_backend<vmm::cuda_driver>);
static_assert(vmm::property_backend<vmm::cuda_driver>);
static_assert(vmm::sharing_backend<vmm::cuda_driver>);
static_assert(vmm::multicast_backend<vmm::cuda_driver>);

TEST(CudaOpen, AMissingLibraryIsUnavailable) {
  const auto opened =
      vmm::cuda_driver::open({.driver_library = "libvmm-there-is-no-such-driver.so.1"});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable) << vmm::describe(opened.error());
  EXPECT_EQ(std::string(opened.error().detail),
            "the CUDA driver's library 'libvmm-there-is-no-such-driver.so.1' could not be loaded "
            "(libvmm-there-is-no-such-driver.so.1: cannot open shared object file: No such file or "
            "directory): install the NVIDIA driver, set VMM_CUDA_LIBRARY to its library, or choose "
            "another backend");
}

TEST(CudaOpen, ALibraryThatIsNoDriverIsUnavailable) {
  const auto opened = vmm::cuda_driver::open({.driver_library = "libm.so.6"});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, vmm::errc::unavailable) << vmm::describe(opened.error());
}

TEST(CudaOpen, TheEnvironmentNamesTheLibrary) {
  ASSERT_EQ(setenv("VMM_CUDA_LIBRARY", "libm.so.6", 1), 0);
  const auto opened = vmm::cuda_driver::open();
  ASSERT_EQ(unsetenv("VMM_CUDA_LIBRARY"), 0);
  ASSERT_FALSE(opened.has_value());
  const std::string text = vmm::describe(opened.error());
  EXPECT_TRUE(contains(text, "'libm.so.6' has no cuGetProcAddress: "));
}

TEST(CudaOpen, ANegativeDeviceIsRefused) {
  const auto opened = vmm::cuda_driver::open({.device = -1});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, vmm::errc::bad_option);
}

}  // namespace
