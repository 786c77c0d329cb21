# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of this folder in every mode of the preload library, on the first GPU.

1. The CUDA C++ program is built by the nvcc that is there, with the static and the shared runtime.
2. Each program runs once in each mode, and twice without the library, several at a time. Results
   and exit codes must be those of the plain run where that repeats.
3. Programs that want the device for themselves run alone.
4. The same program in every mode, in turns: a round of one process, then one of the next. Ratios
   are to the plain process's round of the same number, which did the same work.

Every step ends by itself; what failed stands in the table at the end, and each run's output lies in
logs.tar.gz beside the page."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

here = pathlib.Path(__file__).resolve().parent
modes = ("off", "monitor", "vmm", "cache")
multicast_off = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
started = time.monotonic()
NOTES = {
    "inflight": "10,000 blocks freed beside kernels that write to them, on 19 streams",
    "mark": "whether cuCtxRecordEvent waits for every kind of stream",
    "settled": "the device is waited for before results are read",
    "graph": "what the graph computes differs between plain runs, too",
    "spread": "the driver rounds 3 MiB to 4, holds a fifth fewer blocks, and has each hole back; "
    "the pool lays blocks side by side, and handles shared with live neighbours cannot move",
}


class Program:
    """`timed`: sets and rounds of its timing; `extra`: settings beside the modes, by name; `alone`:
    it fills the device or looks at times; `facts`: what it says is shown, not compared; `must`:
    modes in which it has to end well where that is not every mode."""

    def __init__(self, name, words, **given):
        self.name, self.words = name, words
        self.timed, self.alone = given.pop("timed", None), given.pop("alone", None)
        self.facts, self.must = given.pop("facts", False), given.pop("must", modes)
        self.extra, self.note = given.pop("extra", {}), given.pop("note", "")
        self.variables = given


