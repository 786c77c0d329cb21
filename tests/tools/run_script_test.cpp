// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: ./run says nothing of its own when nothing is to be done, configures again when a folder is
// new, lists names that can be typed, works through a symbolic link, says what a word needs, and
// lets no other ./run into a folder in which it builds, counts the tests inside of programs, and
// installs packages of the tests during the first build, if no password is needed. Every word of it
// refuses wrong arguments before anything is installed or built.
// Method: the script in a folder of its own, with a cmake and a ninja that write down how they are
// called and programs that say so; and this build's rules, in which no list is made anew.
#include <chrono>

#include "command.hpp"

namespace {

using vmm::tests::finished;
using vmm::tests::text_of_file;

const std::string source = VMM_SOURCE_FOLDER;

class RunScript : public vmm::tests::CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    std::filesystem::create_directories(path("tests/old"));
    std::filesystem::create_directories(path("elsewhere"));
    for (const char* copied : {"run", "CMakePresets.json"})
      std::filesystem::copy(source + "/" + copied, path(copied));
    for (const char* linked : {"benchmarks", "examples", "fuzz", "tools", "tests/golden",
                               "tests/stream", "tests/threads"})
      std::filesystem::create_directory_symlink(source + "/" + linked, path(linked));
    file("tests/old/CMakeLists.txt", "");
    script("bin/cmake",
           "if [[ $1 == --version ]]; then echo 'cmake version 3.31.0'; exit; fi\n"
           "echo configured | tee -a '" +
               path("log") +
               "'\n"
               "mkdir -p build/$2/benchmarks; touch build/$2/build.ninja");
    script("bin/ninja",
           "case \"$*\" in *targets*) echo 'bench_va: phony'; echo 'bench_fake: phony' ;;\n"
           "*' -n '*) echo 'ninja: no work to do.' ;; *) echo built | tee -a '" +
               path("log") + "' ;; esac");
    for (const char* name : {"clang++-19", "clang-scan-deps-19", "llvm-symbolizer-19"})
      script(std::string("bin/") + name, "");
    script("build/release/benchmarks/bench_va", "echo \"va: $*\"");
    if (ask("./run bench --no-install").code != 0)
      GTEST_SKIP() << "headers of Boost, zlib or GoogleTest are not where the script looks";
  }

  [[nodiscard]] finished ask(const std::string& command) const {
    return run(command, "PATH='" + path("bin") + "':\"$PATH\"");
  }
};

TEST_F(RunScript, SaysNothingWhenNothingIsToBeDone) {
  const finished first = ask("./run bench va --json");
  EXPECT_EQ(first.out, "va: --json\n");
  EXPECT_EQ(first.err, "configured\n");
  const finished second = ask("./run bench va --json");
  EXPECT_EQ(second.code, 0);
  EXPECT_EQ(second.out, "va: --json\n");
  EXPECT_EQ(second.err, "");
}

TEST_F(RunScript, TheBuildMakesNoListAnew) {
  const std::string rules = text_of_file(std::string(VMM_BUILD_FOLDER) + "/build.ninja");
  ASSERT_FALSE(rules.empty());
  EXPECT_EQ(rules.find("VerifyGlobs"), std::string::npos) << "ninja says so in each build";
}

TEST_F(RunScript, ConfiguresAgainForANewFolder) {
  (void)ask("./run bench va");
  const auto later = std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5);
  std::filesystem::last_write_time(file("tests/new/CMakeLists.txt", ""), later);
  EXPECT_EQ(ask("./run bench va").err, "configured\n");
}

TEST_F(RunScript, ListsNamesThatCanBeTyped) {
  const finished names = ask("./run bench");
  EXPECT_EQ(names.code, 0);
  EXPECT_EQ(names.out.find("usage: ./run bench NAME; NAME is one of: fake "), 0u) << names.out;
  EXPECT_EQ(text_of_file(path("log")), "") << "something was configured or built";
  const finished wrong = ask("./run bench vb");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.out, "");
  EXPECT_EQ(wrong.err.find("run: unknown bench 'vb'; NAME is one of: fake "), 0u) << wrong.err;
  EXPECT_EQ(ask("./run bench bench_va").out, "va: \n") << "with the program's prefix too";
}

