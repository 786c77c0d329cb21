# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch programs in turns under its two allocators and vmm's, and prints a table: time of an
iteration beside PyTorch's own, held over live memory, whether the results are the same bits, and
what allocations and frees took inside of the program.

    python3 programs.py [--only NAME,...] [--budget SECONDS] [--turns N] [--no-calls] [--out FOLDER]
    python3 programs.py --crossed [--only NAME,...] [--budget SECONDS] [--turns N] [--out FOLDER]

The programs are those of tools/trace/programs and of models beside this file; a path names another,
and experts@dice=8 one with another constant, for a device of less memory.
One process for each allocator, and a second one for PyTorch's own, run the same program on the same
device. A turn is one iteration of it in each of them, one after the other, in an order that turns:
the same work under each allocator within a second. The first two turns are not counted. Then
timed_calls.cpp takes the time of each call for some more turns. Losses, what the program fetched
and all parameters are compared; the second process shows whether PyTorch's own repeats, and how
far apart two equal runs are.

Two processes of the same program differ by more than allocators do. --crossed takes that out: two
processes run the program, and each has vmm's allocator in one turn and PyTorch's own in the next,
never both the same. The ratio of two turns, one of each kind in either process, has neither the
process nor the turn in it. Needs what gpu_tests/python/run.py needs.
"""

import argparse
import json
import os
import statistics
import sys
import time

import guest
import workers

# Turns that are counted, and programs by how much they are worth where time is short.
TURNS = {
    "experts": 16,
    "diffusion": 14,
    "serving": 50,
    "speech": 30,
    "neighbours": 40,
    "maskrcnn": 20,
    "gpt": 20,
    "beams": 200,
    "llama": 12,
    "feedback": 10,
}
UNTIMED = 2
CALL_TURNS = 4
ORDER = ("native", "expandable", "vmm", "again")


class Measured:
    """One program under every allocator."""

    def __init__(self, name):
        self.name = name
        self.seconds = {}
        self.ends = {}
        self.failure = ""

    def ratios(self, allocator):
        """Of each counted turn, to PyTorch's own in the same turn."""
        pairs = list(zip(self.seconds.get(allocator, []), self.seconds.get("native", [])))
        return [mine / plain for mine, plain in pairs[UNTIMED:]]

    def results(self, allocator):
        plain = self.ends.get("native", {}).get("digest")
        if plain is None or allocator not in self.ends:
            return "not compared"
        if self.ends[allocator]["digest"] == plain:
            return "same bits"
        repeats = self.ends.get("again", {}).get("digest") == plain
        return "DIFFER" if repeats else "does not repeat"


def play_turn(running, number, end):
    """One iteration in each worker: seconds by allocator."""
    first = number % len(running)
    found = {}
    for worker in running[first:] + running[:first]:
        worker.send("go")
        found[worker.name] = worker.receive(end)["seconds"]
    return found


def measure(name, servers, options, end):
    """The turns of one program, until `end` at most."""
    found = Measured(name)
    found.seconds = {allocator: [] for allocator in options.allocators}
    running = []
    limit = end + 30  # an iteration that has begun is waited for
    try:
        for allocator in options.allocators:
            running.append(servers.start(allocator, "guest", "timed", limit, name=name))
        for worker in running:
            worker.receive(limit)
        turns = (options.turns or TURNS.get(name.partition("@")[0], 12)) + UNTIMED
        longest = 0.0
        for number in range(turns):
            begun = time.monotonic()
            if begun + longest * (1 + options.call_turns) > end:
                break
            for allocator, seconds in play_turn(running, number, limit).items():
                found.seconds[allocator].append(seconds)
            longest = max(longest, time.monotonic() - begun) if number else 0.0
        if options.call_turns:
            for worker in running:
                worker.send("calls")
                worker.receive(limit)
            for number in range(options.call_turns):
                play_turn(running, number, limit)
        for worker in running:
            worker.send("stop")
        for worker in running:
            found.ends[worker.name] = worker.receive(limit)
    except workers.Ended as why:
        found.failure = str(why)
    for worker in running:
        worker.close()
    return found


