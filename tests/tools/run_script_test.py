# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: ./run says nothing of its own when nothing is to be done, configures again when a folder is
new, lists names that can be typed, works through a symbolic link, says what a word needs, lets no
other ./run into a folder in which it builds, counts the tests inside of programs, and installs
packages of the tests during the first build, if no password is needed. It refuses wrong arguments
of its own before anything is installed or built.
Method: the script in a folder of its own, with a cmake and a ninja that write down how they are
called and programs that say so; and this build's rules, in which no list is made anew.

usage: run_script_test.py BUILD [TEST...]
"""

import os
import pathlib
import re
import shutil
import sys
import time
import unittest

from command import ROOT, CommandTest

BUILD = pathlib.Path(sys.argv.pop(1))
VERSION = "if [[ $1 == --version ]]; then echo 'cmake version 3.31.0'; exit; fi\n"
NO_WORK = "*' -n '*) echo 'ninja: no work to do.' ;;"
TARGETS = 'case "$*" in *targets*) echo'


class Case(CommandTest):
    def setUp(self):
        super().setUp()
        for copied in ("run", "CMakePresets.json"):
            shutil.copy(ROOT / copied, self.folder)
        self.file("tests/old/CMakeLists.txt")
        os.mkdir(self.path("elsewhere"))
        for linked in ("adapters", "benchmarks", "examples", "fuzz", "modules", "tools"):
            os.symlink(ROOT / linked, self.path(linked))
        for linked in ("golden", "stream", "threads"):
            os.symlink(ROOT / "tests" / linked, self.path(f"tests/{linked}"))
        self.log = self.path("log")
        self.script(
            "bin/cmake",
            f"{VERSION}echo configured | tee -a '{self.log}'\n"
            "mkdir -p build/$2/benchmarks; touch build/$2/build.ninja",
        )
        self.script(
            "bin/ninja",
            f"{TARGETS} 'bench_va: phony'; echo 'bench_threads: phony' ;;\n"
            f"{NO_WORK} *) echo built | tee -a '{self.log}' ;; esac",
        )
        for name in ("clang++-19", "clang-scan-deps-19", "llvm-symbolizer-19"):
            self.script(f"bin/{name}")
        self.script("build/release/benchmarks/bench_va", 'echo "va: $*"')
        if self.ask("./run bench --no-install").code != 0:
            self.skipTest("headers of Boost, zlib or GoogleTest are not where the script looks")

    def ask(self, command):
        return self.run_command(command, f"PATH='{self.path('bin')}':\"$PATH\"")

    def expect(self, command, code, out=None, err=None):
        got = self.ask(command)
        self.assertEqual(got.code, code, f"{command}: {got.err}")
        for wanted, text in ((out, got.out), (err, got.err)):
            if wanted is not None:
                self.assertEqual(text, wanted, command)
        return got

    def expect_nothing_built(self):
        self.assertEqual(self.read("log"), "", "something was configured or built")

    def expect_free(self, lock):
        """Nothing holds the lock, within 20 seconds."""
        code = self.run_command(f"flock --timeout 20 '{self.path(lock)}' true").code
        self.assertEqual(code, 0, f"{lock} is held")


class Run(Case):
    def test_says_nothing_when_nothing_is_to_be_done(self):
        self.expect("./run bench va --json", 0, "va: --json\n", "configured\n")
        self.expect("./run bench va --json", 0, "va: --json\n", "")

    def test_the_build_makes_no_list_anew(self):
        rules = (BUILD / "build.ninja").read_text()
        self.assertNotIn("VerifyGlobs", rules, "ninja says so in each build")

    def test_configures_again_for_a_new_folder(self):
        self.ask("./run bench va")
        later = time.time() + 5
        os.utime(self.file("tests/new/CMakeLists.txt"), (later, later))
        self.assertEqual(self.ask("./run bench va").err, "configured\n")

    def test_lists_names_that_can_be_typed(self):
        names = self.expect("./run bench", 0)
        self.assert_starts(names.out, "usage: ./run bench NAME; NAME is one of: frontier ")
        self.expect_nothing_built()
        wrong = self.expect("./run bench vb", 2, out="")
        self.assert_starts(wrong.err, "run: unknown bench 'vb'; NAME is one of: frontier ")
        self.assert_starts(self.expect("./run trace", 0).out, "usage: ./run trace KIND")
        self.expect_nothing_built()
        self.expect("./run bench bench_va", 0, "va: \n")

    def test_wrong_arguments_are_refused_before_anything_is_built(self):
        """Those of ./run itself: a program reads its own. A folder of wheel and docs may have any
        name, and ./run fuzz passes options on."""
        self.script("gpu_tests/gpu.sh", "echo '  all '")
        self.script("tests/check/adds.sh")
        words = "bench example fuzz test check gpu".split()
        lines = [f"{word} nonsense" for word in ("nonsense", *words)]
        lines += [f"{word} -x" for word in (*words, "wheel", "docs")]
        lines += "fit;replay;view;threads;wheel a b;wheel --arch;wheel --arch sparc".split(";")
        lines += "wheel --arch aarch64 a b;preload vmm no-such-program;fuzz va -1".split(";")
        for line in lines:
            code = 127 if line.startswith("preload vmm") else 3 if line == "fit" else 2
            got = self.expect(f"./run {line}", code, out="")
            self.assert_starts(got.err, "run: ", line)
        self.expect_nothing_built()

    def test_help_is_printed_before_anything_is_built(self):
        """What is printed is what the programs of this build print."""
        self.script("gpu_tests/gpu.sh", "echo 'usage: gpu.sh'")
        self.script("tests/check/adds.sh", "# Goal: one and one is two")
        for line in (
            "demo -h,test --help,check -h,check adds -h,replay x --help,fit -h,view -h,"
            "top --json -h,trace -h,bench -h,bench va -h,bench growth -h,preload -h,fuzz -h,"
            "fuzz va 3 -h,example -h,example first -h,wheel -h,gpu -h,prove 3 --help,"
            "threads -h,golden -h,docs -h"
        ).split(","):
            got = self.expect(f"./run {line}", 0, err="")
            start = "./run check adds: one" if line == "check adds -h" else "usage: "
            self.assert_starts(got.out, start, line)
        self.expect_nothing_built()
        for word in ("demo", "replay", "fit", "trace", "top"):
            program = BUILD / "tools" / ("top" if word == "top" else "") / f"vmm-{word}"
            own = self.run_command(f"'{program}' --help").out
            self.assert_starts(own, f"usage: vmm-{word}", f"{program} is not built")
            own = own.replace(f"vmm-{word}", f"./run {word}", 1)
            ours = self.ask(f"./run {word} --help").out
            if word == "trace":  # one blank more, or less, before the text of a kind
                own, ours = own.replace(" ", ""), ours.replace(" ", "")
            self.assertEqual(ours, own)

    def test_right_arguments_reach_the_programs(self):
        """The shipped scripts name what they need of sources by their places."""
        self.file("a.trace", "a 1 64 0\n")
        self.script(
            "bin/ninja",
            'case "$*" in *targets*) for each in vmm-replay vmm-demo vmm-top vmm-trace vmm-history '
            "vmm-fit prove_schedules schedule_threads golden_test bench_va example_first; do "
            f'echo "$each: phony"; done ;;\n{NO_WORK} esac',
        )
        replay, threads = "release/tools/vmm-replay", "dev/tests/threads/schedule_threads"
        for line, program, given in (
            ("replay a.trace --policy pool --jitter 1", replay, "a.trace --policy pool --jitter 1"),
            ("replay --policy pool a.trace", replay, "--policy pool a.trace"),
            ("replay a.trace --costs busy --backend cuda:1 --repeat 1000", replay, None),
            ("fit a.trace --device NVIDIA-A100-SXM4-80GB", "release/tools/vmm-fit", None),
            ("demo --up-to 16GiB --svg -", "release/tools/vmm-demo", None),
            ("demo --up-to 4MiB", "release/tools/vmm-demo", "--up-to 4MiB"),
            ("demo", "release/tools/vmm-demo", ""),
            ("top --once", "release/tools/top/vmm-top", "--once"),
            ("trace tables 3", "release/tools/vmm-trace", "tables 3"),
            ("view a.trace --out=x", "release/tools/history/vmm-history", "page a.trace --out=x"),
            ("prove 10 --first 3", "release/tests/stream/prove_schedules", "10 --first 3"),
            ("threads pool --first 3", threads, "pool 1000000 --first 3"),
            ("golden --show pool 3", "release/tests/golden/golden_test", "--show pool 3"),
            ("bench va --json", "release/benchmarks/bench_va", "--json"),
            ("example example_first", "release/examples/example_first", ""),
        ):
            self.script(f"build/{program}", 'echo "$*"')
            given = line.partition(" ")[2] if given is None else given
            self.expect(f"./run {line}", 0, out=given + "\n")

    @unittest.skipUnless(shutil.which("flock"), "flock is missing")
    def test_holds_the_folder_while_it_builds(self):
        """A second ./run in the same folder waits: neither CMake nor ninja keeps it out."""
        lock = self.path("build/release/.lock")
        look = f"flock --nonblock '{lock}' true && echo free || echo held"
        self.script("bin/cmake", f"{VERSION}touch build/release/build.ninja; {look}")
        self.script("bin/ninja", f"{TARGETS} 'bench_va: phony' ;; *' -n '*) ;; *) {look} ;; esac")
        self.script("build/release/benchmarks/bench_va", look)
        self.expect("./run bench va", 0, out="free\n", err="held\nheld\n")

    @unittest.skipUnless(shutil.which("flock"), "flock is missing")
    def test_ends_the_build_beside_the_tests(self):
        """A build beside the tests holds its folder: it ends with the script, by whatever that
        ends."""
        begun, never = self.pipes()
        waits = f"echo >'{begun}'; read -r _ <'{never}'"
        self.script("bin/ninja", f'case "$*" in */build/dev*) {waits} ;; {NO_WORK} esac')
        self.script("bin/ctest", f"read -r _ <'{begun}'; kill -TERM $PPID; exit 1")
        self.ask("./run test --preset release --preset dev")
        self.expect_free("build/dev/.lock")

    def pipes(self):
        names = self.path("begun"), self.path("never")
        for name in names:
            os.mkfifo(name)
        return names

    @unittest.skipUnless(shutil.which("flock"), "flock is missing")
    def test_ends_the_tests_with_itself(self):
        """What is sent to the script alone reaches the tests, and what these have begun."""
        begun, never = self.pipes()
        waits = f"exec 9>'{self.path('held')}'; flock --shared 9; "
        self.script("bin/a_test", f"{waits}echo >'{begun}'; read -r _ <'{never}'")
        for signal, code in (("TERM", 143), ("QUIT", 131)):
            kills = f"read -r _ <'{begun}'; kill -{signal} $PPID; read -r _ <'{never}'"
            self.script("bin/ctest", f"{waits}a_test & {kills}")
            got = self.expect("./run test --preset release", code)
            self.assertNotIn("passed", got.out)
            self.expect_free("held")

    @unittest.skipUnless(shutil.which("flock"), "flock is missing")
    def test_ends_a_build_with_itself(self):
        """So do the compilers of a build, whatever word it is for."""
        begun, never = self.pipes()
        waits = f"exec 9>'{self.path('held')}'; flock --shared 9; "
        self.script("bin/compiler", f"{waits}echo >'{begun}'; read -r _ <'{never}'")
        main = self.path("main")
        for signal, code in (("TERM", 143), ("INT", 130)):
            # The script is not the parent of what it has started: a shell lies between.
            self.script(
                "bin/ninja",
                f"{TARGETS} 'bench_va: phony'; exit ;; *' -n '*) exit ;; esac\n"
                f"{waits}compiler & read -r _ <'{begun}'; kill -{signal} $(cat '{main}'); "
                f"read -r _ <'{never}'",
            )
            got = self.expect(f"bash -c 'echo $$ >\"{main}\"; exec ./run bench va'", code)
            self.assertIn("run: interrupted\n", got.err)
            self.assertNotIn("failed", got.err)
            self.expect_free("held")
            self.expect_free("build/release/.lock")

    def test_names_the_nearest_word(self):
        nearest = "run: unknown command 'dmeo'; did you mean 'demo'?\n"
        self.expect("./run dmeo", 2, "", f"{nearest}     ./run help lists the words\n")
        self.assertNotIn("mean", self.ask("./run nonsense").err)
        usage = "run: usage: ./run preload off|monitor|vmm|cache PROGRAM [ARGUMENTS]\n"
        self.expect("./run preload fast true", 2, err=f"{usage}     not 'fast true'\n")

    def test_a_tree_that_cannot_be_written_to_is_a_line(self):
        """Root cannot make this folder either."""
        shutil.rmtree(self.path("build"))
        os.symlink("/proc/none", self.path("build"))
        why = "which cannot be written to: copy the tree to a writable folder\n"
        for line in ("demo", "test", "bench va", "wheel", "fuzz va 1", "top"):
            said = f"run: ./run builds in {self.path('build')}, {why}"
            self.expect(f"./run {line}", 1, "", said)
        self.expect("./run help", 0)

    @unittest.skipIf(os.uname().machine == "aarch64", "this machine is no other one")
    def test_a_wheel_for_another_processor(self):
        """Packages are unpacked once, the compiler's C++ library among them; the build has a folder
        of its own."""
        selected = "Selected GCC installation: /usr/lib/gcc/x86_64-linux-gnu/13"
        self.script("bin/clang++-19", f"echo '{selected}' >&2")
        self.script("packaging/sysroot.sh", f'echo "sysroot $*" >>\'{self.log}\'; mkdir -p "$2"')
        for name in ("ld.lld-19", "llvm-strip-19", "dpkg-deb"):
            self.script(f"bin/{name}")
        if self.ask("./run wheel --no-install").code != 0:
            self.skipTest("there is no hatchling")
        for _ in range(2):
            self.ask("./run wheel --arch aarch64")
        sysroot = self.path("build/sysroot-aarch64")
        needs = f"sysroot arm64 {sysroot} libc6-dev libstdc++-13-dev zlib1g-dev libgtest-dev "
        self.assertEqual(self.read("log").count(needs), 1, self.read("log"))
        self.assertTrue(os.path.exists(self.path("build/aarch64/build.ninja")))

    def test_preloads_from_a_path_with_blanks(self):
        """ld.so cuts LD_PRELOAD at blanks and colons and goes on without the library."""
        tree = self.folder / "a b:c"
        (tree / "tests").mkdir(parents=True)
        for copied in ("run", "CMakePresets.json"):
            shutil.copy(ROOT / copied, tree)
        self.script("bin/ninja", f"{TARGETS} 'vmm_preload: phony' ;;\n{NO_WORK} esac")
        self.script("bin/program", 'echo "$LD_PRELOAD"; readlink "$LD_PRELOAD"; echo "$VMM_MODE"')
        got = self.expect("'a b:c/run' preload vmm program", 0)
        named = got.out.split("\n")[0]
        self.assertNotRegex(named, "[ :]")
        library = tree.resolve() / "build/release/preload/libvmm_preload.so"
        self.assertEqual(got.out, f"{named}\n{library}\nvmm\n")
        os.remove(named)
        self.script("bin/stat", "echo 777")
        # Without the library the program does not run.
        refused = self.expect("'a b:c/run' preload vmm program", 1, out="")
        self.assertIn("no path with blanks", refused.err)
        unknown = "run: unknown program 'no-such-program'\n"
        self.expect("./run preload vmm no-such-program", 127, err=unknown)

    def test_works_through_a_symbolic_link(self):
        os.symlink("../run", self.path("elsewhere/vmm-run"))
        os.symlink("vmm-run", self.path("elsewhere/again"))
        self.expect("elsewhere/again bench va", 0, "va: \n")

    def test_says_what_each_word_needs(self):
        self.script("gpu_tests/gpu.sh", "exit 0")
        for word, package in (
            ("demo", "clang-19"),
            ("replay", "ninja-build"),
            ("prove", "libgtest-dev"),
            ("test", "libclang-rt-19-dev"),
            ("fuzz", "libclang-rt-19-dev"),
            ("test", "llvm-19"),
            ("test", "lld-19"),
            ("gpu", "lld-19"),
            ("docs", "python3-sphinx"),
        ):
            got = self.ask(f"./run {word} --no-install")
            self.assertIn(f"({package})", got.out, word)
            self.assertEqual(got.err, "")


PROGRAM = """<?xml version="1.0" encoding="UTF-8"?>
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
"""
SUITE = '<testsuite name="x"\n\ttests="3"\n\tfailures="{}"\n\tdisabled="0"\n\tskipped="{}"\n>'
SUITE += "{}</testsuite>\n"


class TestsCase(Case):
    """With a ctest that runs a program of four tests, of which one fails, one is skipped and one is
    disabled, a program that ends before it has written its file, and a test that is not a
    program."""

    def setUp(self):
        super().setUp()
        self.script("bin/renice")
        self.file("suite.xml", SUITE.format(2, 0, ""))
        self.file("program.xml", PROGRAM)
        self.copies = (
            f'mkdir -p "$2/gtest"; cp \'{self.path("suite.xml")}\' "$2/tests.xml"; '
            f"cp '{self.path('program.xml')}' \"$2/gtest/\""
        )
        tells = f"echo ${{2##*/}} >>'{self.path('tested')}'"
        self.script("bin/ctest", f"{tells}; {self.copies}; exit 8")
        if "  missing  " in self.ask("./run test --no-install").out:
            self.skipTest("not all that the tests need is here")


class RunTests(TestsCase):
    def test_the_tests_of_programs_are_counted(self):
        got = self.expect("./run test --preset release", 1)
        self.assertIn("\n2 passed, 2 failed, 2 skipped\n", got.out)
        skipped = "A.Skips: no\nA.DISABLED_Never: disabled\n"
        self.assertEqual(self.read("build/release/skipped.txt"), skipped)

    def test_skips_are_counted_by_reason(self):
        """As GoogleTest and CTest write them: a program's tests, and tests of a process each."""
        case = '    <testcase name="{}" status="run" result="skipped" classname="A">\n'
        case += '      <skipped message="{}"><![CDATA[\nx]]></skipped>\n    </testcase>\n'
        no_cuda = "the CUDA driver&apos;s library is not here"
        self.file(
            "program.xml",
            '<testsuites tests="3" failures="0" disabled="0" errors="0">\n'
            '  <testsuite name="A" tests="3" failures="0" disabled="0" skipped="3" errors="0">\n'
            + case.format("One/cuda_device", f"/a b/c.cpp:41&#x0A;{no_cuda}")
            + case.format("Two", "/a/d.cpp:7&#x0A;no streams")
            + case.format("Three", "/a/d.cpp:7&#x0A;no bytes")
            + "  </testsuite>\n</testsuites>\n",
        )
        case = '\t<testcase name="{0}" classname="{0}" time="0" status="notrun">\n'
        case += '\t\t<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>\n'
        case += "\t\t<system-out>{1}</system-out>\n\t</testcase>\n"
        zero = "[ RUN      ] B.Each\n/a/e.cpp:3: Skipped\nno Level Zero loader to ask\n\n"
        cases = case.format("B.Each", zero)
        cases += case.format("c.resources", "skipped: no headers of CCCL\n")
        self.file("suite.xml", SUITE.format(0, 2, cases))
        self.script("bin/ctest", self.copies)
        got = self.expect("./run test --preset release", 0)
        table = (
            "skipped, by reason (build/release/skipped.txt):\n"
            "     2  the driver has not what is tested\n"
            "     1  no GPU with CUDA here\n"
            "     1  no Level Zero loader or device here\n"
            "     1  no headers of CCCL\n"
            "0 passed, 0 failed, 5 skipped\n"
        )
        self.assertEqual(got.out[-len(table) :], table)

    def test_the_next_preset_is_built_meanwhile(self):
        got = self.ask("./run test --preset release --preset dev")
        self.assertEqual(self.read("tested"), "release\ndev\n")
        self.assertIn("\n4 passed, 4 failed, 4 skipped\n", got.out)
        self.assertIn("waiting for the build of the preset dev", got.err)

    def test_what_was_tested_is_counted_where_the_next_build_fails(self):
        self.script("bin/ninja", "case \"$*\" in *' -n'*) ;; *dev*) echo wrong; exit 1 ;; esac")
        got = self.expect("./run test --preset release --preset dev --preset tsan", 1)
        self.assertEqual(self.read("tested"), "release\n")
        self.assertIn("\n2 passed, 2 failed, 2 skipped\n", got.out)
        self.assertIn("wrong\n", got.err)
        self.assertIn("the preset dev could not be built\n", got.err)

    def test_all_tests_are_another_configuration(self):
        """What a folder was configured for is remembered."""
        self.script("bin/ctest")
        self.script(
            "bin/cmake",
            f"{VERSION}echo \"$*\" >>'{self.path('options')}'; mkdir -p build/$2; "
            "touch build/$2/build.ninja",
        )
        usual = "--preset release"
        every = f"{usual} -DVMM_TEST_ALL=ON -DVMM_TEST_EVERY_PROGRAM=ON "
        every += "-DVMM_LEVEL_ZERO=AUTO -DVMM_JOIN_UNITS=OFF\n"
        usual += "\n"
        first = self.ask("./run test --preset release")
        left_out = "left out, for ./run test --all:\n  under release, unit tests"
        self.assertIn(left_out, first.out)
        self.ask("./run test --preset release")
        self.assertEqual(self.read("options"), usual)
        self.assertNotIn("--all", self.ask("./run test --preset release --all").out)
        self.ask("./run bench")
        self.assertEqual(self.read("options"), usual + every)
        self.ask("./run test --preset release")
        self.assertEqual(self.read("options"), usual + every + usual)

    def test_a_callers_options_of_a_sanitizer_stay(self):
        self.script("bin/ctest", f"echo \"$ASAN_OPTIONS\" >'{self.path('options')}'")
        self.ask("./run test --preset release")
        self.assert_starts(self.read("options"), "quarantine_size_mb=16:")
        self.ask("env ASAN_OPTIONS=verbosity=1 ./run test --preset release")
        self.assertEqual(self.read("options"), "verbosity=1\n")