// A folder of wheel and docs may have any name, and ./run fuzz passes options to libFuzzer.
TEST_F(RunScript, EachWordRefusesWrongArgumentsBeforeItBuilds) {
  script("gpu_tests/gpu.sh", "echo '  all '");
  script("tests/check/adds.sh", "");
  const finished helped = ask("./run help");
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = helped.out.find("\n  ", at)) != std::string::npos; ++at) {
    const std::size_t begin = at + 3;
    const std::size_t end = helped.out.find_first_of(" \n", begin);
    if (end > begin && helped.out[begin] != '-')
      words.push_back(helped.out.substr(begin, end - begin));
  }
  std::vector<std::string> lines;
  for (const std::string& word : words) {
    if (word == "help") continue;
    const bool takes_any = word == "wheel" || word == "docs";
    if (!takes_any) lines.push_back(word + " nonsense");
    for (const char* given : {" --nonsense", " -nonsense", " -x"}) lines.push_back(word + given);
  }
  for (const char* more : {"replay benchmarks/CMakeLists.txt --nonsense",
                           "view benchmarks/CMakeLists.txt --nonsense=3",
                           "view",
                           "replay",
                           "bench va --nonsense",
                           "example first --nonsense",
                           "trace tables 1 --seed",
                           "threads pool many",
                           "threads pool 3 --nonsense",
                           "prove 3 --nonsense",
                           "wheel a b",
                           "bench compare HEAD --nonsense",
                           "preload vmm no-such-program",
                           "demo --svg x --nonsense",
                           "prove -1",
                           "prove 0",
                           "prove 3 4",
                           "prove --first x",
                           "prove --threads",
                           "trace tables -1",
                           "threads pool -1",
                           "threads pool 3 --first=-1",
                           "demo --up-to banana",
                           "demo --up-to",
                           "replay benchmarks/CMakeLists.txt --repeat -1",
                           "bench threads --rounds 1.5",
                           "top --interval x",
                           "golden --show",
                           "fuzz va -1"})
    lines.push_back(more);
  EXPECT_GE(lines.size(), 60u) << "no words were found in the help";
  for (const std::string& line : lines) {
    const finished got = ask("./run " + line);
    const bool is_missing = line.starts_with("preload vmm");
    const bool is_fit = line.starts_with("fit ");
    EXPECT_EQ(got.code, is_missing ? 127 : is_fit ? 3 : 2) << line << ": " << got.err;
    EXPECT_EQ(got.out, "") << line;
    EXPECT_EQ(got.err.find("run: "), 0u) << line << ": " << got.err;
  }
  EXPECT_EQ(text_of_file(path("log")), "") << "something was configured or built";
}

// What is printed is what the programs of this build print.
TEST_F(RunScript, HelpIsPrintedBeforeAnythingIsBuilt) {
  script("gpu_tests/gpu.sh", "echo 'usage: gpu.sh'");
  script("tests/check/adds.sh", "# Goal: one and one is two");
  for (const char* line :
       {"demo -h",     "test --help",      "check -h",      "check adds -h", "replay x --help",
        "fit -h",      "view -h",          "top --json -h", "trace -h",      "bench -h",
        "bench va -h", "bench special -h", "preload -h",    "fuzz -h",       "fuzz va 3 -h",
        "example -h",  "example first -h", "wheel -h",      "gpu -h",        "prove 3 --help",
        "threads -h",  "golden -h",        "docs -h"}) {
    const finished got = ask(std::string("./run ") + line);
    EXPECT_EQ(got.code, 0) << line << ": " << got.err;
    EXPECT_EQ(got.err, "") << line;
    EXPECT_EQ(
        got.out.find(line == std::string("check adds -h") ? "./run check adds: one" : "usage: "),
        0u)
        << line << ": " << got.out;
  }
  EXPECT_EQ(text_of_file(path("log")), "") << "something was configured or built";
  for (const std::string word : {"demo", "replay", "fit", "trace", "top"}) {
    const std::string program =
        std::string(VMM_BUILD_FOLDER) + "/tools/" + (word == "top" ? "top/" : "") + "vmm-" + word;
    std::string own = run("'" + program + "' --help").out;
    ASSERT_EQ(own.find("usage: vmm-" + word), 0u) << program << " is not built";
    own.replace(7, 4 + word.size(), "./run " + word);
    std::string ours = ask("./run " + word + " --help").out;
    if (word == "trace") {  // one blank more, or less, before the text of a kind
      std::erase(own, ' ');
      std::erase(ours, ' ');
    }
    EXPECT_EQ(ours, own);
  }
}

