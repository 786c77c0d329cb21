# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: unmodified programs have vmm's memory under VMM=1, and the same output as without it.
Method: one_variable.py WHEEL [--dry FOLDER] [PART...]. An environment over this Python's packages
gets the wheel; each program runs plain and with VMM=1, with no compiler in its PATH, and prints
what serves it. Parts, all without a name:

    start     what VMM=1 adds to the start of Python
    programs  those of unmodified.py
    turns     those of them that take a share of the device, one after the other
    queues    queues.py: CUDA tensors between processes (VMM_QUEUE_COUNT, 200)
    devices   two_devices.py, where there are two GPUs: DistributedDataParallel, FSDP, peers, and
              CUDA_VISIBLE_DEVICES in another order
    tools     a program under compute-sanitizer, cuda-gdb, nsys and ncu
    steps     steps beside PyTorch's own allocator, crossed, with the interval of the median;
              steps:experts@dice=8,diffusion those programs (80 GB: experts with half of its texts)
    held      most held over most live of the recorded programs, under PyTorch's two and VMM=1
    market    three programs whose peaks sum to 1.6 of the device, as tenants of an owner
    suites    libraries' own tests in the folder VMM_SUITES (gpu_tests/suites/run.py); suites:cupy
              those of one library, suites:cupy,numba of two

Each part ends with its table and takes 250 s at most (VMM_PART_SECONDS). The last line counts; the
exit code is 1 if a line is wrong. --dry FOLDER: without a GPU (dry.py), with the stand-in of the
driver in FOLDER for programs that call the driver themselves; each part in a short form."""

from __future__ import annotations

import concurrent.futures
import glob
import os
import pathlib
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import NamedTuple

import common
from unmodified import ALONE, EXPECTED_TO_DIFFER, PLAIN, PROGRAMS, STATE, TRAIN

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MULTIPLE = 4  # programs that share the device at a time
SECONDS = float(os.environ.get("VMM_PART_SECONDS", "250"))


class Done(NamedTuple):
    out: str
    err: str
    code: int


class Runner:
    def __init__(self, wheel: str, folder: str, standin: str = "") -> None:
        """`standin`: the folder of a driver, without a GPU."""
        self.folder, self.standin = folder, standin
        self.end = 0.0
        self._is_imported: dict[str, bool] = {}
        self.plain = self._make("plain")
        self.python = self._make("environment", wheel)

    def _make(self, name: str, wheel: str = "") -> str:
        """The Python of an environment over this one's packages, with the wheel or without it."""
        at = pathlib.Path(self.folder, name)
        made = ["-m", "venv", "--without-pip", "--system-site-packages", str(at)]
        subprocess.run([sys.executable, *made], check=True)
        (packages,) = at.glob("lib/python3*/site-packages")
        if wheel:
            zipfile.ZipFile(wheel).extractall(packages)  # without the right to run its programs
            for each in (packages / "libvmm" / "bin").iterdir():
                each.chmod(0o755)
        # A machine's Python may itself be an environment, whose packages that option leaves out.
        others = [
            f"import site; site.addsitedir({each!r})"  # with the .pth files of that folder
            for each in sys.path
            if each.endswith(("site-packages", "dist-packages"))
        ]
        if self.standin:
            others += [str(HERE), "import os; os.environ.get('VMM_DRY') and __import__('dry')"]
        (packages / "others.pth").write_text("\n".join(others) + "\n")
        return str(at / "bin" / "python")

    def left(self) -> float:
        """Seconds of the part."""
        return max(1.0, self.end - time.monotonic())

    def command(self, *words: str, limit: float = 180, **variables: str) -> Done:
        """Of a session of its own, which ends with it."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment(**variables),
                cwd=self.folder,
                start_new_session=True,
            )
            try:
                code = process.wait(min(limit, self.left()))
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            out.seek(0)
            err.seek(0)
            return Done(out.read().strip(), err.read().strip(), code)

    def run(self, text: str, **variables: str) -> Done:
        with tempfile.NamedTemporaryFile("w", suffix=".py", dir=self.folder) as script:
            script.write(text)
            script.flush()
            return self.command(self.python, script.name, **variables)

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {
            name: each
            for name, each in os.environ.items()
            if not name.startswith(("VMM", "_LIBVMM", "PYTHONDONT"))
        }
        return {
            **kept,
            **common.NO_MULTICAST,
            "CXX": "/nowhere/compiler",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "LIBVMM_CACHE": f"{self.folder}/cache",
            "VMM_DRY": "1" if self.standin else "",
            **{name: each for name, each in variables.items() if each},
        }

    def can_import(self, library: str) -> bool:
        if library not in self._is_imported:
            self._is_imported[library] = self.run(f"import {library}").code == 0
        return self._is_imported[library]


class Found:
    """Rows of a part's table; a cell of a wrong row begins with WRONG."""

    def __init__(self, *columns: str) -> None:
        self._columns, self.rows = columns, []

    def add(self, *cells: object) -> None:
        self.rows.append([" ".join(str(each).split()) for each in cells])
        print(" | ".join(self.rows[-1])[:200], flush=True)

    def count(self, word: str) -> int:
        return sum(any(cell.startswith(word) for cell in row) for row in self.rows)

    def print(self, part: str) -> None:
        print(f"\n## {part}\n\n| {' | '.join(self._columns)} |")
        print("| - " * len(self._columns) + "|")
        for row in self.rows:
            print(f"| {' | '.join(row)} |", flush=True)


