# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch programs in turns under its two allocators and vmm's, and prints a table: time of an
iteration beside PyTorch's own, held over live memory, and whether the results are the same bits.

    python3 programs.py [--rounds 10] [--only NAME,...] [--allocators native,expandable,vmm]
                        [--steps N] [--seconds 540] [--out FOLDER]

The programs are those of tools/trace/programs. Each run is a process of its own; a round runs every
program under every allocator, in an order that turns with the round, so that what disturbs the
machine disturbs all. The first two iterations of a run are not timed. Round 0 is not timed at all:
it compares results, and runs PyTorch's own twice, to see which programs repeat. Needs what
python/tests/gpu/run.py needs.
"""
import argparse
import hashlib
import json
import os
import runpy
import statistics
import struct
import subprocess
import sys
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = os.path.join(ROOT, "tools", "trace", "programs")
sys.path.insert(0, os.path.join(ROOT, "python", "tests", "gpu"))

import common  # noqa: E402

STEPS = {"diffusion": 8, "experts": 12, "feedback": 3, "neighbours": 40, "serving": 60,
         "speech": 24}
UNTIMED = 2


class Run:
    """One program in this process."""

    def __init__(self, is_compared):
        import torch
        self.torch = torch
        self.is_compared = is_compared
        self.marks = []
        self.seen = []
        if is_compared:
            self._watch()

    def _watch(self):
        torch = self.torch
        backward = torch.Tensor.backward

        def watched(loss, *words, **named):
            self.seen.append(loss.detach().double().sum())
            return backward(loss, *words, **named)

        def output(_module, _inputs, out):
            if isinstance(out, torch.Tensor) and out.is_cuda and out.is_floating_point():
                self.seen.append(out.detach().double().sum())

        torch.Tensor.backward = watched
        torch.nn.modules.module.register_module_forward_hook(output)

    def iteration(self):
        self.torch.cuda.synchronize()
        self.marks.append(time.perf_counter())

    def finish(self):
        torch = self.torch
        self.iteration()
        spans = [b - a for a, b in zip(self.marks, self.marks[1:])][UNTIMED:]
        answer = {"seconds": spans, "held": torch.cuda.max_memory_reserved(),
                  "live": torch.cuda.max_memory_allocated(),
                  "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0)}
        if self.is_compared:
            values = torch.stack(self.seen).cpu().tolist()
            answer["digest"] = hashlib.sha256(struct.pack(f"{len(values)}d", *values)).hexdigest()
        return answer


def run_one(name, steps, allocator, is_compared):
    common.enable(allocator)
    run = Run(is_compared)
    record = types.ModuleType("record")
    record.iteration = run.iteration
    sys.modules["record"] = record
    sys.argv = [name, str(steps)]
    runpy.run_path(os.path.join(PROGRAMS, f"{name}.py"), run_name="__main__")
    print("ANSWER " + json.dumps(run.finish()), flush=True)


def start(name, allocator, options, is_compared, end):
    steps = options.steps or STEPS[name]
    words = [sys.executable, __file__, "--one", name, str(steps), allocator,
             str(int(is_compared))]
    try:
        done = subprocess.run(words, env=common.environment(allocator), capture_output=True,
                              text=True, timeout=max(1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER "):
            return json.loads(line[7:])
    return {"failure": done.stderr.strip()[-1500:] or f"ended with {done.returncode}"}


def turns(allocators, number):
    return allocators[number % len(allocators):] + allocators[:number % len(allocators)]


def compare(names, options, end):
    """By program: who has PyTorch's own bits, or that its own do not repeat."""
    answers = {}
    for name in names:
        runs = {"again": start(name, "native", options, True, end)}
        for allocator in options.allocators:
            runs[allocator] = start(name, allocator, options, True, end)
        if any(run is None for run in runs.values()):
            break
        plain = runs["native"].get("digest")
        answers[name] = {
            "repeats": plain is not None and runs["again"].get("digest") == plain,
            "same": {each: run.get("digest") == plain for each, run in runs.items()},
            "failures": {each: run["failure"] for each, run in runs.items() if "failure" in run}}
        print(f"results of {name}: {answers[name]}", flush=True)
    return answers


def spread(values):
    values = sorted(values)
    if not values:
        return "-"
    middle = statistics.median(values)
    return f"{middle:.3f} ({values[0]:.3f} to {values[-1]:.3f}, {len(values)})"


def table(names, allocators, rounds, results):
    lines = ["| program | allocator | iteration, ms | beside PyTorch's own, paired | held / live | "
             "peak live, GiB | results |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for name in names:
        for allocator in allocators:
            runs = [(each[name].get(allocator), each[name].get("native")) for each in rounds
                    if name in each]
            good = [(a, b) for a, b in runs if a and b and "seconds" in a and "seconds" in b]
            if not good:
                failed = [a["failure"][-80:] for a, _ in runs if a and "failure" in a]
                lines.append(f"| {name} | {allocator} | - | - | - | - | {failed[:1] or 'no run'} |")
                continue
            mine = [statistics.median(a["seconds"]) * 1e3 for a, _ in good]
            paired = [statistics.median(a["seconds"]) / statistics.median(b["seconds"])
                      for a, b in good]
            ratio = [a["held"] / a["live"] for a, _ in good]
            found = results.get(name)
            words = "not compared" if found is None else (
                "does not repeat" if not found["repeats"] else
                "same bits" if found["same"].get(allocator) else "DIFFER")
            lines.append(f"| {name} | {allocator} | {statistics.median(mine):.1f} | "
                         f"{spread(paired)} | {statistics.median(ratio):.3f} | "
                         f"{good[0][0]['live'] / 2**30:.2f} | {words} |")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--one"]:
        name, steps, allocator, is_compared = sys.argv[2:6]
        return run_one(name, int(steps), allocator, is_compared == "1")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default=",".join(STEPS))
    parser.add_argument("--allocators", default="native,expandable,vmm")
    parser.add_argument("--steps", type=int, default=0, help="iterations; 0: by program")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--no-results", action="store_true", help="without round 0")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    names = options.only.split(",")
    options.allocators = options.allocators.split(",")
    unknown = [name for name in names if name not in STEPS]
    if unknown or "native" not in options.allocators:
        parser.error(f"there is no program {unknown[0]}" if unknown else "native is what others "
                     "are measured by")
    end = time.monotonic() + options.seconds
    results = {} if options.no_results else compare(names, options, end)
    rounds = []
    for number in range(options.rounds):
        rounds.append({})
        for name in names:
            made = {each: start(name, each, options, False, end)
                    for each in turns(options.allocators, number)}
            if any(run is None for run in made.values()):
                break
            rounds[-1][name] = made
            print(f"round {number}: {name}: " + ", ".join(
                f"{each} {statistics.median(run['seconds']) * 1e3:.1f} ms" if "seconds" in run
                else f"{each} FAILED {run['failure'][-200:]}" for each, run in made.items()),
                flush=True)
        if time.monotonic() > end - 5:
            break
    text = table(names, options.allocators, rounds, results)
    print("\n" + text)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "programs.json"), "w", encoding="utf-8") as file:
            json.dump({"results": results, "rounds": rounds}, file)
        with open(os.path.join(options.out, "programs.md"), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