// The shipped scripts name what they need of sources by their places.
TEST_F(RunScript, RightArgumentsReachThePrograms) {
  file("a.trace", "a 1 64 0\n");
  script("bin/ninja",
         "case \"$*\" in *targets*) for each in vmm-replay vmm-demo vmm-top vmm-trace "
         "vmm-history prove_schedules schedule_threads golden_test bench_va "
         "example_first; do echo \"$each: phony\"; done ;;\n"
         "*' -n '*) echo 'ninja: no work to do.' ;; esac");
  struct row {
    const char* line;
    const char* program;
    const char* given;
  };
  for (const row& each : std::initializer_list<row>{
           {"replay a.trace --policy pool --jitter 1", "release/tools/vmm-replay",
            "a.trace --policy pool --jitter 1"},
           {"replay --policy pool a.trace", "release/tools/vmm-replay", "--policy pool a.trace"},
           {"demo --up-to 4MiB", "release/tools/vmm-demo", "--up-to 4MiB"},
           {"demo", "release/tools/vmm-demo", ""},
           {"top --once", "release/tools/top/vmm-top", "--once"},
           {"trace tables 3", "release/tools/vmm-trace", "tables 3"},
           {"view a.trace --out=x", "release/tools/history/vmm-history", "page a.trace --out=x"},
           {"prove 10 --first 3", "release/tests/stream/prove_schedules", "10 --first 3"},
           {"threads pool --first 3", "dev/tests/threads/schedule_threads",
            "pool 1000000 --first 3"},
           {"golden --show pool 3", "release/tests/golden/golden_test", "--show pool 3"},
           {"bench va --json", "release/benchmarks/bench_va", "--json"},
           {"example example_first", "release/examples/example_first", ""},
       }) {
    script(std::string("build/") + each.program, "echo \"$*\"");
    const finished got = ask(std::string("./run ") + each.line);
    EXPECT_EQ(got.out, std::string(each.given) + "\n") << each.line << ": " << got.err;
  }
}

// A second ./run in the same folder waits: neither CMake nor ninja keeps another one out.
TEST_F(RunScript, HoldsTheFolderWhileItBuilds) {
  if (std::system("command -v flock >/dev/null") != 0) GTEST_SKIP() << "flock is missing";
  const std::string look =
      "flock --nonblock '" + path("build/release/.lock") + "' true && echo free || echo held";
  script("bin/cmake",
         "if [[ $1 == --version ]]; then echo 'cmake version 3.31.0'; exit; fi\n"
         "touch build/release/build.ninja; " +
             look);
  script("bin/ninja", "case \"$*\" in *targets*) echo 'bench_va: phony' ;; *' -n '*) ;; *) " +
                          look + " ;; esac");
  script("build/release/benchmarks/bench_va", look);
  const finished got = ask("./run bench va");
  EXPECT_EQ(got.err, "held\nheld\n") << "CMake, then ninja";
  EXPECT_EQ(got.out, "free\n") << "the program";
}

// A build beside the tests holds its folder: it ends with the script, by whatever that ends.
TEST_F(RunScript, EndsTheBuildBesideTheTests) {
  if (std::system("command -v flock >/dev/null") != 0) GTEST_SKIP() << "flock is missing";
  const std::string begun = path("begun");
  const std::string never = path("never");
  ASSERT_EQ(std::system(("mkfifo '" + begun + "' '" + never + "'").c_str()), 0);
  script("bin/ninja", "case \"$*\" in */build/dev*) echo >'" + begun + "'; read -r _ <'" + never +
                          "' ;; *' -n '*) echo 'ninja: no work to do.' ;; esac");
  script("bin/ctest", "read -r _ <'" + begun + "'; kill -TERM $PPID; exit 1");
  (void)ask("./run test --preset release --preset dev");
  const std::string is_free = "flock --timeout 20 '" + path("build/dev/.lock") + "' true";
  EXPECT_EQ(std::system(is_free.c_str()), 0) << "the build goes on";
}

// What is sent to the script alone reaches the tests, and what these have begun.
TEST_F(RunScript, EndsTheTestsWithItself) {
  if (std::system("command -v flock >/dev/null") != 0) GTEST_SKIP() << "flock is missing";
  ASSERT_EQ(std::system(("mkfifo '" + path("begun") + "' '" + path("never") + "'").c_str()), 0);
  const std::string waits = "exec 9>'" + path("held") + "'; flock --shared 9; ";
  script("bin/a_test", waits + "echo >'" + path("begun") + "'; read -r _ <'" + path("never") + "'");
  for (const auto& [signal, code] : {std::pair{"TERM", 143}, std::pair{"QUIT", 131}}) {
    script("bin/ctest", waits + "a_test & read -r _ <'" + path("begun") + "'; kill -" + signal +
                            " $PPID; read -r _ <'" + path("never") + "'");
    const finished got = ask("./run test --preset release");
    EXPECT_EQ(got.code, code);
    EXPECT_EQ(got.out.find("passed"), std::string::npos) << got.out;
    const std::string is_free = "flock --timeout 20 '" + path("held") + "' true";
    EXPECT_EQ(std::system(is_free.c_str()), 0) << "the tests go on";
  }
}

