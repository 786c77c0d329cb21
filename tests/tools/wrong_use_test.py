# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: every program and every word of ./run refuses a wrong command line or variable with the
exit code that its documentation gives, a message that names it, and nothing on standard output; and
prints --help on standard output.
Method: tables of command lines. Where a program would work for long if it took what is wrong, the
refusal has to come first for the test to end.

usage: wrong_use_test.py BUILD VERSION FLAGS [TEST...]; FLAGS are preload, all or none
"""

import os
import pathlib
import re
import sys
import unittest

from command import ROOT, TINY, CommandTest

BUILD, VERSION, FLAGS = (sys.argv.pop(1) for _ in range(3))


def command_of(line):
    """The line for the shell, whose first word is a program of the tree or of the build."""
    program, _, arguments = line.partition(" ")
    is_script = program == "run" or program.endswith(".sh")
    return f"'{pathlib.Path(ROOT if is_script else BUILD, program)}' {arguments}"


class WrongUse(CommandTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("tiny.trace", TINY)

    def expect(self, code, program, table):
        """A row is VARIABLES ARGUMENTS :: MESSAGE, where $ is the end of a line and @ the path of a
        good trace. A line that begins with + continues the row before."""
        for row in re.sub(r"\n *\+ ", " ", table).strip().split("\n"):
            line, message = (each.strip() for each in row.split("::", 1))
            if "bench_preload" in line and "preload" not in FLAGS:
                continue
            variables, line = re.fullmatch(r"((?:V?P?MM_\w+=\S* ?)*)(.*)", line).groups()
            name = program + ("" if program.endswith("/") or not program else " ") + line
            command = command_of(name.strip())
            self.assertTrue(os.path.exists(command.split("'")[1]), command)
            with self.subTest(row):
                got = self.run_command(command.replace("@", self.trace), variables)
                self.assertEqual((got.code, got.out), (code, ""), got.err)
                self.assertIn(re.sub(r"\$$", "\n", message), got.err)
                if "--help lists the options)\n" in got.err:
                    self.assertEqual(got.err.count("\n"), 1)

    def test_of_replay(self):
        self.expect(
            2,
            "tools/vmm-replay",
            """
            :: vmm-replay: which trace? The first argument is a file (vmm-replay --help lists the
            + options)$
            '' :: vmm-replay: the trace's name is empty
            @ @ :: is one too many
            @ --fast :: unknown option --fast (vmm-replay --help lists the options)$
            @ --polcy pool :: vmm-replay: unknown option --polcy; the nearest is --policy
            + (vmm-replay --help
            @ --jiter=3 :: unknown option --jiter=3; the nearest is --jitter (
            @ --backend '' :: --backend takes one of fake, host, cuda, cuda:N, level_zero,
            + level_zero:N; not ''
            @ --policy '' :: --policy takes a value
            @ --policy= :: --policy takes a value
            @ --policy poool :: unknown policy 'poool'; the nearest is pool:
            @ --repeat '' :: --repeat takes a number from 0 to 1000; not ''
            @ --repeat 1001 :: --repeat takes a number from 0 to 1000; not '1001'
            @ --repeat 2x :: --repeat takes a number from 0 to 1000; not '2x'
            @ --json=1 :: --json takes no value
            @ --costs :: --costs takes a value
            @ --costs real :: --costs takes quiet or busy; not 'real'
            @ --costs busy --backend host :: only the fake driver has costs
            @ --jitter -1 :: --jitter takes a whole number from 0 on; not '-1'
            @ --jitter '' :: --jitter takes a whole number from 0 on; not ''
            @ --jitter-seeds 0 :: takes a number from 1 to 1000; not '0'
            @ --jitter-seeds 1001 :: takes a number from 1 to 1000; not '1001'
            @ --jitter-seeds 2 --jitter 1 :: --jitter-seeds takes no --jitter
            @ --jitter-seeds 2 --repeat 1 :: --jitter-seeds takes no --repeat
            @ --jitter-seeds 2 --svg x.svg :: --jitter-seeds takes no --svg
            @ --jitter-seeds 2 --history x :: --jitter-seeds takes no --history
            @ --svg '' :: --svg takes a value
            @ --svg ./tiny.trace :: ./tiny.trace is the trace: --svg takes another
            @ --history ./tiny.trace :: ./tiny.trace is the trace or the picture
            @ --svg x.svg --history ./x.svg :: ./x.svg is the trace or the picture: --history
            + takes another
            none.trace :: none.trace: cannot be read: No such file
            """,
        )
        self.expect(
            1,
            "tools/vmm-replay",
            """
            @ --svg no/such/x.svg :: no/such/x.svg: cannot be written: No such file
            @ --svg . :: .: cannot be written: Is a directory
            """,
        )

    def test_of_replays_variables(self):
        self.expect(
            2,
            "tools/vmm-replay",
            """
            VMM_BACKEND=nonsense @ :: VMM_BACKEND takes one of fake, host, cuda, cuda:N,
            + level_zero, level_zero:N; not
            @ --backend level_zero: :: --backend takes level_zero:N, where N is a device's
            + number, 0 for the first; not 'level_zero:'
            @ --backend level_zero:-1 :: not 'level_zero:-1'
            @ --backend cuda:1x :: --backend takes cuda:N, where N is a device's
            @ --backend cuda:99999999999 :: not 'cuda:99999999999'
            @ --backend host:0 :: --backend takes host without a number; not
            @ --backend metal:0 :: --backend takes one of fake, host, cuda
            VMM_BACKEND=cuda:x @ :: VMM_BACKEND takes cuda:N, where N is a
            VMM_POLICY=best @ :: VMM_POLICY takes one of
            VMM_POLICY=best @ --policy pool :: VMM_POLICY takes one of
            VMM_POOL_POLICY=best @ --policy va_pool :: VMM_POOL_POLICY
            VMM_FRAG_RATIO=2 @ :: VMM_FRAG_RATIO takes a number from 0 to 1
            VMM_BUDGET=much @ :: VMM_BUDGET takes bytes
            VMM_VA_SIZE=0 @ :: VMM_VA_SIZE takes bytes
            VMM_CHUNK_SIZE=3 @ :: VMM_CHUNK_SIZE=3: manager_policy::chunk_bytes (VMM_CHUNK_SIZE)
            + is a multiple of the device's
            VMM_VA_SIZE=1 @ --policy pool :: VMM_VA_SIZE=1: reservation_bytes (VMM_VA_SIZE,
            + VPMM_VA_SIZE) is at least one page, page_bytes (VMM_POOL_PAGE_SIZE); not '1': the
            + bytes of a page are 2097152
            VMM_POOL_PAGE_SIZE=256GiB @ --policy pool :: VMM_POOL_PAGE_SIZE=256GiB: page_bytes
            + (VMM_POOL_PAGE_SIZE) is at most the device's memory; not '274877906944': its bytes
            + are 150
            VMM_CHUNK_SIZE=64PiB @ :: VMM_CHUNK_SIZE=64PiB: manager_policy::chunk_bytes
            + (VMM_CHUNK_SIZE) is at most the device's
            VMM_POOL_PAGES=99999999999 @ --policy pool :: VMM_POOL_PAGES=99999999999: page_count
            + (VMM_POOL_PAGES, VPMM_PAGES) is at most the pages of one reservation:
            + reservation_bytes (VMM_VA_SIZE), and less than 512 GiB; not '99999999999': its
            + pages are 262143
            VMM_POOL_PAGES=-1 @ --policy pool :: VMM_POOL_PAGES takes a whole number
            VMM_BUDGET=65537TiB @ :: VMM_BUDGET takes bytes
            VMM_BUDGET=65537TiB @ --policy pool :: VMM_BUDGET takes bytes
            VMM_VA_SIZE=65537TiB @ --policy pool :: VMM_VA_SIZE takes bytes
            VMM_POOL_PAGE_SIZE=0 @ --policy pool :: VMM_POOL_PAGE_SIZE takes bytes
            VMM_POOL_PAGE_SIZE=1TiB @ --policy pool :: VMM_POOL_PAGE_SIZE takes bytes
            VMM_VA_SIZE=1 @ --policy pool --backend host :: VMM_VA_SIZE=1:
            VMM_POOL_CAPTURE=maybe @ --policy pool :: VMM_POOL_CAPTURE takes one of
            """,
        )

    def test_of_fit(self):
        self.expect(
            3,
            "tools/vmm-fit",
            """
            :: vmm-fit: no recording is named (vmm-fit --help lists the options)$
            @ --fast :: unknown option --fast
            @ -x :: unknown option -x
            @ --json=1 :: --json takes no value
            @ --device :: --device takes a value
            @ --device 24 :: --device takes a size as 24GiB, or one of T4-16
            @ --device -1GiB :: not '-1GiB'
            @ --device 1e300GiB :: not '1e300GiB'
            @ --page :: --page takes a value
            @ --beside much :: --beside takes a size as 528MiB; not 'much'
            @ --allocator rmm :: --allocator takes native, expandable, async or vmm
            @ --of x :: --of takes the number of a device, from 0 on; not 'x'
            @ --of 7 :: has 1 device, from 0 on; not 7
            @ --conf max_split_size_mb :: --conf: 'max_split_size_mb' is not a NAME:VALUE
            @ --conf max_split_size_mb:x :: max_split_size_mb does not take 'x'
            @ --conf foo:1 :: --conf: Unrecognized key 'foo' in CUDA allocator config
            @ @ --batch 8,16 --device 1GiB :: is named twice
            @ --batch 8,16 :: --batch takes two files, one for each batch size
            @ @ --batch 8,8 --device 1GiB :: --batch takes two batch sizes as 8,16
            none.trace :: none.trace: cannot be read: No such file
            """,
        )

    def test_of_the_demo_and_the_trace_writer(self):
        self.expect(
            2,
            "tools/",
            """
            vmm-demo --up-to 2MiB :: --up-to takes a size from 4MiB to 16GiB; not '2MiB'
            vmm-demo --up-to :: --up-to takes a value
            vmm-demo banana :: unknown option banana (vmm-demo --help lists the options)$
            vmm-demo --upto 1 :: unknown option --upto; the nearest is --up-to (
            vmm-demo --backend fake :: --backend takes cuda, cuda:N, level_zero, level_zero:N or
            + host; not 'fake'
            VMM_BACKEND=fake vmm-demo :: VMM_BACKEND takes cuda, cuda:N, level_zero, level_zero:N
            + or host; not 'fake'
            vmm-demo --backend level_zero:one :: --backend takes level_zero:N, where N is
            VMM_BACKEND=cuda:-1 vmm-demo :: VMM_BACKEND takes cuda:N, where N is
            vmm-demo --trace none.trace :: none.trace: cannot be read: No such file
            vmm-demo --trace @ --svg ./tiny.trace :: ./tiny.trace is the trace: --svg takes
            vmm-demo --trace @ --svg x.svg --page x.svg :: x.svg is the trace or the picture
            vmm-demo --trace @ --svg x.svg --page ./x.svg :: ./x.svg is the trace or the
            vmm-demo --trace @ --svg x.svg --page ./tiny.trace :: ./tiny.trace is the trace or
            + the picture: --page takes another file
            VMM_CHUNK_SIZE=3 vmm-demo --trace @ --svg x.svg :: VMM_CHUNK_SIZE=3:
            + manager_policy::chunk_bytes
            VMM_POOL_PAGES=x vmm-demo --trace @ --svg x.svg :: VMM_POOL_PAGES takes
            vmm-trace nonsense :: unknown kind 'nonsense'
            vmm-trace --fast :: unknown option --fast (vmm-trace --help lists the options)$
            vmm-trace pictures one :: a seed is a whole number from 0 on; not 'one'
            vmm-trace pictures -1 :: unknown option -1
            vmm-trace pictures 1 2 :: one seed at most; '2' is one too many
            """,
        )
        self.expect(
            1,
            "tools/vmm-demo",
            """
            --trace @ --svg no/x.svg :: no/x.svg: cannot be written: No such file
            --trace @ --svg x.svg --page ./no/x.html :: no/x.html: cannot be written: No such file
            """,
        )

    def test_of_a_file_that_is_not_one(self):
        self.expect(
            1,
            "tools/",
            """
            vmm-replay @ --svg - :: -: cannot be written: name a file
            vmm-replay @ --history=- :: -: cannot be written: name a file
            vmm-demo --trace @ --svg - :: -: cannot be written: name a file
            VMM_CUDA_LIBRARY=/etc/passwd vmm-demo :: no GPU is usable here: bad option: VMM_CUDA_L
            """,
        )

    @unittest.skipUnless("all" in FLAGS, "benchmarks are not built")
    def test_of_benchmarks(self):
        self.expect(
            2,
            "benchmarks/",
            """
            bench_va --fast :: unknown option --fast
            bench_va --json more :: unknown option more
            bench_threads --events many :: a count is a whole number from 1 on
            bench_threads --events 0 :: a count is a whole number from 1 on
            bench_threads --events :: --events has no value
            bench_stream --fast :: unknown option --fast
            bench_stream --live --traces :: usage:
            bench_stream --live --cold :: usage:
            bench_stream --alone --traces :: usage:
            bench_manager --fast :: unknown option --fast
            bench_manager --rounds :: --rounds has no value
            bench_manager --rounds 0 :: a count is a whole number from 1 on
            bench_stream --traces none.trace :: none.trace: cannot be read
            bench_frontier --svg :: --svg has no value
            bench_frontier --svg no/x.svg @ :: no/x.svg: cannot be written: No such
            bench_frontier --knob :: --knob has no value
            bench_frontier --knob handels @ :: bench_frontier: no knob begins with 'handels';
            + knobs are: default; handles, MiB; handles at headroom 1.00, MiB; headroom;
            bench_frontier --jitter-seeds 0 :: a count is a whole number from 1 on
            bench_frontier --jitter-seeds 1001 :: --jitter-seeds takes 1 to 1000
            bench_frontier none.trace :: none.trace: cannot be read
            bench_growth --peak 0 :: a count is a whole number from 1 on
            bench_growth --announce :: --announce has no value
            bench_growth none.trace :: none.trace: cannot be read
            bench_growable --fast 1 :: unknown option --fast
            bench_growable --step :: --step has no value
            bench_growable --step 0 :: bytes are such as 4MiB; not '0'
            bench_growable --steps 0 :: a count is a whole number from 1 on
            bench_growable --backend none :: none
            bench_growable --handle 3KiB :: multiple of the granularity
            bench_suspend --fast 1 :: unknown option --fast
            bench_suspend --keep 3MiB :: multiples of 32MiB; not '3MiB'
            bench_suspend --cycles 0 :: a count is a whole number from 1 on
            bench_suspend --backend none :: none
            bench_preload --fast :: unknown option --fast
            bench_preload --turns 0 :: a count is a whole number from 1 on
            bench_history --fast :: unknown option --fast
            bench_history --turns 0 :: a count is a whole number from 1 on
            bench_history --trace none.trace :: none.trace: cannot be read
            history_player alone :: usage:
            bench_memory --array 3MiB :: --array takes a power of two
            bench_memory --rounds :: --rounds has no value
            bench_memory --rounds x :: a count is a whole number from 1 on; not
            bench_pool :: no TRACE is given
            bench_pool @ --warm 0 :: a count is a whole number from 1 on; not
            bench_pool @ --passes 0 :: a count is a whole number from 1 on; not
            bench_release --slow :: unknown option --slow
            bench_resize --repeat -1 :: a count is a whole number from 1 on; not
            bench_sharing --events 1e6 :: a count is a whole number from 1 on; not
            """,
        )

    def test_of_tools(self):
        self.expect(
            2,
            "",
            """
            tools/history/vmm-history :: vmm-history: page, memory_viz, perfetto or summary is
            + missing (vmm-history --help
            tools/history/vmm-history nonsense x :: the command is page, memory_viz, perfetto or
            + summary; not 'nonsense' (vmm-history --help
            tools/history/vmm-history page :: page takes a history
            tools/history/vmm-history page a b c :: 'c' is one history too many
            tools/history/vmm-history summary none.history :: none.history: cannot be read
            tools/history/vmm-history summary @ :: a trace has no addresses
            tools/history/vmm-history summary @ --device x :: --device takes a number from 0 on;
            + not 'x'
            tools/history/vmm-history page / :: /: cannot be read: Is a directory
            tools/top/vmm-top --nonsense :: unknown option --nonsense (vmm-top --help
            tools/top/vmm-top --jsn :: unknown option --jsn; the nearest is --json (
            tools/top/vmm-top --interval 0 :: --interval takes seconds, 1 to 3600; not '0' (vmm-top
            tools/top/vmm-top --interval :: --interval takes a value
            tools/history/vmm-history page @ --out :: --out takes a path
            tools/history/vmm-history page @ --out @ :: is a history
            tools/history/vmm-history page @ --out ./tiny.trace :: ./tiny.trace is a history:
            + --out takes another
            tools/history/vmm-history page @ -o x :: unknown option -o (vmm-history
            tools/history/vmm-history page @ --ot x :: unknown option --ot; the nearest is --out (
            tools/history/vmm-history page @ --out= :: --out takes a path
            tests/stream/prove_schedules many :: usage:
            tests/stream/prove_schedules --threads :: usage:
            fuzz/replay_trace :: usage:
            examples/example_gpu_vector banana :: usage:
            examples/example_gpu_vector 12banana :: usage:
            examples/example_gpu_vector 256 512 :: usage:
            """,
        )

    @unittest.skipUnless("all" in FLAGS, "the programs for a GPU are not built")
    def test_of_programs_that_test_a_gpu(self):
        self.expect(
            2,
            "",
            """
            gpu_tests/vmm-gpu-test :: usage:
            gpu_tests/vmm-gpu-test banana :: usage:
            gpu_tests/vmm-gpu-test rounds --count many :: a count is a whole number from 1 on; not
            gpu_tests/vmm-gpu-test everything --count 0 :: a count is a whole number from 1 on; not
            gpu_tests/vmm-gpu-test overflow --nonsense :: unknown option --nonsense
            gpu_tests/vmm-gpu-test overflow --workload 0 :: a count is a whole number from 1 on;
            + not
            gpu_tests/vmm-gpu-test graph nonsense :: unknown option nonsense
            gpu_tests/fidelity/vmm-fidelity :: usage:
            gpu_tests/fidelity/vmm-fidelity random --count :: --count has no value
            gpu_tests/fidelity/vmm-fidelity nonsense :: usage:
            gpu_tests/fidelity/vmm-fidelity busy --count :: --count has no value
            """,
        )

    def test_of_run(self):
        self.expect(
            2,
            "",
            """
            run nonsense :: run: unknown command 'nonsense'$
            run test banana :: test takes --preset NAME
            run test --preset :: --preset takes a name
            run test --preset nonsense :: unknown preset 'nonsense' for tests
            run fuzz va :: usage: ./run fuzz TARGET SECONDS
            run preload :: usage: ./run preload off|monitor|vmm|cache PROGRAM
            run preload fast true :: usage: ./run preload off|monitor|vmm|cache
            run fuzz va ten :: usage: ./run fuzz TARGET SECONDS
            run fuzz va 0 :: usage: ./run fuzz TARGET SECONDS
            run fuzz va 4294967296 :: usage: ./run fuzz TARGET SECONDS
            run fuzz nonsense 1 :: unknown fuzz target 'nonsense'; TARGET is one of
            run fuzz ../../va 1 :: unknown fuzz target '../../va'; TARGET is one of
            run gpu nonsense :: unknown command 'nonsense' for gpu
            run docs folder another :: usage: ./run docs [FOLDER]
            gpu_tests/gpu.sh nonsense :: gpu: unknown command 'nonsense'
            """,
        )

    def test_a_folder_that_others_may_read_is_refused_in_a_line(self):
        folder = self.folder / "of_mine" / "vmm"
        folder.mkdir(parents=True)
        folder.chmod(0o704)
        top = command_of("tools/top/vmm-top --json")
        got = self.run_command(top, f"XDG_RUNTIME_DIR='{folder.parent}'")
        why = "the folder must be this user's, with mode 0700: change it, or remove it"
        self.assertEqual((got.code, got.err), (1, f"vmm-top: {folder}: {why}\n"))

    @unittest.skipUnless("all" in FLAGS, "benchmarks are not built")
    def test_nothing_is_said_of_the_blocks_that_a_good_trace_leaves_live(self):
        frontier = command_of("benchmarks/bench_frontier --knob 'handles at' ")
        got = self.run_command(frontier + self.trace)
        self.assertEqual((got.code, got.err), (0, ""))
        self.assertIn("| handles at headroom 1.00, MiB | 64 |", got.out)
        self.assertNotIn("| spend", got.out)

    def test_of_variables_is_named(self):
        replay = command_of("tools/vmm-replay ") + self.trace
        got = self.run_command(replay, "VMM_POLICI=pool VMM_ZZZZZZZZZZ=1")
        self.assertEqual(got.code, 0)
        said = "vmm-replay: vmm has no variable "
        self.assertIn(f"{said}VMM_POLICI; the nearest is VMM_POLICY\n", got.err)
        self.assertIn(f"{said}VMM_ZZZZZZZZZZ; docs/options.md", got.err)

    def test_help_is_printed_on_standard_output(self):
        lines = ["tools/vmm-trace", "tests/stream/prove_schedules --help", "run", "run help"]
        lines += [f"run{word} --help" for word in ("", " test", " fuzz", " bench", " gpu")]
        lines += ["gpu_tests/gpu.sh --help"]
        if "all" in FLAGS:
            benchmarks = "va threads stream frontier history growable growth suspend memory pool "
            benchmarks += "release resize sharing" + (" preload" if "preload" in FLAGS else "")
            lines += [f"benchmarks/bench_{name} --help" for name in benchmarks.split()]
            lines += [f"gpu_tests/{x} --help" for x in ("fidelity/vmm-fidelity", "vmm-gpu-test")]
        for tool in ("fit", "replay", "trace", "demo", "history/vmm-history", "top/vmm-top"):
            program = tool if "/" in tool else f"vmm-{tool}"
            lines += [f"tools/{program} -h", f"tools/{program} --help"]
            got = self.run_command(command_of(f"tools/{program} --version"))
            version = f"{program.split('/')[-1]} {VERSION}\n"
            self.assertEqual((got.code, got.out), (0, version), tool)
        for line in lines:
            got = self.run_command(command_of(line))
            self.assertEqual((got.code, got.err), (0, ""), line)
            self.assert_starts(got.out, "usage: ", line)

    def test_at_the_limit_of_file_size_is_an_error_and_no_signal(self):
        script = '(ulimit -f 0; exec "$0" "$1" --svg x.svg) 2>&1 >/dev/null | cat'
        shell = f"bash -c '{script}; exit ${{PIPESTATUS[0]}}'"
        got = self.run_command(f"{shell} {command_of('tools/vmm-replay')} {self.trace}")
        said = "vmm-replay: x.svg: cannot be written: File too large\n"
        self.assertEqual((got.code, got.out), (1, said))

    def test_exceptions_end_a_program_with_a_message_and_its_code(self):
        """A program that throws, as a program does whose memory ends (ulimit -v), on its main
        thread and on another."""
        memory = "unforeseen: this process is out of memory\n"
        error = "unforeseen: an unexpected error"
        for word, code, message in (
            ("memory", 4, memory),
            ("thread", 4, memory),
            ("text", 4, f"{error}: why\n"),
            ("number", 4, f"{error}\n"),
            ("nothing", 0, ""),
        ):
            got = self.run_command(command_of(f"tests/tools/unforeseen {word}"))
            self.assertEqual(got, (code, "begun\n", message), word)


if __name__ == "__main__":
    unittest.main()