class RunChecks(TestsCase):
    def setUp(self):
        super().setUp()
        self.file("tests/check/adds.sh", '# Goal: sums are right.\necho "sum of $*"\n')
        self.file("tests/check/fetches.py", "import sys\nprint('no network')\nsys.exit(77)\n")
        self.file("tests/check/_shared.py")
        if self.ask("./run check --no-install adds").code != 0:
            self.skipTest("ensurepip is missing")

    def test_are_listed_and_run_by_name(self):
        names = "usage: ./run check NAME [ARGUMENTS]; NAME is one of:\n"
        names += "  adds           sums are right.\n  fetches        \n"
        self.expect("./run check", 0, names)
        self.expect("./run check adds 1 2", 0, "sum of 1 2\n")
        self.expect("./run check fetches", 77)
        unknown = "run: unknown check 'add'; NAME is one of: adds fetches \n"
        self.expect("./run check add", 2, err=unknown)

    def test_follow_the_tests(self):
        self.script("bin/ctest")
        good = self.expect("./run test --all --preset release", 0)
        self.assertIn("checks: 1 passed, 0 failed, 1 skipped\n", good.out)
        self.assertIn("skipped: check fetches: no network\n", good.err)
        self.file("tests/check/adds.sh", "exit 3")
        bad = self.expect("./run test --preset release --all", 1)
        self.assertIn("checks: 0 passed, 1 failed, 1 skipped\nfailed: adds\n", bad.out)
        self.assertNotIn("checks:", self.ask("./run test --preset release").out)

    def test_of_the_sources_come_before_the_build(self):
        self.script("bin/ctest")
        lint = f"# Goal: none.\necho \"linted $*\" | tee -a '{self.log}'\n"
        self.file("tests/check/lint.sh", f"{lint}echo 'a.py:1: unused'\nexit 1\n")
        rules = "print('a.py:2: too long')\nraise SystemExit(1)\n"
        self.file("tests/tidiness/tidiness_test.py", rules)
        bad = self.expect("./run test --preset dev", 1)
        self.assertIn("a.py:1: unused\n", bad.out)
        self.assertIn("a.py:2: too long\n", bad.out)
        self.assertIn("run: a linter found something\n", bad.err)
        self.assert_starts(self.read("log"), "configured\nlinted --sources\n")
        self.assertIn("linted --changed\n", self.read("log"))
        self.assertIn("  the checks adds fetches, and", bad.out)
        self.file("tests/check/lint.sh", "echo 'no network'\nexit 77\n")
        self.file("tests/tidiness/tidiness_test.py")
        good = self.expect("./run test --preset release", 0)
        self.assertIn("no network\n", good.out, "what is skipped is named")