// So do the compilers of a build, whatever word it is for.
TEST_F(RunScript, EndsABuildWithItself) {
  if (std::system("command -v flock >/dev/null") != 0) GTEST_SKIP() << "flock is missing";
  ASSERT_EQ(std::system(("mkfifo '" + path("begun") + "' '" + path("never") + "'").c_str()), 0);
  const std::string waits = "exec 9>'" + path("held") + "'; flock --shared 9; ";
  script("bin/compiler",
         waits + "echo >'" + path("begun") + "'; read -r _ <'" + path("never") + "'");
  for (const auto& [signal, code] : {std::pair{"TERM", 143}, std::pair{"INT", 130}}) {
    // The script is not the parent of what it has started: a shell lies between.
    script("bin/ninja",
           "case \"$*\" in *targets*) echo 'bench_va: phony'; exit ;; *' -n '*) exit ;; esac\n" +
               waits + "compiler & read -r _ <'" + path("begun") + "'; kill -" + signal +
               " $(cat '" + path("main") + "'); read -r _ <'" + path("never") + "'");
    const finished got = ask("bash -c 'echo $$ >\"" + path("main") + "\"; exec ./run bench va'");
    EXPECT_EQ(got.code, code) << got.err;
    EXPECT_NE(got.err.find("run: interrupted\n"), std::string::npos) << got.err;
    EXPECT_EQ(got.err.find("failed"), std::string::npos) << got.err;
    for (const char* held : {"held", "build/release/.lock"}) {
      const std::string is_free = "flock --timeout 20 '" + path(held) + "' true";
      EXPECT_EQ(std::system(is_free.c_str()), 0) << "the build goes on: " << held;
    }
  }
}

TEST_F(RunScript, NamesTheNearestWord) {
  const finished got = ask("./run dmeo");
  EXPECT_EQ(got.code, 2);
  EXPECT_EQ(got.out, "");
  EXPECT_EQ(got.err,
            "run: unknown command 'dmeo'; did you mean 'demo'?\n"
            "     ./run help lists the words\n");
  EXPECT_EQ(ask("./run nonsense").err.find("mean"), std::string::npos);
  EXPECT_EQ(ask("./run view").err.find("run: usage: ./run view HISTORY"), 0u);
  EXPECT_EQ(ask("./run demo --svgg x").err,
            "run: unknown option '--svgg' for ./run demo; did you mean '--svg'?\n");
  EXPECT_EQ(ask("./run demo --nonsense").err, "run: unknown option '--nonsense' for ./run demo\n");
  EXPECT_EQ(ask("./run preload fast true").err,
            "run: usage: ./run preload off|monitor|vmm|cache PROGRAM [ARGUMENTS]\n"
            "     not 'fast true'\n");
}

// Root cannot make this folder either.
TEST_F(RunScript, ATreeThatCannotBeWrittenToIsALine) {
  std::filesystem::remove_all(path("build"));
  std::filesystem::create_symlink("/proc/none", path("build"));
  for (const char* line : {"demo", "test", "bench va", "wheel", "fuzz va 1", "top"}) {
    const finished got = ask(std::string("./run ") + line);
    EXPECT_EQ(got.code, 1) << line;
    EXPECT_EQ(got.out, "") << line;
    EXPECT_EQ(got.err, "run: ./run builds in " + path("build") +
                           ", which cannot be written to: copy the tree to a writable folder\n")
        << line;
  }
  EXPECT_EQ(ask("./run help").code, 0);
}

