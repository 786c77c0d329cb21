# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs checks.py on a GPU under PyTorch's allocators and vmm's, and prints a table.

    python3 run.py [--only NAME,...] [--allocators native,expandable,vmm,functions] [--jobs 6]
                   [--seconds 440] [--out FOLDER]

Each check is a process of its own, so that none ends the others. Needs libvmm (a wheel, or LIBVMM
and PYTHONPATH for a source tree), PyTorch with CUDA and a C++ compiler. Exit codes: 0, no check of
"vmm" failed; 1 otherwise.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time

import common

HERE = os.path.dirname(os.path.abspath(__file__))
# Measured, or what other processes on the device would disturb.
ALONE = ("empty_cache", "oom_retry", "training", "call_time")


def run_one(name, allocator):
    """In the child: one line of JSON."""
    common.enable(allocator)
    import checks

    try:
        answer = {"state": "ok", "detail": checks.CHECKS[name]()}
    except checks.Skipped as reason:
        answer = {"state": "skipped", "detail": str(reason)}
    except BaseException as failure:
        import traceback

        answer = {
            "state": "FAILED",
            "detail": f"{type(failure).__name__}: {failure}"[:600],
            "trace": traceback.format_exc()[-3000:],
        }
    print("ANSWER " + json.dumps(answer), flush=True)


def start(name, allocator, seconds):
    begun = time.monotonic()
    answer = {"state": "FAILED", "detail": ""}
    try:
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "run.py"), "--one", name, allocator],
            capture_output=True,
            text=True,
            env=common.environment(allocator),
            cwd=HERE,
            timeout=max(5, seconds),
        )
        lines = [line[7:] for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        if lines:
            answer = json.loads(lines[-1])
        if done.returncode != 0:
            answer["detail"] = f"the process ended with {done.returncode}; {answer['detail']}"
            answer["state"] = "FAILED"
        answer["stderr"] = done.stderr[-6000:]
    except subprocess.TimeoutExpired as late:
        answer["detail"] = f"no end after {late.timeout:.0f} s"
    answer.update(check=name, allocator=allocator, seconds=round(time.monotonic() - begun, 1))
    print(
        f"{answer['state']:8} {allocator:11} {name:24} {answer['seconds']:6.1f} s  "
        f"{answer['detail'][:300]}",
        flush=True,
    )
    return answer


def table(answers, names, allocators):
    found = {(each["check"], each["allocator"]): each for each in answers}
    lines = ["| check | " + " | ".join(allocators) + " |", "| --- |" + " --- |" * len(allocators)]
    for name in names:
        cells = []
        for allocator in allocators:
            each = found.get((name, allocator))
            cells.append(
                "not run"
                if each is None
                else f"{each['state']}: {each['detail']}".replace("|", "/").replace("\n", " ")[:160]
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--one"]:
        return run_one(*sys.argv[2:4])
    import checks

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(checks.CHECKS))
    parser.add_argument("--allocators", default="vmm,native,expandable,functions")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=440)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    unknown = [name for name in names if name not in checks.CHECKS]
    if unknown:
        parser.error(f"there is no check {unknown[0]}; there are: {', '.join(checks.CHECKS)}")
    allocators = options.allocators.split(",")
    end = time.monotonic() + options.seconds

    def task(name, allocator):
        left = end - time.monotonic()
        if left < 10:
            return None
        return start(name, allocator, min(left, 180))

    answers = []
    if "vmm" in allocators:  # compiles once, before many would
        subprocess.run(
            [sys.executable, "-c", "import libvmm.torch as t; print(t.enable())"],
            env=common.environment("vmm"),
        )
    pairs = [(name, allocator) for allocator in allocators for name in names]
    alone = [pair for pair in pairs if pair[0] in ALONE]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as workers:
        futures = [workers.submit(task, *pair) for pair in pairs if pair not in alone]
        answers += [future.result() for future in futures]
    answers += [task(*pair) for pair in alone]
    answers = [each for each in answers if each is not None]
    text = table(answers, names, allocators)
    print("\n" + text)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "checks.json"), "w", encoding="utf-8") as file:
            json.dump(answers, file, indent=1)
        with open(os.path.join(options.out, "checks.md"), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return int(any(each["state"] == "FAILED" and each["allocator"] == "vmm" for each in answers))


if __name__ == "__main__":
    sys.exit(main())
