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

// Else a program for a GPU runs on the host's memory and does not say so.
TEST(CudaOpen, AVariableThatNamesNoDriverIsABadOption) {
  const auto opened_with = [](const char* library) {
    EXPECT_EQ(setenv("VMM_CUDA_LIBRARY", library, 1), 0);
    const auto opened = vmm::cuda_driver::open();
    EXPECT_EQ(unsetenv("VMM_CUDA_LIBRARY"), 0);
    EXPECT_FALSE(opened.has_value());
    if (opened) return std::string();
    EXPECT_EQ(opened.error().code, vmm::errc::bad_option) << library;
    return std::string(opened.error().detail);
  };
  EXPECT_EQ(opened_with("/there/is/no/libcuda.so.1"),
            "VMM_CUDA_LIBRARY is '/there/is/no/libcuda.so.1', which could not be loaded "
            "(/there/is/no/libcuda.so.1: cannot open shared object file: No such file or "
            "directory): correct it, or unset it for the system's libcuda.so.1");
  EXPECT_NE(opened_with("/etc/passwd").find("(/etc/passwd: "), std::string::npos);
  EXPECT_EQ(opened_with("libm.so.6")
                .find("VMM_CUDA_LIBRARY is 'libm.so.6', which has no "
                      "cuGetProcAddress: "),
            0u);
}

TEST(CudaOpen, ANegativeDeviceIsRefused) {
  const auto opened = vmm::cuda_driver::open({.device = -1});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, vmm::errc::bad_option);
}

}  // namespace