// ld.so cuts LD_PRELOAD at blanks and colons and goes on without the library.
TEST_F(RunScript, PreloadsFromAPathWithBlanks) {
  const auto tree = path("a b:c");
  std::filesystem::create_directories(tree + "/tests");
  for (const char* copied : {"run", "CMakePresets.json"})
    std::filesystem::copy(path(copied), tree + "/" + copied);
  script("bin/ninja",
         "case \"$*\" in *targets*) echo 'vmm_preload: phony' ;;\n"
         "*' -n '*) echo 'ninja: no work to do.' ;; esac");
  script("bin/program", "echo \"$LD_PRELOAD\"; readlink \"$LD_PRELOAD\"; echo \"$VMM_MODE\"");
  const finished got = ask("'a b:c/run' preload vmm program");
  EXPECT_EQ(got.code, 0) << got.err;
  const std::string named = got.out.substr(0, got.out.find('\n'));
  EXPECT_EQ(named.find_first_of(" :"), std::string::npos) << named;
  EXPECT_EQ(got.out, named + "\n" + std::filesystem::canonical(tree).string() +
                         "/build/release/preload/libvmm_preload.so\nvmm\n");
  std::filesystem::remove(named);
  script("bin/stat", "echo 777");
  const finished refused = ask("'a b:c/run' preload vmm program");
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.out, "") << "without the library the program does not run";
  EXPECT_NE(refused.err.find("no path with blanks"), std::string::npos) << refused.err;
  EXPECT_EQ(ask("./run preload vmm no-such-program").err,
            "run: unknown program 'no-such-program'\n");
}

TEST_F(RunScript, WorksThroughASymbolicLink) {
  std::filesystem::create_symlink("../run", path("elsewhere/vmm-run"));
  std::filesystem::create_symlink("vmm-run", path("elsewhere/again"));
  const finished got = ask("elsewhere/again bench va");
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out, "va: \n");
}

// ---- tests -------------------------------------------------------------------------------------

// With a ctest that runs a program of four tests, of which one fails, one is skipped and one is
// disabled, a program that ends before it has written its file, and a test that is not a program.
class RunScriptTests : public RunScript {
 protected:
  void SetUp() override {
    RunScript::SetUp();
    if (IsSkipped()) return;
    script("bin/renice", "");
    file("suite.xml",
         "<testsuite name=\"x\"\n\ttests=\"3\"\n\tfailures=\"2\"\n\tdisabled=\"0\"\n"
         "\tskipped=\"0\"\n>\n");
    script("bin/ctest", "echo ${2##*/} >>'" + path("tested") + "'; mkdir -p \"$2/gtest\"; cp '" +
                            path("suite.xml") + "' \"$2/tests.xml\"; cp '" + path("program.xml") +
                            "' \"$2/gtest/\"; exit 8");
    file("program.xml", program);
    if (ask("./run test --no-install").out.find("  missing  ") != std::string::npos)
      GTEST_SKIP() << "not all that the tests need is here";
  }

  static constexpr const char* program = R"(<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="1" disabled="1" errors="0" time="0" name="AllTests">
  <testsuite name="A" tests="4" failures="1" disabled="1" skipped="1" errors="0">
    <testcase name="Passes" status="run" result="completed" classname="A" />
    <testcase name="Skips" status="run" result="skipped" classname="A">
      <skipped message="no"><![CDATA[said
it met <testsuites tests="7"> and <testsuite skipped="3"]]></skipped>
    </testcase>
    <testcase name="DISABLED_Never" status="notrun" result="suppressed" classname="A" />
    <testcase name="Fails" status="run" result="completed" classname="A" />
  </testsuite>
</testsuites>
)";
};

TEST_F(RunScriptTests, TheTestsOfProgramsAreCounted) {
  const finished got = ask("./run test --preset release");
  EXPECT_EQ(got.code, 1);
  EXPECT_NE(got.out.find("\n2 passed, 2 failed, 2 skipped\n"), std::string::npos) << got.out;
  EXPECT_EQ(text_of_file(path("build/release/skipped.txt")),
            "A.Skips: no\nA.DISABLED_Never: disabled\n");
}

