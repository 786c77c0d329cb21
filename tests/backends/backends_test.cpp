// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a driver can be had by its name, from the environment too, with its calls logged; a wrong
// name or log is refused with the valid values.
// Method: every name is opened and the driver's identity compared; environment variables are set
// and unset here. Whether there is a GPU is left open: then "cuda" must be there, else it must say
// why not.
#include <sys/stat.h>

#include "../support/test.h"

import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.registry;

namespace {

using vmm::errc;

struct Backends : testing::Test {
  void SetUp() override {
    ::unsetenv("VMM_BACKEND");
    ::unsetenv("VMM_LOG");
  }
  void TearDown() override { SetUp(); }
};

std::string name_of_opened(std::string_view name) {
  const auto opened = vmm::open_backend(name);
  return opened ? std::string(opened->name()) : vmm::describe(opened.error());
}

TEST_F(Backends, OpenByName) {
  EXPECT_EQ(name_of_opened("host"), "host");
  EXPECT_EQ(name_of_opened("fake"), vmm::fake_driver(vmm::fake::profile::cuda()).name());
  EXPECT_EQ(name_of_opened("fake:cuda"), name_of_opened("fake"));
  EXPECT_EQ(name_of_opened("fake:level_zero"),
            vmm::fake_driver(vmm::fake::profile::level_zero()).name());
  EXPECT_EQ(name_of_opened("fake:host"), vmm::fake_driver(vmm::fake::profile::host()).name());
  auto opened = *vmm::open_backend("fake");
  EXPECT_NE(vmm::driver_in<vmm::fake_driver>(opened), nullptr);
  EXPECT_EQ(vmm::driver_in<vmm::host_driver>(opened), nullptr);
}

TEST_F(Backends, EveryNameIsThereOrSaysWhyNot) {
  for (const auto& entry : vmm::backend_names()) {
    const auto opened = vmm::open_backend(entry.name);
    EXPECT_EQ(opened.has_value(), entry.available) << entry.name;
    EXPECT_EQ(entry.available, std::string(entry.reason).empty()) << entry.name;
    if (!opened) {
      EXPECT_STREQ(opened.error().detail, entry.reason);
      EXPECT_EQ(opened.error().code, errc::unavailable) << entry.name;
    }
    if (entry.name == "host" || entry.name.starts_with("fake")) EXPECT_TRUE(entry.available);
  }
}

TEST_F(Backends, RefusesNamesItDoesNotKnow) {
  for (const char* name :
       {"hosts", "Fake", "fake:", "fake:metal", "cuda:", "cuda:x", "cuda:0x", "cuda:-1",
        "level_zero:", "level_zero:x", "level_zero:-1", "cuda:99999999999", " host"}) {
    const auto opened = vmm::open_backend(name);
    ASSERT_FALSE(opened) << name;
    EXPECT_EQ(opened.error().code, errc::bad_option) << name;
    EXPECT_TRUE(contains(opened.error().detail, "fake:level_zero"));
  }
}

TEST_F(Backends, AnEmptyNameIsTheEnvironments) {
  ::setenv("VMM_BACKEND", "fake:host", 1);
  EXPECT_EQ(name_of_opened(""), name_of_opened("fake:host"));
  EXPECT_EQ(name_of_opened("host"), "host") << "a name that is given wins";
  ::unsetenv("VMM_BACKEND");
  const bool with_gpu = vmm::cuda_driver::open().has_value();
  EXPECT_EQ(name_of_opened(""), with_gpu ? "cuda" : "host");
}

// Else a program for a GPU runs on the host's memory and does not say so.
TEST_F(Backends, AMalformedVariableIsNotPassedOver) {
  for (const auto& [name, value] : {std::pair{"VMM_CUDA_MEMORY", "plian"},
                                    {"VMM_CUDA_LIBRARY", "/etc/passwd"},
                                    {"VMM_CUDA_LIBRARY", "/there/is/no/libcuda.so.1"},
                                    {"VMM_BACKEND", "nonsense"}}) {
    ::setenv(name, value, 1);
    const bool is_file = std::string_view(name).ends_with("LIBRARY");  // judged where it is loaded
    const auto opened = vmm::open_backend(is_file ? "" : "host");
    ::unsetenv(name);
    ASSERT_FALSE(opened.has_value()) << name;
    EXPECT_EQ(opened.error().code, errc::bad_option) << name;
    const std::string text = opened.error().detail;
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find("'" + std::string(value) + "'"), std::string::npos) << text;
  }
}

TEST_F(Backends, ANameIsJudgedWithoutItsDriver) {
  for (const char* name : {"", "cuda", "cuda:7", "level_zero:3", "host", "fake:host"})
    EXPECT_TRUE(vmm::check_backend_name(name)) << name;
  for (const char* name : {"foo", "cuda:", "cuda7", "host:0"})
    EXPECT_EQ(vmm::check_backend_name(name).error().code, errc::bad_option) << name;
  ::setenv("VMM_BACKEND", "foo", 1);
  EXPECT_EQ(vmm::check_backend_name().error().code, errc::bad_option);
}

TEST_F(Backends, CallsAreLoggedWhereTheEnvironmentSaysSo) {
  const auto path = std::filesystem::path(testing::TempDir()) /
                    ("vmm_backends_test_log" + std::to_string(::getpid()));
  std::filesystem::remove(path);
  ::setenv("VMM_LOG", path.c_str(), 1);
  {
    auto opened = *vmm::open_backend("fake");
    EXPECT_NE(vmm::driver_in<vmm::fake_driver>(opened), nullptr) << "behind the log";
    EXPECT_TRUE(opened.reserve({.size_bytes = 2u << 20}));
  }
  std::string line;
  std::ifstream log(path);
  ASSERT_TRUE(std::getline(log, line));
  EXPECT_TRUE(line.starts_with("1 reserve size=2097152 -> ok at=0x")) << line;
  std::filesystem::remove(path);
  ::setenv("VMM_LOG", "off", 1);
  auto plain = *vmm::open_backend("fake");
  EXPECT_NE(plain.get_if<vmm::fake_driver>(), nullptr) << "nothing stands in between";
  ::setenv("VMM_LOG", "/nowhere/at/all", 1);
  const auto refused = vmm::open_backend("fake");
  EXPECT_EQ(refused.error().code, errc::bad_option);
  EXPECT_STREQ(refused.error().detail,
               "VMM_LOG is off, stderr, or the path of a writable file; not '/nowhere/at/all': the "
               "path, or a folder of it, does not exist: create it, or name another");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::setenv("VMM_LOG", path.c_str(), 1);
  const auto pipe = vmm::open_backend("fake");
  ASSERT_FALSE(pipe) << "a named pipe is not waited for";
  EXPECT_NE(std::string_view(pipe.error().detail).find("': it is a named pipe (FIFO)"),
            std::string_view::npos)
      << pipe.error().detail;
  std::filesystem::remove(path);
}

}  // namespace