def lines_with(text: str, word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in text.splitlines() if line.startswith(word)]


def last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1][:120]


# ---- start --------------------------------------------------------------------------------------


def spent(run: Runner, text: str, python: str, **variables: str) -> float:
    """Milliseconds of processor time, of the process alone."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run.command(python, "-c", text, **variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def start(run: Runner) -> Found:
    """What is added: least of rounds that alternate, in processor time. The program's own import of
    ctypes is in both; the driver's loading and PyTorch's import are the programs' own."""
    found = Found("program", "no package, ms", "added unset", "added by VMM=1", "at most")
    for text, rounds, limit in (
        ("pass", 25, 30),
        ("import ctypes", 25, 30),
        ("import torch", 4, 0),
    ):
        if text == "import torch" and not run.can_import("torch"):
            continue
        kinds = ((run.plain, ""), (run.python, ""), (run.python, "1"))
        best = [1e9, 1e9, 1e9]
        for _ in range(2 if run.standin else rounds):
            for i, (python, value) in enumerate(kinds):
                best[i] = min(best[i], spent(run, text, python, VMM=value))
        unset, given = best[1] - best[0], best[2] - best[0]
        limits = f"1 unset, {limit} set" if limit else "(with PyTorch's class; not a limit)"
        is_wrong = limit and not run.standin and (unset > 1 or given > limit)
        found.add(text, f"{best[0]:.1f}", f"{unset:.2f}", f"{given:.2f}",
                  "WRONG: " * bool(is_wrong) + limits)  # fmt: skip
    return found


# ---- programs -----------------------------------------------------------------------------------


PROGRAM_COLUMNS = ("program", "VMM=1", "served by", "peak", "output without vmm")


def compare(run: Runner, name: str, libraries: str, text: str) -> tuple[str, ...]:
    """The cells of its row."""
    for each in libraries.split():
        if not run.can_import(each):
            return name, "skipped", f"{each} cannot be imported", "", ""
    is_driver = name.startswith("driver")
    where = {"LD_LIBRARY_PATH": run.standin} if is_driver and run.standin else {}
    plain = run.run(STATE + text, **where)
    if plain.code != 0:
        return name, "skipped", f"plain fails: {last_line(plain.err) or plain.code}", "", ""
    vmm = run.run(STATE + text, VMM="1", **where)
    state = lines_with(vmm.err, "STATE")
    amounts = [
        each for word in ("TENSORS", "POOL", "BOUNDARY") for each in lines_with(vmm.err, word)
    ]
    own = [each for each in state if "its own memory" in each]
    if "jax" in name or "driver" in name:
        own += [] if re.search(r"BOUNDARY [1-9]\d* blocks", vmm.err) else ["driver: no block"]
    if run.standin and not is_driver:  # which serves no more
        own, state = [], state or ["nothing"]
    is_same = (plain.out, plain.code) == (vmm.out, vmm.code)
    if name.startswith(EXPECTED_TO_DIFFER):
        is_same = vmm.out == "turns [True, True, True]" and vmm.code == 0
    is_right = is_same and bool(state) and not own
    if not is_right:
        print(f"--- {name}\nplain: {plain}\nVMM=1: {vmm}", file=sys.stderr, flush=True)
    verdict = "fine" if is_right else "WRONG"
    ways = dict.fromkeys(re.sub(r" \(/.*?\)", "", each) for each in state)
    return name, verdict, "; ".join(ways), ", ".join(amounts), plain.out


