// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "child.h"
#include "../support/test.h"

#include <fcntl.h>

#include <sstream>

extern char** environ;

namespace child {
namespace {

// Links by what they stand for; they go at the end of the process.
struct made_links {
  std::map<std::string, std::string> all;
  ~made_links() {
    for (const auto& [library, link] : all) (void)unlink(link.c_str());
  }
};

std::vector<std::string> environment_of(const command& what) {
  std::vector<std::string> all;
  std::string sanitizer = "ASAN_OPTIONS=";
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string one(*each);
    const bool is_ours = one.starts_with("VMM_") || one.starts_with("VPMM_") ||
                         one.starts_with("LD_PRELOAD=") || one.starts_with("LD_LIBRARY_PATH=") ||
                         one.starts_with("XDG_RUNTIME_DIR=");
    if (one.starts_with("ASAN_OPTIONS=")) {
      sanitizer = one + ':';
    } else if (!is_ours) {
      all.push_back(one);
    }
  }
  // Drivers before CUDA 12 have no boundary.
  const bool is_behind = is_at_boundary() && what.is_preloaded &&
                         what.preloaded == VMM_PRELOAD_LIBRARY && what.driver == VMM_PRELOAD_DRIVER;
  all.push_back("LD_LIBRARY_PATH=" + (is_behind ? VMM_PRELOAD_BOUNDARY : what.driver));
  all.push_back(sanitizer + "detect_leaks=0");
  if (what.is_preloaded && !is_behind) all.push_back("LD_PRELOAD=" + loadable(what.preloaded));
  all.insert(all.end(), what.variables.begin(), what.variables.end());
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& each : texts) all.push_back(each.data());
  all.push_back(nullptr);
  return all;
}

void redirect(int descriptor, const char* file) {
  const int opened = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (opened < 0 || dup2(opened, descriptor) < 0) _exit(99);
}

}  // namespace

bool is_at_boundary() { return std::getenv("VMM_TEST_AT_BOUNDARY") != nullptr; }

std::string loadable(const std::string& library) {
  static made_links links;
  if (library.find_first_of(" \t:$") == std::string::npos) return library;
  std::string& link = links.all[library];
  if (link.empty()) {
    link = temporary_file("link.so");
    EXPECT_EQ(symlink(library.c_str(), link.c_str()), 0) << link;
  }
  return link;
}

std::string temporary_file(const std::string& name) {
  static std::atomic<int> count = 0;
  return testing::TempDir() + "vmm_preload_" + std::to_string(getpid()) + "_" +
         std::to_string(++count) + "_" + name;
}

std::string read_file(const std::string& name) {
  std::ifstream file(name);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream from(text);
  for (std::string line; std::getline(from, line);) all.push_back(line);
  return all;
}

outcome run(const command& what) {
  const std::string out = temporary_file("out");
  const std::string err = temporary_file("err");
  std::vector<std::string> texts{what.program};
  texts.insert(texts.end(), what.arguments.begin(), what.arguments.end());
  std::vector<std::string> variables = environment_of(what);
  const std::vector<char*> arguments = pointers_to(texts);
  const std::vector<char*> environment = pointers_to(variables);
  const pid_t made = fork();
  if (made == 0) {
    redirect(STDOUT_FILENO, out.c_str());
    redirect(STDERR_FILENO, err.c_str());
    execve(what.program.c_str(), arguments.data(), environment.data());
    _exit(98);
  }
  int how = 0;
  outcome seen;
  if (waitpid(made, &how, 0) == made)
    seen.code = WIFEXITED(how) ? WEXITSTATUS(how) : 1000 + WTERMSIG(how);
  seen.out = read_file(out);
  seen.err = read_file(err);
  unlink(out.c_str());
  unlink(err.c_str());
  return seen;
}

outcome plain(const std::vector<std::string>& words) { return run({.arguments = words}); }

outcome preloaded(const std::string& mode, const std::vector<std::string>& words,
                  const std::vector<std::string>& variables) {
  command what{.arguments = words, .variables = variables, .is_preloaded = true};
  if (!mode.empty()) what.variables.push_back("VMM_MODE=" + mode);
  return run(what);
}

outcome reported(const std::string& mode, const std::vector<std::string>& words,
                 std::vector<std::string> variables) {
  variables.insert(variables.end(), {"VMM_REPORT=stderr", "VMM_REPORT_FORMAT=json"});
  return preloaded(mode, words, variables);
}

// How two outputs part: of long ones a line says more than a comparison of all.
std::string parted(const std::string& native, const std::string& ours) {
  const std::vector<std::string> before = lines_of(native);
  const std::vector<std::string> now = lines_of(ours);
  for (std::size_t i = 0; i < before.size() && i < now.size(); ++i) {
    if (before[i] != now[i])
      return "line " + std::to_string(i + 1) + ": '" + before[i] + "' became '" + now[i] + "'";
  }
  return native == ours
             ? ""
             : std::to_string(before.size()) + " lines became " + std::to_string(now.size());
}

void expect_same(const std::string& mode, const std::vector<std::string>& words,
                 const std::vector<std::string>& more, int code) {
  const outcome native = plain(words);
  EXPECT_EQ(native.code, code) << "the program fails without the library\n" << native.err;
  std::vector<std::string> closer = words;
  closer.insert(closer.end(), more.begin(), more.end());
  const outcome ours = preloaded(mode, closer, {"VMM_REPORT=off"});
  EXPECT_EQ(native.code, ours.code) << mode << "\n" << ours.out << ours.err;
  EXPECT_EQ(parted(native.out, ours.out), "") << mode << "\n" << ours.err;
  EXPECT_EQ(native.err, ours.err) << mode;
  EXPECT_EQ(native.out.find("WRONG"), std::string::npos) << native.out;
}

void expect_output(const std::string& mode, const std::vector<std::string>& words,
                   const std::string& wanted, const std::vector<std::string>& variables) {
  const outcome seen = preloaded(mode, words, variables);
  EXPECT_EQ(seen.out, wanted) << seen.err;
  EXPECT_EQ(seen.code, 0) << seen.err;
}

}  // namespace child
