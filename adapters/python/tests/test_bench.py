# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what the benchmarks of PyTorch's programs compute from their times, and how they load a
program. Method: times that are made up, a program of a few lines; no PyTorch."""

import os
import sys

import pytest

BENCH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    import guest
    import programs

    return guest, programs


def test_crossing_takes_the_process_out(bench):
    """One process is three times as slow, turns differ: what stays is the allocator's own 1.25."""
    _, programs = bench
    process, made = (1.0, 3.0), []
    for number in range(20):
        turn = {}
        for place in (0, 1):
            allocator = programs.CROSSED[(place + number) % 2]
            turn[allocator] = (
                process[place] * (2 + number // 2) * (1.25 if allocator == "vmm" else 1)
            )
        made.append(turn)
    ratios = programs.crossed_ratios(made)
    assert len(ratios) == 8 and all(abs(each - 1.25) < 1e-9 for each in ratios)
    assert programs.interval(ratios) == "1.250 to 1.250"


def test_each_process_has_each_allocator_in_turn(bench):
    _, programs = bench

    class Worker:
        def __init__(self):
            self.said = []

        def send(self, word):
            self.said.append(word)

        def receive(self, _end):
            return {"seconds": 1.0}

    running = [Worker(), Worker()]
    for number in range(4):
        assert set(programs.play_crossed_turn(running, number, 0)) == {"vmm", "native"}
    assert running[0].said[::2] == ["vmm", "native", "vmm", "native"]
    assert running[1].said[::2] == ["native", "vmm", "native", "vmm"]


def test_a_program_is_loaded_with_other_constants(bench, tmp_path, monkeypatch):
    guest, _ = bench
    monkeypatch.setattr(sys, "argv", ["pytest"])
    path = tmp_path / "small.py"
    path.write_text(
        "import record\nN = 1\ndef main():\n    record.iteration()\n    return N\nmain()\n"
    )
    calls = []
    assert guest.load(str(path), lambda: calls.append(1), N=7).main() == 7 and calls == [1]
    assert guest.load(f"{path}@N=8", lambda: None).main() == 8
    with pytest.raises(ValueError, match="no M"):
        guest.load(str(path), None, M=1)
    path.write_text("N = 1\n")
    with pytest.raises(ValueError, match="main"):
        guest.load(str(path), None)