CROSSED = ("vmm", "native")


def play_crossed_turn(running, number, end):
    """Seconds of one turn by allocator; which process has which goes with the number."""
    found = {}
    for place in (number // 2 % 2, 1 - number // 2 % 2):
        allocator = CROSSED[(place + number) % 2]
        running[place].send(allocator)
        running[place].send("go")
        found[allocator] = running[place].receive(end)["seconds"]
    return found


def measure_crossed(name, servers, options, end):
    """A list of {allocator: seconds}, a turn each, and what went wrong."""
    made, running = [], []
    limit = end + 30
    try:
        for _ in range(2):
            running.append(servers.start("vmm", "guest", "timed", limit, name=name))
        for worker in running:
            worker.receive(limit)
        turns = (options.turns or 2 * TURNS.get(name.partition("@")[0], 12)) + 2 * UNTIMED
        longest = 0.0
        for number in range(turns):
            begun = time.monotonic()
            if begun + longest > end:
                break
            made.append(play_crossed_turn(running, number, limit))
            longest = max(longest, time.monotonic() - begun) if number else 0.0
    except workers.Ended as why:
        return made, str(why)
    finally:
        for worker in running:
            worker.close()
    return made, ""


def crossed_ratios(turns):
    """Of each two turns: the process is in both, once above and once below."""
    counted = turns[2 * UNTIMED :]
    return [
        ((one["vmm"] / one["native"]) * (two["vmm"] / two["native"])) ** 0.5
        for one, two in zip(counted[::2], counted[1::2])
    ]


def interval(values):
    """Where the median of such values lies with 95 %, by their order alone."""
    values, count = sorted(values), len(values)
    reach = int((count - 1.96 * count**0.5) / 2)
    return f"{values[max(0, reach)]:.3f} to {values[min(count - 1, count - 1 - reach)]:.3f}"


def crossed_table(found):
    lines = [
        (
            "| program | beside PyTorch's own: median (lowest to highest, pairs of turns) | "
            "95 % of the median | all turns together |"
        ),
        "| --- | ---: | ---: | ---: |",
    ]
    for name, (turns, failure) in found.items():
        ratios = crossed_ratios(turns)
        if failure or not ratios:
            lines.append(f"| {name} | FAILED: {failure[-150:]!r} | | |")
            continue
        counted = turns[2 * UNTIMED :]
        total = sum(turn["vmm"] for turn in counted) / sum(turn["native"] for turn in counted)
        lines.append(f"| {name} | {spread(ratios)} | {interval(ratios)} | {total:.3f} |")
    return "\n".join(lines)


def run_crossed(options, end):
    found = {}
    with workers.Servers(("vmm",)) as servers:
        servers.start("vmm", "guest", "prepare", end, with_calls=False).receive(end)
        for number, name in enumerate(options.only):
            left = end - time.monotonic()
            if left < 15:
                print(f"{name}: no time is left", flush=True)
                break
            found[name] = measure_crossed(
                name, servers, options, time.monotonic() + left / (len(options.only) - number)
            )
            print(crossed_table({name: found[name]}).splitlines()[-1], flush=True)
    write(options, "crossed", crossed_table(found), found)
    return int(
        not found or any(failure or not crossed_ratios(turns) for turns, failure in found.values())
    )


def spread(values):
    if not values:
        return "-"
    values = sorted(values)
    return f"{statistics.median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f}, {len(values)})"


def times_table(all_found, allocators):
    lines = [
        (
            "| program | allocator | iteration, ms | beside PyTorch's own: median (lowest to "
            "highest, turns) | all turns together | held / live | peak live, GiB | results |"
        ),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for found in all_found:
        if found.failure:
            lines.append(f"| {found.name} | FAILED: {found.failure[-200:]!r} | | | | | | |")
        for allocator in allocators:
            counted = found.seconds.get(allocator, [])[UNTIMED:]
            end = found.ends.get(allocator)
            if not counted or end is None:
                continue
            plain = sum(found.seconds["native"][UNTIMED:])
            lines.append(
                f"| {found.name} | {allocator} | {statistics.median(counted) * 1e3:.1f} | "
                f"{spread(found.ratios(allocator))} | {sum(counted) / plain:.3f} | "
                f"{end['held'] / max(1, end['live']):.3f} | {end['live'] / 2**30:.2f} | "
                f"{found.results(allocator)} |"
            )
    return "\n".join(lines)


def calls_table(all_found, allocators):
    lines = [
        (
            "| program | allocator | calls | allocate, ns: median, mean | free, ns: median, mean "
            "| calls over 10 us: number, ms of an iteration | clock, ns, in each |"
        ),
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for found in all_found:
        for allocator in allocators:
            calls = found.ends.get(allocator, {}).get("calls")
            if not calls or not calls[0] or not calls[5]:
                continue
            slow = calls[4] + calls[9]
            slow_ms = (calls[3] + calls[8]) / CALL_TURNS / 1e6
            lines.append(
                f"| {found.name} | {allocator} | {calls[0] + calls[5]:.0f} | "
                f"{calls[2]:.0f}, {calls[1] / calls[0]:.0f} | "
                f"{calls[7]:.0f}, {calls[6] / calls[5]:.0f} | {slow:.0f}, {slow_ms:.3f} | "
                f"{calls[10]:.0f} |"
            )
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--only", default=",".join(TURNS))
    parser.add_argument("--allocators", default=",".join(ORDER))
    parser.add_argument("--turns", type=int, default=0, help="that are counted; 0: by program")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--crossed", action="store_true", help="both allocators in each process")
    parser.add_argument("--no-calls", action="store_true", help="take no time of single calls")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    options.only = options.only.split(",")
    options.allocators = options.allocators.split(",")
    options.call_turns = 0 if options.no_calls else CALL_TURNS
    for name in options.only:
        if guest.find(name) is None:
            parser.error(f"there is no program {name}; there are: {', '.join(TURNS)}")
    for name in options.allocators:
        if name not in workers.ALLOCATORS:
            parser.error(f"there is no allocator {name}: one of {', '.join(workers.ALLOCATORS)}")
    if options.allocators[0] != "native":
        parser.error("native comes first: others are measured by it")
    if options.turns < 0 or options.budget <= 0:
        parser.error("--turns and --budget are not negative")
    return options


def write(options, name, text, values):
    """The table as the last that is printed, and both as files where a folder is named."""
    print("\n" + text)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, f"{name}.json"), "w", encoding="utf-8") as file:
            json.dump(values, file)
        with open(os.path.join(options.out, f"{name}.md"), "w", encoding="utf-8") as file:
            file.write(text + "\n")


def main():
    options = arguments()
    end = time.monotonic() + options.budget
    if options.crossed:
        return run_crossed(options, end)
    all_found = []
    with workers.Servers(options.allocators) as servers:
        preparing = [
            servers.start(each, "guest", "prepare", end, with_calls=not options.no_calls)
            for each in options.allocators
            if each != "again"
        ]
        for worker in preparing:
            try:
                print(f"{worker.name}: {worker.receive(end)}", flush=True)
            except workers.Ended as why:
                print(why, flush=True)
                return 1
        for number, name in enumerate(options.only):
            left = end - time.monotonic()
            if left < 15:
                print(f"{name}: no time is left", flush=True)
                break
            share = left / (len(options.only) - number)
            begun = time.monotonic()
            all_found.append(measure(name, servers, options, begun + share))
            print(
                f"{name}: {time.monotonic() - begun:.0f} s\n"
                f"{times_table(all_found[-1:], options.allocators)}\n",
                flush=True,
            )
    text = "\n\n".join(
        (times_table(all_found, options.allocators), calls_table(all_found, options.allocators))
    )
    write(options, "programs", text, [vars(found) for found in all_found])
    bad = [
        found.name
        for found in all_found
        if found.failure or any(found.results(each) == "DIFFER" for each in options.allocators)
    ]
    return int(bool(bad) or not all_found)


if __name__ == "__main__":
    sys.exit(main())