def programs(run: Runner) -> Found:
    found = Found(*PROGRAM_COLUMNS)
    for each in dict.fromkeys(" ".join(needs for needs, _ in PROGRAMS.values()).split()):
        run.can_import(each)
    with concurrent.futures.ThreadPoolExecutor(MULTIPLE) as pool:
        jobs = [
            pool.submit(compare, run, name, *each)
            for name, each in PROGRAMS.items()
            if not name.startswith(ALONE)
        ]
        for job in concurrent.futures.as_completed(jobs):
            found.add(*job.result())
    return found


def turns(run: Runner) -> Found:
    found = Found(*PROGRAM_COLUMNS)
    for name, each in PROGRAMS.items():
        if name.startswith(ALONE):
            found.add(*compare(run, name, *each))
    return found


# ---- processes and devices ----------------------------------------------------------------------


def queues(run: Runner) -> Found:
    found = Found("tensors between processes", "result")
    if not run.can_import("torch"):
        found.add("torch cannot be imported", "skipped")
        return found
    count = "5" if run.standin else os.environ.get("VMM_QUEUE_COUNT", "200")
    done = run.command(run.python, str(HERE / "queues.py"), "--count", count, limit=SECONDS)
    for line in done.out.splitlines():
        verdict, _, what = line.partition(" ")
        if verdict in ("ok", "FAILED"):
            found.add(what, "fine" if verdict == "ok" else "WRONG")
    if done.code != 0:
        print(done, file=sys.stderr)
        found.add("queues.py", f"WRONG: exit code {done.code}")
    return found


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
REGISTERED = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
DEVICES = (
    ("ddp", {}),
    ("ddp", REGISTERED),
    ("ddp", {"CUDA_VISIBLE_DEVICES": "1,0"}),
    ("fsdp", {}),
    ("peers", {}),
    ("peers", {"CUDA_VISIBLE_DEVICES": "1,0"}),
)


