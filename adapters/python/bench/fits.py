# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The largest batch of three PyTorch programs that fits into the same memory under PyTorch's two
allocators and vmm's.

    python3 fits.py [--only NAME,...] [--budget SECONDS] [--out FOLDER]

Each try is a process of its own whose allocator may hold so much and no more
(torch.cuda.set_per_process_memory_fraction); it fits when all of its iterations end. The largest
batch is found by halving: fewer tries than one for each size, and right only as far as what is
larger does not fit where what is smaller did not. Times are not taken, so that all searches go on
beside each other: the device needs room for the limits of all programs and allocators together.
Needs what gpu_tests/python/run.py needs.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import threading
import time

import guest
import workers

GIB = 1 << 30
ALLOCATORS = ("native", "expandable", "vmm")


class Question:
    """A program, the constant that is searched, and what it means."""

    def __init__(self, program, knob, unit, low, high, step, iterations, limit_gib):
        self.program, self.knob, self.unit = program, knob, unit
        self.low, self.high, self.step = low, high, step
        self.iterations, self.limit_gib = iterations, limit_gib


QUESTIONS = {
    each.program: each
    for each in (
        Question("diffusion", "PIXELS", "pixels in a batch", 100_000, 1_500_000, 10_000, 8, 16),
        Question("experts", "dice", "texts in a batch, at most", 4, 64, 1, 10, 14),
        Question("serving", "ACTIVE", "requests at once", 4, 64, 1, 60, 9),
    )
}


class Search:
    """The largest value that fits, from low (fits) to high (does not), by steps."""

    def __init__(self, question, ask):
        self.question, self._ask = question, ask
        self.tries = []
        self.best = None

    def _fits(self, count):
        value = count * self.question.step
        answer = self._ask(value)
        self.tries.append({"value": value, **answer})
        if answer["fits"]:
            self.best = self.tries[-1]
        return answer["fits"]

    def run(self):
        low = self.question.low // self.question.step
        high = self.question.high // self.question.step
        if not self._fits(low) or self._fits(high):
            return self
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(middle):
                low = middle
            else:
                high = middle
        return self


def asker(servers, lock, allocator, question, end):
    """A function that makes one try."""

    def ask(value):
        with lock:
            worker = servers.start(
                allocator,
                "guest",
                "fits",
                end,
                name=question.program,
                steps=question.iterations,
                limit_bytes=int(question.limit_gib * GIB),
                knobs={question.knob: value},
            )
        answer = worker.receive(end)
        worker.close()
        print(f"{question.program} {allocator} {value}: {answer}", flush=True)
        return answer

    return ask


def table(found):
    lines = [
        (
            "| program, limit | largest | allocator | fits | of PyTorch's own | tries | "
            "held / live there | retries of PyTorch there |"
        ),
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (program, allocator), search in found.items():
        question = QUESTIONS[program]
        plain = found.get((program, "native"))
        if isinstance(search, str) or search.best is None:
            said = search[-150:] if isinstance(search, str) else "the smallest does not fit"
            lines.append(
                f"| {program}, {question.limit_gib} GiB | {question.unit} | {allocator} | "
                f"FAILED: {said!r} | | | | |"
            )
            continue
        best = search.best
        edge = ", the most asked for" if best["value"] == question.high else ""
        of = (
            f"{best['value'] / plain.best['value']:.2f}"
            if isinstance(plain, Search) and plain.best
            else "-"
        )
        lines.append(
            f"| {program}, {question.limit_gib} GiB | {question.unit} | {allocator} | "
            f"{best['value']:,}{edge} | {of} | {len(search.tries)} | "
            f"{best['held'] / max(1, best['live']):.3f} | {best['retries']} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", default=",".join(QUESTIONS))
    parser.add_argument("--budget", type=float, default=400, help="seconds in all")
    parser.add_argument("--limit", type=float, default=0, help="GiB of each; 0: by program")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    names = options.only.split(",")
    for name in names:
        if name not in QUESTIONS or guest.find(name) is None:
            parser.error(f"there is no program {name}; there are: {', '.join(QUESTIONS)}")
        QUESTIONS[name].limit_gib = options.limit or QUESTIONS[name].limit_gib
    end = time.monotonic() + options.budget
    lock = threading.Lock()
    found = {}
    with workers.Servers(ALLOCATORS) as servers:
        for allocator in ALLOCATORS:  # compiles, once
            print(servers.start(allocator, "guest", "prepare", end, with_calls=False).receive(end))

        def look(program, allocator):
            question = QUESTIONS[program]
            try:
                return Search(question, asker(servers, lock, allocator, question, end)).run()
            except workers.Ended as why:
                return str(why)

        keys = [(program, allocator) for program in names for allocator in ALLOCATORS]
        with concurrent.futures.ThreadPoolExecutor(len(keys)) as threads:
            for key, search in zip(keys, threads.map(lambda key: look(*key), keys)):
                found[key] = search
    text = table(found)
    print("\n" + text)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, "fits.md"), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        with open(os.path.join(options.out, "fits.json"), "w", encoding="utf-8") as file:
            json.dump(
                {
                    " ".join(key): each if isinstance(each, str) else each.tries
                    for key, each in found.items()
                },
                file,
            )
    return int(any(isinstance(each, str) or each.best is None for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
