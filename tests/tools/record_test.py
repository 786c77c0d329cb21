# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the recorder turns a history of PyTorch's allocator into a trace, and refuses what it lost.
Method: histories by hand and a random one, which is held against a naive model; what is written is
also played by vmm-replay, the strict reader of traces.

    python3 record_test.py FOLDER_OF_RECORDER VMM_REPLAY
"""

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

FOLDER, REPLAY = sys.argv[1:3]
sys.dont_write_bytecode = True
sys.path.insert(0, FOLDER)
import record  # noqa: E402


def ask(address, size, stream=0):
    return {"action": "alloc", "addr": address, "size": size, "stream": stream}


def free(address, size=1, stream=0):
    return [
        {"action": action, "addr": address, "size": size, "stream": stream}
        for action in ("free_requested", "free_completed")
    ]


class Convert(unittest.TestCase):
    def test_gives_the_lowest_free_number(self):
        history = [ask(at, 10 * at) for at in (10, 20, 30)] + free(20) + free(10)
        history += [ask(at, 10 * at) for at in (40, 50, 60)]
        lines = "a 0 100 0,a 1 200 0,a 2 300 0,f 1,f 0,a 0 400 0,a 1 500 0,a 3 600 0"
        self.assertEqual(record.convert(history), lines.split(","))

    def test_takes_a_free_when_it_has_completed(self):
        requested, completed = free(10)
        history = [ask(10, 1), requested, ask(20, 2), completed, ask(10, 3)]
        lines = ["a 0 1 0", "a 1 2 0", "f 0", "a 0 3 0"]
        self.assertEqual(record.convert(history, counted=(3, 1)), lines)

    def test_leaves_live_what_has_not_completed(self):
        self.assertEqual(record.convert([ask(10, 1), free(10)[0]], counted=(1, 1)), ["a 0 1 0"])

    def test_numbers_streams_as_they_appear_with_the_default_first(self):
        history = [ask(1, 1, 7777), ask(2, 1, 5), ask(3, 1, 0), ask(4, 1, 7777)]
        streams = [line.split()[3] for line in record.convert(history)]
        self.assertEqual(streams, ["1", "2", "0", "1"])

    def test_puts_what_was_live_before_at_the_head(self):
        before = [{"addr": 90, "size": 9, "stream": 4}, {"addr": 80, "size": 8, "stream": 0}]
        history = [*free(90), ask(90, 1)]
        lines = record.convert(history, [(0, 0)], before, (1, 1))
        self.assertEqual(lines, ["a 0 8 0", "a 1 9 1", "i 0", "f 1", "a 1 1 0"])

    def test_marks_iterations_where_they_began(self):
        requested, completed = free(10)
        history = [ask(10, 1), requested, completed, ask(20, 2), *free(20)]
        marks = [(0, 0), (1, 1), (1, 1), (2, 2)]
        lines = "i 0,a 0 1 0,f 0,i 1,i 2,a 0 2 0,f 0,i 3".split(",")
        self.assertEqual(record.convert(history, marks), lines)

    def test_leaves_out_what_the_allocator_does_for_itself(self):
        history = [
            {"action": "segment_alloc", "addr": 10, "size": 2 << 20, "stream": 0},
            ask(10, 1),
            {"action": "snapshot"},
            *free(10),
            {"action": "segment_free", "addr": 10, "size": 2 << 20, "stream": 0},
        ]
        self.assertEqual(record.convert(history, counted=(1, 1)), ["a 0 1 0", "f 0"])

    def test_refuses_what_is_not_whole(self):
        whole = [ask(10, 1), ask(20, 2), *free(10)]
        cases = {
            "were made": dict(history=whole[1:2], counted=(2, 0)),
            "is not live": dict(history=whole[1:]),
            "while it is live": dict(history=[ask(10, 1), ask(10, 1)]),
            "a request of 0 bytes": dict(history=[ask(10, 0)]),
            "iteration 1 began at no place": dict(history=whole, marks=[(1, 0), (0, 1)]),
            "iteration 0 began at no place": dict(history=whole, marks=[(3, 0)]),
            "'moved' is no action": dict(history=[{"action": "moved", "addr": 1}]),
        }
        for words, arguments in cases.items():
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                record.convert(**arguments)

    def test_agrees_with_a_naive_model(self):
        dice = random.Random(1)
        history, live, expected, lines = [], {}, 0, []
        for address in range(1, 4000):
            history.append(ask(address, dice.randint(1, 1 << 20), dice.choice((0, 11, 12))))
            live[address] = history[-1]["size"]
            expected = max(expected, sum(-(-size // 512) * 512 for size in live.values()))
            if dice.random() < 0.99:
                gone = dice.choice(list(live))
                history += free(gone, live.pop(gone))
        lines = record.convert(history)
        figures = record.figures_of(lines)
        self.assertEqual(figures["allocations"], 3999)
        self.assertEqual(figures["peak_live_bytes"], expected)
        self.assertEqual(figures["streams"], 3)
        most = max(int(line.split()[1]) for line in lines)
        self.assertLess(most, 3999 - figures["frees"] + 20, "numbers are used again")


class Write(unittest.TestCase):
    def test_gives_the_same_bytes_and_a_trace_that_replays(self):
        history = [ask(1 << 30, 5 << 20), ask(2 << 30, 700, 9), *free(1 << 30), ask(1, 3 << 20)]
        lines = record.convert(history, [(0, 0), (2, 1)])
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("a.trace.gz", "b.trace.gz", "c.trace")]
            for path in paths:
                record.write_trace(path, lines)
            packed = []
            for path in paths:
                with open(path, "rb") as file:
                    packed.append(file.read())
            self.assertEqual(packed[0], packed[1])
            self.assertEqual(packed[0][3:8], bytes(5), "neither a name nor a time")
            self.assertEqual(gzip.decompress(packed[0]), packed[2])
            for path in (paths[0], paths[2]):
                command = [REPLAY, path, "--policy", "pool", "--json"]
                told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                figures = record.figures_of(lines)
                for key in ("allocations", "frees", "iterations", "peak_live_bytes"):
                    self.assertEqual(told[key], figures[key], key)


# As much of PyTorch as the recorder uses: memory() is a block while it is held.
STANDIN = """
import types
history, counts = [], [0, 0]
class memory:
    def __init__(self):
        counts[0] += 1
        self.address = counts[0] << 12
        self.tell("alloc")
    def __del__(self):
        counts[1] += 1
        self.tell("free_requested")
        self.tell("free_completed")
    def tell(self, action):
        history.append({"action": action, "addr": self.address, "size": 100, "stream": 0})