// As GoogleTest and CTest write them: a program's tests, and tests that are a process each.
TEST_F(RunScriptTests, SkipsAreCountedByReason) {
  file("program.xml", R"(<testsuites tests="3" failures="0" disabled="0" errors="0">
  <testsuite name="A" tests="3" failures="0" disabled="0" skipped="3" errors="0">
    <testcase name="One/cuda_device" status="run" result="skipped" classname="A">
      <skipped message="/a b/c.cpp:41&#x0A;the CUDA driver&apos;s library is not here"><![CDATA[
x]]></skipped>
    </testcase>
    <testcase name="Two" status="run" result="skipped" classname="A">
      <skipped message="/a/d.cpp:7&#x0A;no streams"><![CDATA[x]]></skipped>
    </testcase>
    <testcase name="Three" status="run" result="skipped" classname="A">
      <skipped message="/a/d.cpp:7&#x0A;no bytes"><![CDATA[x]]></skipped>
    </testcase>
  </testsuite>
</testsuites>
)");
  file("suite.xml",
       "<testsuite name=\"x\"\n\ttests=\"3\"\n\tfailures=\"0\"\n\tdisabled=\"0\"\n"
       "\tskipped=\"2\"\n>\n"
       "\t<testcase name=\"B.Each\" classname=\"B.Each\" time=\"0\" status=\"notrun\">\n"
       "\t\t<skipped message=\"SKIP_REGULAR_EXPRESSION_MATCHED\"/>\n"
       "\t\t<system-out>[ RUN      ] B.Each\n/a/e.cpp:3: Skipped\nno Level Zero loader to ask\n\n"
       "</system-out>\n\t</testcase>\n"
       "\t<testcase name=\"c.resources\" classname=\"c\" time=\"0\" status=\"notrun\">\n"
       "\t\t<skipped message=\"SKIP_REGULAR_EXPRESSION_MATCHED\"/>\n"
       "\t\t<system-out>skipped: no headers of CCCL\n</system-out>\n\t</testcase>\n");
  script("bin/ctest", "mkdir -p \"$2/gtest\"; cp '" + path("suite.xml") +
                          "' \"$2/tests.xml\"; cp '" + path("program.xml") + "' \"$2/gtest/\"");
  const finished got = ask("./run test --preset release");
  EXPECT_EQ(got.code, 0) << got.err;
  const std::string table =
      "skipped, by reason (build/release/skipped.txt):\n"
      "     2  the driver has not what is tested\n"
      "     1  no GPU with CUDA here\n"
      "     1  no Level Zero loader or device here\n"
      "     1  no headers of CCCL\n"
      "0 passed, 0 failed, 5 skipped\n";
  EXPECT_TRUE(got.out.ends_with(table)) << got.out;
}

TEST_F(RunScriptTests, TheNextPresetIsBuiltMeanwhile) {
  const finished got = ask("./run test --preset release --preset dev");
  EXPECT_EQ(text_of_file(path("tested")), "release\ndev\n");
  EXPECT_NE(got.out.find("\n4 passed, 4 failed, 4 skipped\n"), std::string::npos) << got.out;
  EXPECT_NE(got.err.find("waiting for the build of the preset dev"), std::string::npos) << got.err;
}

TEST_F(RunScriptTests, WhatWasTestedIsCountedWhereTheNextBuildFails) {
  script("bin/ninja", "case \"$*\" in *' -n'*) ;; *dev*) echo wrong; exit 1 ;; esac");
  const finished got = ask("./run test --preset release --preset dev --preset tsan");
  EXPECT_EQ(got.code, 1);
  EXPECT_EQ(text_of_file(path("tested")), "release\n");
  EXPECT_NE(got.out.find("\n2 passed, 2 failed, 2 skipped\n"), std::string::npos) << got.out;
  EXPECT_NE(got.err.find("wrong\n"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("the preset dev could not be built\n"), std::string::npos) << got.err;
}

// What a folder was configured for is remembered: the other tests need another configuration.
TEST_F(RunScriptTests, AllTestsAreAnotherConfiguration) {
  script("bin/ctest", "");
  script("bin/cmake",
         "if [[ $1 == --version ]]; then echo 'cmake version 3.31.0'; exit; fi\n"
         "echo \"$*\" >>'" +
             path("options") + "'; mkdir -p build/$2; touch build/$2/build.ninja");
  const std::string usual = "--preset release\n";
  const std::string all =
      "--preset release -DVMM_TEST_ALL=ON -DVMM_TEST_EVERY_PROGRAM=ON -DVMM_JOIN_UNITS=OFF\n";
  const finished first = ask("./run test --preset release");
  EXPECT_NE(first.out.find("left out, for ./run test --all:\n  under release, unit tests"),
            std::string::npos)
      << first.out;
  (void)ask("./run test --preset release");
  EXPECT_EQ(text_of_file(path("options")), usual);
  const finished whole = ask("./run test --preset release --all");
  EXPECT_EQ(whole.out.find("--all"), std::string::npos) << whole.out;
  (void)ask("./run bench");
  EXPECT_EQ(text_of_file(path("options")), usual + all);
  (void)ask("./run test --preset release");
  EXPECT_EQ(text_of_file(path("options")), usual + all + usual);
}

TEST_F(RunScriptTests, ACallersOptionsOfASanitizerStay) {
  script("bin/ctest", "echo \"$ASAN_OPTIONS\" >'" + path("options") + "'");
  (void)ask("./run test --preset release");
  EXPECT_TRUE(text_of_file(path("options")).starts_with("quarantine_size_mb=16:"));
  (void)ask("env ASAN_OPTIONS=verbosity=1 ./run test --preset release");
  EXPECT_EQ(text_of_file(path("options")), "verbosity=1\n");
}

// ---- checks ------------------------------------------------------------------------------------

class RunScriptChecks : public RunScriptTests {
 protected:
  void SetUp() override {
    RunScriptTests::SetUp();
    if (IsSkipped()) return;
    std::filesystem::create_directories(path("tests/check"));
    file("tests/check/adds.sh", "# Goal: sums are right.\necho \"sum of $*\"\n");
    file("tests/check/fetches.py", "import sys\nprint('no network')\nsys.exit(77)\n");
    file("tests/check/_shared.py", "");
    if (ask("./run check --no-install adds").code != 0) GTEST_SKIP() << "ensurepip is missing";
  }
};

TEST_F(RunScriptChecks, AreListedAndRunByName) {
  const finished names = ask("./run check");
  EXPECT_EQ(names.code, 0);
  EXPECT_EQ(names.out,
            "usage: ./run check NAME [ARGUMENTS]; NAME is one of:\n"
            "  adds           sums are right.\n"
            "  fetches        \n");
  EXPECT_EQ(ask("./run check adds 1 2").out, "sum of 1 2\n");
  EXPECT_EQ(ask("./run check fetches").code, 77);
  const finished wrong = ask("./run check add");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "run: unknown check 'add'; NAME is one of: adds fetches \n");
}