class RunInstalls(Case):
    """A copy of the script that misses a package, with an apt-get that installs it once it may:
    where `when` (Bash) is true. Its output is in build/.packages.log when it runs beside the
    build."""

    def setUp(self):
        super().setUp()
        system = pathlib.Path("/etc/os-release")
        name = re.compile("^ID=(debian|ubuntu)$", re.MULTILINE)
        known = system.exists() and name.search(system.read_text())
        if not known or self.ask("./run test --no-install").code != 0:
            self.skipTest("another distribution, or not all that the tests need is here")
        needs = self.read("run").replace("\nmake|make|", "\nno-such|no-such-package|")
        self.assertIn("no-such|", needs)
        self.file("run", needs)
        self.script("bin/id", "echo 0")
        self.script("bin/ctest", self.logs("tested"))

    def logs(self, word):
        return f"echo '{word}' >>'{self.log}'; "

    def installs(self, when):
        made = self.path("bin/no-such")
        self.script(
            "bin/apt-get",
            'case "$*" in indextargets*) echo a ;; esac\n'
            'case "$*" in *Lock::Timeout=600*install*no-such-package) ;; *) exit 0 ;; esac\n'
            f"for ((i = 0; i < 200; ++i)); do {when} && break; sleep 0.05; done\n"
            "[[ $i -lt 200 ]] || { echo 'apt waits in vain'; exit 1; }\n"
            f"echo true >'{made}'; chmod +x '{made}'; {self.logs('installed')}",
        )

    def builds(self, how=""):
        asks = "case \"$*\" in *' -n'* | *targets*) exit ;; esac; "
        self.script("bin/ninja", f"{asks}{self.logs('built')}{how}")

    def expect_log(self, *words):
        self.assertEqual(self.read("log").split(), list(words))

    def test_beside_the_first_build_of_a_sanitizer(self):
        self.builds()
        self.installs(f"grep -q built '{self.log}'")
        self.expect("./run test --preset dev", 0)
        self.expect_log("configured", "built", "installed", "tested")

    def test_first_where_it_would_ask_or_the_build_looks_for_them(self):
        self.builds()
        self.installs("true")
        self.expect("./run test --preset release", 0)
        self.expect_log("installed", "configured", "built", "tested")
        shutil.rmtree(self.path("build"))
        os.remove(self.path("bin/no-such"))
        os.remove(self.log)
        self.script("bin/id", "echo 1000")
        self.script("bin/sudo", '[[ $1 != -n ]] || exit 1; "$@"')
        self.expect("./run test --preset dev", 0)
        self.expect_log("installed", "configured", "built", "tested")

    def test_without_a_network_or_sudo_says_so(self):
        self.builds()
        self.script("bin/apt-get", "exit 0")  # as it ends where no source can be reached
        offline = self.expect("./run test --preset release", 1)
        self.assertIn("is there a network?", offline.err)
        if shutil.which("sudo"):
            return
        self.script("bin/id", "echo 1000")
        plain = self.ask("./run test --preset release")
        line = "apt-get install --no-install-recommends no-such-package\n"
        self.assertIn(line, plain.err)

    def test_that_fails_ends_the_run_before_the_tests(self):
        self.builds()
        update = "case $1 in indextargets) echo a; exit ;; esac; "
        self.script("bin/apt-get", f"{update}echo 'apt says no'; exit 100")
        got = self.expect("./run test --preset dev", 1)
        self.assertIn("apt says no\n", got.err)
        self.assertIn("could not be installed", got.err)
        self.assertNotIn("tested", self.read("log"))

    def test_is_waited_for_where_the_build_fails(self):
        self.builds("exit 1")
        self.installs(f"grep -q 'waiting for packages' '{self.path('err')}'")
        got = self.expect("./run test --preset dev", 1)
        self.assertIn("the build of", got.err)
        self.expect_log("configured", "built", "installed")


if __name__ == "__main__":
    unittest.main()