def devices(run: Runner) -> Found:
    found = Found("program of two devices", "VMM=1", "served, MiB", "output without vmm")
    counted = "import torch; print(torch.cuda.device_count())"
    if not run.can_import("torch") or int(run.run(counted).out or 0) < 2:
        found.add("all", "skipped: there are not two devices", "", "")
        return found
    with concurrent.futures.ThreadPoolExecutor(MULTIPLE // 2) as pool:
        for row in pool.map(lambda each: compare_devices(run, *each), DEVICES):
            found.add(*row)
    return found


def compare_devices(run: Runner, part: str, variables: dict[str, str]) -> tuple[str, ...]:
    """The cells of its row."""
    words = [*(() if part == "peers" else TORCHRUN), str(HERE / "two_devices.py"), part]
    plain = run.command(run.python, *words, limit=90, **variables)
    vmm = run.command(run.python, *words, limit=90, VMM="1", **variables)
    name = f"{part} {' '.join(f'{key}={each}' for key, each in variables.items())}"
    if plain.code != 0:
        return name, "skipped: plain fails", last_line(plain.err), ""
    served = lines_with(vmm.err, "SERVED")
    is_right = plain.out == vmm.out and vmm.code == 0 and bool(served)
    if not is_right:
        print(f"--- {name}\nplain: {plain}\nVMM=1: {vmm}", file=sys.stderr, flush=True)
    return name, "fine" if is_right else "WRONG", " ".join(served), plain.out


TOOLS = {
    "compute-sanitizer": ("--tool", "memcheck", "--error-exitcode", "9"),
    "cuda-gdb": ("-q", "-batch", "-ex", "run", "-ex", "backtrace", "--args"),
    "nsys": ("profile", "--trace", "cuda", "--force-overwrite", "true", "--output", "profile"),
    "ncu": ("--target-processes", "all", "--launch-count", "3"),
}


def find_tool(run: Runner, name: str) -> str | None:
    if run.standin:  # runs the program, which follows the options
        made = pathlib.Path(run.folder, name)
        made.write_text(f'#!/bin/sh\nshift {len(TOOLS[name])}\nexec "$@"\n')
        made.chmod(0o755)
        return str(made)
    places = ("/usr/local/cuda*/bin", "/opt/nvidia/*/*/bin", "/opt/nvidia/*/*/host/target-linux-*")
    there = [path for each in places for path in glob.glob(f"{each}/{name}")]
    return shutil.which(name) or next(iter(sorted(there)), None)


def tools(run: Runner) -> Found:
    """A row says what happens, with and without VMM=1; the program's own lines have to be equal."""
    found = Found("tool", "program", "plain", "VMM=1", "last line under VMM=1")
    texts = {"driver calls": PLAIN, "torch": TRAIN}
    for tool, options in TOOLS.items():
        path = find_tool(run, tool)
        for name, text in texts.items():
            if path is None or (name == "torch" and not run.can_import("torch")):
                found.add(tool, name, "skipped: it is not on this machine", "", "")
                continue
            if run.left() < 10:
                found.add(tool, name, "skipped: no time is left", "", "")
                continue
            script = pathlib.Path(run.folder, f"{tool}.py")
            script.write_text(text)
            where = {"LD_LIBRARY_PATH": run.standin} if run.standin and name != "torch" else {}
            ended = [
                run.command(path, *options, run.python, str(script), limit=60, VMM=value, **where)
                for value in ("", "1")
            ]
            own = own_lines(run, text, where)
            shown = [
                (each.code, [line for line in each.out.splitlines() if line in own])
                for each in ended
            ]
            verdict = f"exit code {ended[1].code}"
            if shown[0] != shown[1]:
                verdict = f"WRONG: {verdict}"
                print(f"--- {tool}, {name}\n{ended}", file=sys.stderr, flush=True)
            last = last_line(ended[1].out) or last_line(ended[1].err)
            found.add(tool, name, f"exit code {ended[0].code}", verdict, last)
    return found


_own: dict[str, list[str]] = {}


def own_lines(run: Runner, text: str, where: dict[str, str]) -> list[str]:
    """What a program prints without a tool."""
    if text not in _own:
        _own[text] = run.run(text, **where).out.splitlines()
    return _own[text]


# ---- time and memory ----------------------------------------------------------------------------


SMALL = """
import record, torch
def main():
    layer = torch.nn.Linear(8, 8).cuda()
    while True:
        record.iteration()
        layer(torch.ones(4, 8, device="cuda")).sum().backward()
main()
"""


def steps(run: Runner, chosen: str = "") -> Found:
    found = Found("program", "beside PyTorch's own: median (lowest to highest, pairs of turns)",
                  "95 % of the median", "all turns together")  # fmt: skip
    script = ROOT / "adapters" / "python" / "bench" / "programs.py"
    words = [str(script), "--crossed", "--no-calls", "--budget", str(int(run.left()) - 20)]
    if run.standin:
        small = pathlib.Path(run.folder, "small.py")
        small.write_text(SMALL)
        words += ["--only", str(small), "--turns", "4"]
    elif chosen:
        words += ["--only", chosen]
    done = run.command(run.python, *words, limit=SECONDS)
    for line in done.out.split("\n\n")[-1].splitlines()[2:]:
        name, ratio, *others = (cell.strip() for cell in line.strip("|").split("|"))
        is_time = re.match(r"[\d.]+ ", ratio)
        is_wrong = not is_time or (float(ratio.split()[0]) > 1.01 and not run.standin)
        found.add(name, "WRONG: " * is_wrong + ratio, *others)
    if done.code != 0 or not found.rows:
        found.add("programs.py", f"WRONG: exit code {done.code}", last_line(done.err), "")
    return found


HELD_MEAN_MAX = 1.035
HELD_WORSE_MAX = 2  # programs that hold less under another allocator


def held(run: Runner) -> Found:
    import fit

    found = Found("program", *fit.HELD_PER_LIVE)
    names = fit.NAMES[:2] if run.standin else fit.NAMES
    fit.LIVE_BYTES.update((name, fit.peak_live_of(fit.path_of("traces", name))) for name in names)
    room = fit.Room(64 * fit.GIB)

    def measure(name: str, allocator: str) -> float:
        row = {"kind": "traces", "program": name, "allocator": allocator}
        taken = room.take(fit.weight_of(row))
        try:
            chosen = common.environment(allocator)
            variables = {each: chosen[each] for each in chosen if each not in os.environ}
            variables["VMM"] = "1" if allocator == "vmm" else ""
            words = [str(HERE / "fit.py"), "--run", fit.path_of("traces", name)]
            done = run.command(run.python, *words, limit=120, **variables)
        finally:
            room.give_back(taken)
        measured = lines_with(done.out, "MEASURED")
        return int(measured[-1]) / fit.LIVE_BYTES[name] if measured else float("nan")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = {
            name: [pool.submit(measure, name, each) for each in fit.HELD_PER_LIVE]
            for name in sorted(names, key=lambda name: -fit.LIVE_BYTES[name])
        }
        ratios = {name: [job.result() for job in of] for name, of in jobs.items()}
    for name, of in ratios.items():
        found.add(name, *(f"{each:.3f}" for each in of))
    means = [statistics.fmean(each) for each in zip(*ratios.values())]
    worse = sum(of[-1] > min(of) * 1.0005 for of in ratios.values())
    is_right = means[-1] <= HELD_MEAN_MAX and worse <= HELD_WORSE_MAX
    verdict = "" if is_right else "WRONG: "
    found.add(
        f"{verdict}mean; vmm is not the lowest on {worse}", *(f"{each:.4f}" for each in means)
    )
    return found


def suites(run: Runner, chosen: str = "") -> Found:
    found = Found("suite", "way", "pass plain", "of them passed", "failed", "skipped",
                  "not reached", "")  # fmt: skip
    folder = os.environ.get("VMM_SUITES", "")
    if run.standin:
        folder, chosen = os.path.join(run.folder, "suites"), "torch"
        os.makedirs(os.path.join(folder, "torch"), exist_ok=True)
        test = pathlib.Path(folder, "torch", "test_cuda.py")
        test.write_text("def test_one():\n    assert 1 + 1 == 2\n")
    if not os.path.isdir(folder):
        found.add("all", "skipped: VMM_SUITES names no folder with tests", *[""] * 6)
        return found
    script = ROOT / "gpu_tests" / "suites" / "run.py"
    words = [str(script), folder, "--ways", "variable", "--seconds", str(int(run.left()) - 15)]
    words += ["--cores", str(max(1, (os.cpu_count() or 2) - 2))]
    words += ["--suites", chosen] if chosen else []
    done = run.command(run.python, *words, limit=SECONDS)
    for line in done.out.splitlines():
        if re.match(r"\| \w+ \| (plain|variable) \|", line):
            found.add(*(cell.strip() for cell in line.strip().strip("|").split("|")))
        else:
            print(line)  # the tests that differ, and why
    if done.code != 0:
        found.add("run.py", f"WRONG: exit code {done.code}", last_line(done.err), *[""] * 5)
    return found


def market(run: Runner) -> Found:
    import market_programs

    found = Found("three programs", "verdict", "from go to the last end", "last lines")
    market_programs.measure(run, found)
    return found


PARTS = {
    each.__name__: each
    for each in (start, programs, turns, queues, devices, tools, steps, held, market, suites)
}


def main() -> int:
    usage = f"usage: one_variable.py WHEEL [--dry FOLDER] [{' '.join(PARTS)}]"
    words, standin = sys.argv[1:], ""
    if words[1:2] == ["--dry"]:
        standin = os.path.abspath(words[2]) if len(words) > 2 else "/"
        del words[1:3]
        if not os.path.exists(os.path.join(standin, "libcuda.so.1")):
            sys.exit(f"{usage}\nFOLDER has no libcuda.so.1, the stand-in of a driver")
    wheels, parts = words[:1], words[1:] or list(PARTS)
    known = all(each in PARTS or each.startswith(("suites:", "steps:")) for each in parts)
    if not wheels or not os.path.isfile(wheels[0]) or not known:
        print(usage, file=sys.stderr)
        return 2
    made, seconds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        run = Runner(os.path.abspath(wheels[0]), folder, standin)
        for part in parts:
            name, _, chosen = part.partition(":")
            begun = time.monotonic()
            run.end = begun + SECONDS
            made[part] = PARTS[name](run, *filter(None, [chosen]))
            seconds[part] = time.monotonic() - begun
    for part, found in made.items():
        found.print(f"{part}{', dry' if standin else ''}, {seconds[part]:.0f} s")
    rows = sum(len(found.rows) for found in made.values())
    skipped = sum(found.count("skipped") for found in made.values())
    wrong = sum(found.count("WRONG") for found in made.values())
    print(f"\none_variable: {rows - skipped - wrong} fine, {skipped} skipped, {wrong} wrong")
    return int(wrong > 0 or skipped == rows)


if __name__ == "__main__":
    sys.exit(main())