TEST_F(RunScriptChecks, FollowTheTests) {
  script("bin/ctest", "");
  const finished good = ask("./run test --all --preset release");
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_NE(good.out.find("checks: 1 passed, 0 failed, 1 skipped\n"), std::string::npos)
      << good.out;
  EXPECT_NE(good.err.find("skipped: check fetches: no network\n"), std::string::npos) << good.err;
  file("tests/check/adds.sh", "exit 3");
  const finished bad = ask("./run test --preset release --all");
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.out.find("checks: 0 passed, 1 failed, 1 skipped\nfailed: adds\n"),
            std::string::npos)
      << bad.out;
  EXPECT_EQ(ask("./run test --preset release").out.find("checks:"), std::string::npos);
}

TEST_F(RunScriptChecks, OfTheSourcesComeBeforeTheBuild) {
  script("bin/ctest", "");
  file("tests/check/lint.sh", "# Goal: none.\necho \"linted $*\" | tee -a '" + path("log") +
                                  "'\necho 'a.py:1: unused'\nexit 1\n");
  const finished bad = ask("./run test --preset dev");
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.out.find("a.py:1: unused\n"), std::string::npos) << bad.out;
  EXPECT_NE(bad.err.find("run: a linter found something\n"), std::string::npos) << bad.err;
  EXPECT_TRUE(text_of_file(path("log")).starts_with("configured\nlinted --sources\n"));
  EXPECT_NE(text_of_file(path("log")).find("linted --changed\n"), std::string::npos);
  EXPECT_NE(bad.out.find("  the checks adds fetches, and"), std::string::npos) << bad.out;
  file("tests/check/lint.sh", "echo 'no network'\nexit 77\n");
  const finished good = ask("./run test --preset release");
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_NE(good.out.find("no network\n"), std::string::npos) << "what is skipped is named";
}

// ---- packages that only tests need -------------------------------------------------------------

// A copy of the script that misses one of them, with an apt-get that installs it once it may: where
// `when` (Bash) is true. Its output is in build/.packages.log when it runs beside the build.
class RunScriptInstalls : public RunScript {
 protected:
  void SetUp() override {
    RunScript::SetUp();
    if (IsSkipped()) return;
    const std::string known = "grep -Eqx 'ID=(debian|ubuntu)' /etc/os-release";
    if (std::system(known.c_str()) != 0 || ask("./run test --no-install").code != 0)
      GTEST_SKIP() << "another distribution, or not all that the tests need is here";
    const std::string change = "sed -i 's/^make|make|/no-such|no-such-package|/' ";
    ASSERT_EQ(std::system((change + path("run")).c_str()), 0);
    script("bin/id", "echo 0");
    script("bin/ctest", log("tested"));
  }
  [[nodiscard]] std::string log(const std::string& word) const {
    return "echo '" + word + "' >>'" + path("log") + "'; ";
  }
  void installs(const std::string& when) const {
    script("bin/apt-get",
           "case \"$*\" in indextargets*) echo a ;; esac\n"
           "case \"$*\" in *Lock::Timeout=600*install*no-such-package) ;; *) exit 0 ;; esac\n"
           "for ((i = 0; i < 200; ++i)); do " +
               when +
               " && break; sleep 0.05; done\n"
               "[[ $i -lt 200 ]] || { echo 'apt waits in vain'; exit 1; }\n"
               "echo true >'" +
               path("bin/no-such") + "'; chmod +x '" + path("bin/no-such") + "'; " +
               log("installed"));
  }
  void builds(const std::string& how) const {
    script("bin/ninja", "case \"$*\" in *' -n'* | *targets*) exit ;; esac; " + log("built") + how);
  }
};

