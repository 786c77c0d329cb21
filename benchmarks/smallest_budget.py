# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""smallest_budget - the smallest VMM_BUDGET under which vmm-replay serves recordings on the fake
driver, over what they have live at most, and the driver's virtual time there.

    usage: smallest_budget.py VMM_REPLAY [--policy pool|vpmm] TRACE...

Found by halving, to a thousandth of what is live: right only as far as what is larger serves where
what is smaller does."""

import argparse
import json
import os
import subprocess
import sys

MIB = 1 << 20


def replay(program, policy, trace, budget_bytes=0):
    """The report of one replay; none where the budget does not serve. Ends the program where a
    replay without one fails."""
    environment = {name: value for name, value in os.environ.items() if name != "VMM_BUDGET"}
    if budget_bytes:
        environment["VMM_BUDGET"] = str(budget_bytes)
    done = subprocess.run(
        [program, trace, "--policy", policy, "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 and not budget_bytes:
        sys.exit(f"smallest_budget: {done.stderr.strip() or f'{program} failed on {trace}'}")
    return json.loads(done.stdout) if done.returncode == 0 else None


def search(program, policy, trace):
    """What it has live, what it takes unbounded, and the budget that just serves, all in bytes; the
    driver's microseconds without a limit and there."""
    free = replay(program, policy, trace)
    live, held = free["peak_live_bytes"], free["peak_reserved_bytes"]
    low, high, there = live // MIB, -(-held // MIB), free
    while high - low > max(1, live // MIB // 1000):
        middle = (low + high) // 2
        found = replay(program, policy, trace, middle * MIB)
        if found is None:
            low = middle
        else:
            high, there = middle, found
    return live, held, high * MIB, free["driver_us"], there["driver_us"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--policy", default="pool", choices=("pool", "vpmm"))
    options = parser.parse_args()
    print(
        "| recording | held / live without a budget | smallest budget / live | driver, ms: "
        "without, there |\n| --- | ---: | ---: | ---: |"
    )
    for trace in options.traces:
        live, held, budget, free_us, there_us = search(options.program, options.policy, trace)
        name = os.path.basename(trace).split(".")[0]
        print(
            f"| {name} | {held / live:.4f} | {budget / live:.4f} | {free_us / 1e3:.1f}, "
            f"{there_us / 1e3:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