def programs(folder):
    python = sys.executable
    torch = [python, str(here / "torch_program.py")]
    cupy = [python, str(here / "cupy_program.py")]
    jax = [python, str(here / "jax_program.py")]
    static, shared = str(folder / "static"), str(folder / "shared")
    both = ("plain", "vmm")
    plains = {f"plain {i}": {} for i in range(3, 6)}
    vmms = {f"vmm {i}": {} for i in range(2, 5)}
    again = {**plains, "vmm again": {}}
    expandable = "expandable_segments:True"
    spread = {"alone": both, "facts": True, "must": ()}
    xla = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"  # else times choose kernels
    return [
        Program("nvcc static", [static, "work", "20"], timed=(2, 20)),
        Program("nvcc shared", [shared, "work", "20"]),
        Program("nvcc pools", [static, "pools", "40"], timed=(2, 20)),
        Program("nvcc inflight", [static, "inflight", "10000"], note=NOTES["inflight"]),
        Program("nvcc mark", [static, "mark"], note=NOTES["mark"]),
        Program("nvcc graphs", [static, "graphs", "40"]),
        Program("nvcc fork", [static, "fork"]),
        Program("nvcc ipc", [static, "ipc"]),
        Program("nvcc dmabuf", [static, "dmabuf"]),
        Program("torch caching", torch, timed=(4, 24), extra=plains),
        Program("torch settled", [*torch, "settled"], extra=again, note=NOTES["settled"]),
        Program("torch graph", [*torch, "graph"], note=NOTES["graph"]),
        Program("torch expandable", torch, timed=(4, 24), PYTORCH_CUDA_ALLOC_CONF=expandable),
        *(
            Program(" ".join(words), torch + words[1:], PYTORCH_NO_CUDA_MEMORY_CACHING="1", extra=x)
            for words, x in (
                (["torch", "uncached"], {**plains, **vmms, "vmm waiting": {"VMM_FREE": "wait"}}),
                (["torch", "uncached", "settled"], vmms),
                (["torch", "uncached", "deterministic"], {"vmm again": {}}),
            )
        ),
        Program("torch cudaMallocAsync", torch, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
        Program("torch workers", torch + ["workers"]),
        Program("torch nccl", torch + ["nccl"]),
        Program("cupy pool", cupy),
        Program("cupy none", cupy + ["none"], timed=(2, 16)),
        Program("cupy async", cupy + ["async"]),
        Program(
            "jax default", jax, timed=(2, 16), XLA_FLAGS=xla, XLA_PYTHON_CLIENT_MEM_FRACTION=".1"
        ),
        Program("jax platform", jax, XLA_FLAGS=xla, XLA_PYTHON_CLIENT_ALLOCATOR="platform"),
        Program("numba", [python, str(here / "numba_program.py")]),
        Program("fragment", [static, "fragment"], alone=both, facts=True, must=("vmm",)),
        Program("spread 3 MiB", [static, "spread", "3072"], **spread, note=NOTES["spread"]),
        Program("spread 100 MiB", [static, "spread", "102400"], **spread),
        Program("free beside a kernel", [static, "latency"], alone=both, facts=True),
    ]


class Bench:
    """Where things are, and how long there is time."""

    def __init__(self, preload, folder, deadline):
        self.preload, self.folder, self.deadline = preload, folder, deadline
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.failed = []

    def left(self):
        return self.deadline - time.monotonic()

    def fail(self, what):
        self.failed.append(what)
        say(f"FAILED {what}")

    def environment(self, program, mode, tag):
        variables = {**os.environ, **multicast_off, **program.variables}
        for name in list(variables):
            if name.startswith(("VMM_", "VPMM_")) or name == "LD_PRELOAD":
                del variables[name]
        for name, value in multicast_off.items():
            if variables.get(name) != value:
                raise SystemExit(f"{name} must be {value}: NVLink multicast stays off")
        if not mode.startswith("plain"):
            variables.update(program.extra.get(mode, {}))
            variables.update(
                LD_PRELOAD=str(self.preload),
                VMM_MODE=mode.split()[0],
                VMM_REPORT=str(self.log(program, tag, "json")),
                VMM_REPORT_FORMAT="json",
            )
        return variables

    def log(self, program, tag, kind):
        return self.logs / f"{program.name}-{tag}.{kind}".replace(" ", "_")


def say(text):
    print(f"[{time.monotonic() - started:6.1f}] {text}", flush=True)


class Outcome:
    def __init__(self, code, out, err, report):
        self.code, self.err, self.report = code, err, report
        lines = out.splitlines()
        self.used = next((line[9:] for line in lines if line.startswith("used_mib ")), "")
        self.lines = [
            line for line in lines if not line.startswith(("used_mib", "ready", "round_ms"))
        ]

    def said(self):
        """What stands on stderr, without what differs from run to run."""
        return {re.sub(r"0x[0-9a-f]+|\d+", "N", line) for line in self.err.splitlines() if line}


def read_report(path):
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def run(bench, program, mode, tag=None):
    tag = tag or mode
    out, err = bench.log(program, tag, "out"), bench.log(program, tag, "err")
    code = -1
    with out.open("wb") as to, err.open("wb") as errors:
        try:
            code = subprocess.run(
                program.words,
                env=bench.environment(program, mode, tag),
                stdout=to,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                cwd=here,
                timeout=max(5, min(120, bench.left())),
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            errors.write(b"run.py: no end within its time\n")
        except OSError as problem:
            errors.write(f"run.py: {problem}\n".encode())
    return Outcome(
        code,
        out.read_text(errors="replace"),
        err.read_text(errors="replace"),
        read_report(bench.log(program, tag, "json")),
    )


def build(bench, chosen):
    """The programs of nvcc that are asked for; their runs fail where it fails."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    making = {}
    for name, runtime in (("static", "static"), ("shared", "shared")):
        if all(each.words[0] != str(bench.folder / name) for each in chosen):
            continue
        command = [nvcc, *f"-O2 -std=c++17 -arch=native -cudart {runtime} -o".split()]
        command += [str(bench.folder / name), str(here / "program.cu"), "-ldl"]
        log = (bench.logs / f"nvcc-{name}.txt").open("wb")
        try:
            making[name] = subprocess.Popen(command, stdout=log, stderr=log)
        except OSError as problem:
            bench.fail(f"nvcc: {problem}")
    for name, process in making.items():
        if process.wait() != 0:
            text = (bench.logs / f"nvcc-{name}.txt").read_text(errors="replace")
            bench.fail(f"nvcc {name}: {text[-1500:]}")


def calls_of(outcome):
    total = {}
    for report in outcome.report:
        for device in report.get("devices", ()):
            for name, counts in device.get("calls", {}).items():
                total[name] = total.get(name, 0) + counts["count"]
    memory = "cuMemAlloc_v2 cuMemFree_v2 cuMemAllocAsync cuMemFreeAsync cuMemCreate cuMemRelease"
    shown = [f"{name} {total[name]}" for name in memory.split() if name in total]
    reused = sum(report.get("handles_reused", 0) for report in outcome.report)
    return ", ".join(shown + [f"of them served by kept handles {reused}"] * (reused != 0))


def left_to_the_driver(outcome):
    return ", ".join(
        f"{why} {count}"
        for report in outcome.report
        for why, count in report.get("unmanaged", {}).items()
        if count
    )


def parted(one, other):
    """The first line in which two outputs differ."""
    for before, now in zip(one.lines, other.lines):
        if before != now:
            return f"'{before[:100]}' became '{now[:100]}'"
    return f"{len(one.lines)} lines became {len(other.lines)}"


def compare(bench, program, seen):
    """A row for each mode; what differs is a failure where the plain run repeats itself."""
    plain, again = seen.get("plain"), seen.get("plain again")
    if plain is None:
        bench.fail(f"{program.name}: no plain run")
        return []
    others = [now for mode, now in seen.items() if mode.startswith("plain ")]
    repeats = all(now.lines == plain.lines and now.code == plain.code for now in others)
    known = plain.said() | (again.said() if again else set())
    rows = []
    if program.note:
        say(f"{program.name}: {program.note}: {plain.lines[:12]}")
    for mode, now in seen.items():
        if mode == "plain again":
            continue
        new = sorted(now.said() - known)
        word = "DIFFER" if repeats else "differ, as plain runs do"
        word = "facts" if program.facts else "equal" if now.lines == plain.lines else word
        wrong = not program.facts and (now.code != plain.code or (repeats and word == "DIFFER"))
        wrong = wrong or (now.code != 0 and mode in program.must)
        wrong = wrong or any("vmm_preload:" in line for line in new)
        if mode == "plain":
            wrong = not program.facts and now.code != 0
        elif plain.code != 0 and not program.facts:
            wrong = False  # one line is enough for a program that does not run
        if wrong:
            bench.fail(
                f"{program.name}, {mode}: code {now.code}, {word}: {parted(plain, now)} "
                f"stderr {now.err[-1200:]!r}"
            )
        shown = "; ".join(now.lines[:2]) if program.facts else word
        if mode == "plain" and program.note:
            shown += f" ({program.note})"
        rows.append(
            f"| {program.name} | {mode} | {now.code} | {shown} | {len(new)} | "
            f"{calls_of(now)} | {left_to_the_driver(now)} |\n"
        )
        for line in new[:4]:
            say(f"  new on stderr, {program.name}, {mode}: {line[:200]}")
    return rows


def check_all(bench, chosen):
    """Steps 2 and 3; the rows of their table."""
    seen = {each.name: {} for each in chosen}
    common = ("plain", "plain again", *modes)
    together = [each for each in chosen if not each.alone]
    jobs = [(each, mode) for each in together for mode in (*common, *each.extra)]

    def one(job):
        if bench.left() < 5:
            return job, None
        return job, run(bench, *job)

    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        for (program, mode), outcome in pool.map(one, jobs):
            if outcome is not None:
                seen[program.name][mode] = outcome
    say("the programs that run side by side are done")
    for each in chosen:
        for mode in each.alone or ():
            if bench.left() > 10:
                seen[each.name][mode] = run(bench, each, mode)
                say(f"{each.name}, {mode}: {'; '.join(seen[each.name][mode].lines[:3])}")
    rows = []
    for each in chosen:
        rows += compare(bench, each, seen[each.name])
    return rows


class Player:
    """One process that plays its rounds when it is told to. All are held to the same processors."""

    def __init__(self, bench, program, mode, number):
        self.mode = mode
        tag = f"{mode}-turns{number}"
        self.errors = bench.log(program, tag, "err").open("wb")
        self.process = subprocess.Popen(
            program.words + ["turns"],
            env=bench.environment(program, mode, tag),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=here,
            text=True,
            bufsize=1,
            preexec_fn=lambda: os.sched_setaffinity(0, timed_processors()),
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def wait_for(self, word, seconds):
        """What stands behind the word; None where the process ends or is too late."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith(word):
                return line[len(word) :].strip()

    def play(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        took = self.wait_for("round_ms", 40)
        return None if took is None else float(took)

    def end(self):
        used = None
        try:
            self.process.stdin.close()
            self.wait_for("digest", 20)
            used = self.wait_for("used_mib", 20)
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.errors.close()
        return used


def timed_processors():
    mine = sorted(os.sched_getaffinity(0))
    return set(mine[2:8]) or set(mine)


def play_in_turns(bench, program, number, count):
    """The rounds of each mode, and the memory at their ends."""
    players = [Player(bench, program, mode, number) for mode in ("plain", *modes)]
    rounds, used = {each.mode: [] for each in players}, {}
    try:
        for each in players:
            if each.wait_for("ready", max(5, min(100, bench.left()))) is None:
                bench.fail(f"{program.name} in turns, {each.mode}: it did not get ready")
                return {}, {}
        for i in range(count):
            if bench.left() < 12:
                break
            turn = i % len(players)
            for each in players[turn:] + players[:turn]:
                took = each.play()
                if took is None:
                    bench.fail(f"{program.name} in turns, {each.mode}: it stopped in round {i}")
                    return {}, {}
                rounds[each.mode].append(took)
    except OSError as problem:
        bench.fail(f"{program.name} in turns: {problem}")
        return {}, {}
    finally:
        for each in players:
            used[each.mode] = each.end()
    return rounds, used


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def time_all(bench, chosen, results):
    """Step 4; the rows of its table. Sets of processes, one program's after the other's, so that
    each program has had its first when time runs out."""
    times, used = {}, {}
    timed = [each for each in chosen if each.timed]
    for number in range(max((each.timed[0] for each in timed), default=0)):
        for program in timed:
            if number >= program.timed[0] or bench.left() < 30:
                continue
            rounds, memory = play_in_turns(bench, program, number, program.timed[1])
            for mode, own in rounds.items():
                pairs = [mine / its for mine, its in zip(own, rounds["plain"])]
                times.setdefault((program.name, mode), []).append((own, pairs))
                used[program.name, mode] = memory.get(mode)
            say(
                f"{program.name}, set {number}: "
                + ", ".join(
                    f"{mode} {statistics.median(times[program.name, mode][-1][1]):.4f}"
                    for mode in rounds
                    if rounds[mode]
                )
            )
    rows = []
    for (name, mode), sets in times.items():
        pairs = [each for _, some in sets for each in some]
        if not pairs:
            continue
        own = [each for some, _ in sets for each in some]
        results.setdefault("times", {}).setdefault(name, {})[mode] = [some for some, _ in sets]
        middles = [f"{statistics.median(some):.4f}" for _, some in sets if some]
        rows.append(
            f"| {name} | {mode} | {statistics.median(own):.3f} | "
            f"{statistics.median(pairs):.4f} | {quantile(pairs, 0.25):.4f} to "
            f"{quantile(pairs, 0.75):.4f} | {', '.join(middles)} | {len(pairs)} | "
            f"{used.get((name, mode)) or ''} |\n"
        )
    return rows


def write_page(path, head, checks, times, failed):
    with path.open("w") as page:
        page.write(
            f"# The preload library\n\n{head}\n\nCommand: `gpu_tests/gpu.sh preload`, which "
            "runs `gpu_tests/preload/run.py`.\n\n## The same results\n\n"
            "Each program once in each mode, the results beside those of the run without "
            "the library.\n\n| program | mode | exit code | results | new lines on stderr | "
            "calls | left to the driver |\n| --- | --- | --- | --- | --- | --- | --- |\n"
        )
        page.writelines(checks)
        page.write(
            "\n## Time and memory\n\nOne process a mode, in turns: a round of one, then of "
            "the next, all on the same processors. Ratios are to the plain process's round "
            "of the same number, which did the same work. A set has processes of its own: "
            "what its median differs by from the other sets' is not of the rounds. `off` "
            "passes everything on.\n\n| program | mode | ms | ratio, median | middle half | "
            "medians of the sets | pairs | MiB at the end, of |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        )
        page.writelines(times)
        page.write(f"\n## What failed\n\n{len(failed)} of all runs.\n\n")
        page.writelines(f"- {each}\n" for each in failed)


def read_words():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("preload", metavar="LIBRARY", type=pathlib.Path)
    options.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options.add_argument("--name", default="preload")
    options.add_argument("--budget", type=float, default=510, help="seconds")
    options.add_argument("--head", default="")
    options.add_argument("--only", default="", help="parts of names, with commas between")
    return options.parse_args()


def main():
    given = read_words()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="preload-"))
    bench = Bench(given.preload.resolve(), folder, started + given.budget)
    wanted = [each for each in given.only.split(",") if each]
    chosen = [
        each for each in programs(folder) if not wanted or any(part in each.name for part in wanted)
    ]
    build(bench, chosen)
    say("nvcc is done")
    checks, times, results = [], [], {}
    try:
        checks = check_all(bench, chosen)
        times = time_all(bench, chosen, results)
    finally:
        page = given.out / f"{given.name}.md"
        write_page(page, given.head, checks, times, bench.failed)
        (given.out / f"{given.name}.json").write_text(json.dumps(results))
        with tarfile.open(given.out / "logs.tar.gz", "w:gz") as archive:
            archive.add(bench.logs, arcname="logs")
        print(page.read_text())
    print(f"preload: {len(bench.failed)} failures")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