TEST_F(RunScriptInstalls, BesideTheFirstBuildOfASanitizer) {
  builds("");
  installs("grep -q built '" + path("log") + "'");
  const finished got = ask("./run test --preset dev");
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(text_of_file(path("log")), "configured\nbuilt\ninstalled\ntested\n");
}

TEST_F(RunScriptInstalls, FirstWhereItWouldAskOrTheBuildLooksForThem) {
  builds("");
  installs("true");
  EXPECT_EQ(ask("./run test --preset release").code, 0);
  EXPECT_EQ(text_of_file(path("log")), "installed\nconfigured\nbuilt\ntested\n");
  std::filesystem::remove_all(path("build"));
  std::filesystem::remove(path("bin/no-such"));
  std::filesystem::remove(path("log"));
  script("bin/id", "echo 1000");
  script("bin/sudo", "[[ $1 != -n ]] || exit 1; \"$@\"");
  EXPECT_EQ(ask("./run test --preset dev").code, 0);
  EXPECT_EQ(text_of_file(path("log")), "installed\nconfigured\nbuilt\ntested\n");
}

TEST_F(RunScriptInstalls, WithoutANetworkOrSudoSaysSo) {
  builds("");
  script("bin/apt-get", "exit 0");  // as it ends where no source can be reached
  const finished offline = ask("./run test --preset release");
  EXPECT_EQ(offline.code, 1);
  EXPECT_NE(offline.err.find("is there a network?"), std::string::npos) << offline.err;
  if (std::system("command -v sudo >/dev/null") == 0) return;
  script("bin/id", "echo 1000");
  const finished plain = ask("./run test --preset release");
  EXPECT_NE(plain.err.find("apt-get install --no-install-recommends no-such-package\n"),
            std::string::npos)
      << plain.err;
}

TEST_F(RunScriptInstalls, ThatFailsEndsTheRunBeforeTheTests) {
  builds("");
  script("bin/apt-get",
         "case $1 in indextargets) echo a; exit ;; esac; echo 'apt says no'; exit 100");
  const finished got = ask("./run test --preset dev");
  EXPECT_EQ(got.code, 1);
  EXPECT_NE(got.err.find("apt says no\n"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("could not be installed"), std::string::npos) << got.err;
  EXPECT_EQ(text_of_file(path("log")).find("tested"), std::string::npos);
}

TEST_F(RunScriptInstalls, IsWaitedForWhereTheBuildFails) {
  builds("exit 1");
  installs("grep -q 'waiting for packages' '" + path("err") + "'");
  const finished got = ask("./run test --preset dev");
  EXPECT_EQ(got.code, 1);
  EXPECT_NE(got.err.find("the build of"), std::string::npos) << got.err;
  EXPECT_EQ(text_of_file(path("log")), "configured\nbuilt\ninstalled\n");
}

// ---- what is needed ----------------------------------------------------------------------------

TEST_F(RunScript, SaysWhatEachWordNeeds) {
  script("gpu_tests/gpu.sh", "exit 0");
  struct row {
    const char* word;
    const char* package;
  };
  for (const row& each :
       {row{"demo", "(clang-19)"}, row{"replay", "(ninja-build)"}, row{"prove", "(libgtest-dev)"},
        row{"test", "(libclang-rt-19-dev)"}, row{"fuzz", "(libclang-rt-19-dev)"},
        row{"test", "(llvm-19)"}, row{"test", "(lld-19)"}, row{"gpu", "(lld-19)"},
        row{"docs", "(python3-sphinx)"}}) {
    const finished got = ask(std::string("./run ") + each.word + " --no-install");
    EXPECT_NE(got.out.find(each.package), std::string::npos) << each.word << ": " << got.out;
    EXPECT_EQ(got.err, "");
  }
}

}  // namespace
