# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: every program and every word of ./run refuses a wrong command line or variable with the
exit code that its documentation gives, a message that names it, and nothing on standard output; and
prints --help on standard output.
Method: the command lines of wrong_use.txt. Where a program would work for long if it took what is
wrong, the refusal has to come first for the test to end.

usage: wrong_use_test.py BUILD VERSION FLAGS [TEST...]; FLAGS are preload, all or none
"""

import os
import pathlib
import re
import sys
import unittest

from command import ROOT, TINY, CommandTest

HERE = pathlib.Path(__file__).resolve().parent
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

    def test_wrong_lines_are_refused(self):
        """Those of wrong_use.txt, which describes its rows."""
        text = re.sub(r"\n\+ ", " ", (HERE / "wrong_use.txt").read_text())
        code, program, is_tried = 0, "", False
        for row in text.split("\n"):
            if head := re.fullmatch(r"\[(all )?(\d) ?(.*)\]", row):
                is_tried = not head[1] or "all" in FLAGS
                code, program = int(head[2]), head[3]
            elif "::" in row and row[0] != "#" and is_tried:
                if "bench_preload" not in row or "preload" in FLAGS:
                    with self.subTest(row):
                        self.expect(code, program, *map(str.strip, row.split("::", 1)))

    def expect(self, code, program, line, message):
        variables, line = re.fullmatch(r"((?:V?P?MM_\w+=\S* ?)*)(.*)", line).groups()
        name = program + ("" if program.endswith("/") or not program else " ") + line
        command = command_of(name.strip())
        self.assertTrue(os.path.exists(command.split("'")[1]), command)
        got = self.run_command(command.replace("@", self.trace), variables)
        self.assertEqual((got.code, got.out), (code, ""), got.err)
        self.assertIn(re.sub(r"\$$", "\n", message), got.err)
        if "--help lists the options)\n" in got.err:
            self.assertEqual(got.err.count("\n"), 1)

    def test_a_folder_that_others_may_read_is_refused_in_a_line(self):
        folder = self.folder / "of_mine" / "vmm"
        folder.mkdir(parents=True)
        folder.chmod(0o704)
        top = command_of("tools/top/vmm-top --json")
        got = self.run_command(top, f"XDG_RUNTIME_DIR='{folder.parent}'")
        why = "the folder has mode 0704, so that other users can enter it: run chmod 700 on it, "
        why += "or remove it"
        self.assertEqual((got.code, got.err), (1, f"vmm-top: {folder}: {why}\n"))

    def test_a_market_larger_than_its_device_is_refused(self):
        folder = self.folder / "market"
        folder.mkdir()
        folder.chmod(0o700)
        serve = command_of(f"tools/owner/vmm-owner serve '{folder}' host ")
        for options, why in (
            ("--capacity 60PiB", "--capacity is 64424509440 MiB, and the device has "),
            ("--capacity 64MiB --context 1GiB", "--context is 1024 MiB, and the memory to share"),
        ):
            got = self.run_command(serve + options)
            self.assertEqual((got.code, got.out), (1, ""), options)
            self.assertIn(f"vmm-owner: {why}", got.err)

    def test_of_variables_is_named(self):
        replay = command_of("tools/vmm-replay ") + self.trace
        got = self.run_command(replay, "VMM_POLICI=pool VMM_ZZZZZZZZZZ=1")
        self.assertEqual(got.code, 0)
        said = "vmm-replay: vmm has no variable "
        self.assertIn(f"{said}VMM_POLICI; the nearest is VMM_POLICY\n", got.err)
        self.assertIn(f"{said}VMM_ZZZZZZZZZZ; docs/options.md", got.err)

    def test_help_is_printed_on_standard_output(self):
        lines = ["tests/stream/prove_schedules --help", "run", "run help"]
        lines += [f"run{word} --help" for word in ("", " test", " fuzz", " bench", " gpu")]
        lines += ["gpu_tests/gpu.sh --help"]
        if "all" in FLAGS:
            benchmarks = "va threads stream frontier growable growth suspend pool "
            benchmarks += "resize sharing" + (" preload" if "preload" in FLAGS else "")
            lines += [f"benchmarks/bench_{name} --help" for name in benchmarks.split()]
            lines += [f"gpu_tests/{x} --help" for x in ("fidelity/vmm-fidelity", "vmm-gpu-test")]
        tools = "fit replay trace demo history/vmm-history top/vmm-top owner/vmm-owner"
        for tool in tools.split():
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
        said = (
            "vmm-replay: x.svg: cannot be written: the process's limit of file size is reached: "
            "raise it (ulimit -f)\n"
        )
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