def nothing(*_, **__):
    return None
cuda = types.SimpleNamespace(
    init=nothing, synchronize=nothing, reset_peak_memory_stats=nothing, current_device=lambda: 0,
    memory_stats=lambda device: {},
    memory_stats_as_nested_dict=lambda device: {
        "allocation": {"all": {"allocated": counts[0], "freed": counts[1]}}},
    memory=types.SimpleNamespace(
        _record_memory_history=nothing,
        _snapshot=lambda: {"segments": [], "device_traces": [list(history)]}))
"""


class Run(unittest.TestCase):
    def run_record(self, program, folder, out):
        for name, text in (("torch.py", STANDIN), ("program.py", program)):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        command = [sys.executable, "-B", os.path.join(FOLDER, "record.py"), out]
        command.append(os.path.join(folder, "program.py"))
        environment = {**os.environ, "PYTHONPATH": folder}
        return subprocess.run(command, capture_output=True, env=environment)

    def check(self, program, code, lines):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.trace")
            ended = self.run_record(program, folder, out)
            self.assertEqual(ended.returncode, code, ended.stderr)
            self.assertEqual(os.path.exists(out), lines is not None)
            if lines is not None:
                with open(out) as file:
                    self.assertEqual(file.read().split("\n")[:-1], lines)

    def test_leaves_live_what_the_program_held_at_its_end(self):
        held = "import record, sys, torch\nrecord.iteration()\nheld = torch.memory()\n"
        for end in ("", "sys.exit()", "sys.exit(0)"):
            with self.subTest(end):
                self.check(held + end, 0, ["i 0", "a 0 100 0"])

    def test_says_that_a_program_failed(self):
        for end in ("sys.exit(2)", "sys.exit(7)", "sys.exit('no')", "raise RuntimeError"):
            with self.subTest(end):
                self.check("import sys, torch\nheld = torch.memory()\n" + end, 1, None)

    def test_writes_no_trace_without_an_allocation(self):
        self.check("import record\nrecord.iteration()", 1, None)

    def test_says_why_the_trace_cannot_be_written(self):
        program = "import torch\nprint('it ran')\nheld = torch.memory()\n"
        with tempfile.TemporaryDirectory() as folder:
            for out, code, ran, why in (
                ("no/out.trace", 2, b"", b"No such file or directory"),
                (".", 2, b"", b"Is a directory"),
                ("/dev/full", 1, b"it ran\n", b"No space left on device"),
            ):
                with self.subTest(out):
                    path = os.path.join(folder, out)
                    ended = self.run_record(program, folder, path)
                    self.assertEqual((ended.returncode, ended.stdout), (code, ran), ended.stderr)
                    said = b"record: " + path.encode() + b": cannot be written: " + why + b"\n"
                    self.assertEqual(ended.stderr, said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
