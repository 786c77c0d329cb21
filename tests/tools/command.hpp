// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A command run by the shell, with what it printed, in a folder of the test's own.
#pragma once

#include "../support/test.h"

namespace vmm::tests {

struct finished {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string text_of_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class CommandTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    // Tests of another build or another user may run at the same time.
    folder_ = testing::TempDir() + "vmm-" + info->test_suite_name() + "-" + info->name() + "-" +
              std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string file(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string script(const std::string& name, const std::string& body) const {
    const std::string made = file(name, "#!/usr/bin/env bash\n" + body + "\n");
    std::filesystem::permissions(made, std::filesystem::perms::owner_all);
    return made;
  }

  /// `command` for the shell, with no other variables than `environment` and a search path.
  [[nodiscard]] finished run(const std::string& command,
                             const std::string& environment = "") const {
    const std::string whole = "cd '" + folder_ + "' && env -i PATH=\"$PATH\" HOME='" + folder_ +
                              "' " + environment + " " + command + " >'" + path("out") + "' 2>'" +
                              path("err") + "' </dev/null";
    const int status = std::system(whole.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of_file(path("out")),
            text_of_file(path("err"))};
  }

 private:
  std::string folder_;
};

}  // namespace vmm::tests
