# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the largest batch of `vmm-fit --batch` with the largest found by trying on a GPU.

    python3 batches.py [--only NAME,...] [--limit 12] [--allocators native] [--seconds 420]
                       [--out FOLDER]

Each program of PROGRAMS is recorded at two batch sizes, and vmm-fit answers for a device of LIMIT
GiB. Then PyTorch gets LIMIT GiB as its fraction of the device, and the largest batch that runs is
found by bisection between the larger recorded batch and four times the answer, and a grid above,
each trial in a process of its own. FOLDER gets fit-batches.csv, and
the two recordings of each program whose answer differs by more than 3 %. Needs what fit.py needs.
Exit codes: 0, each program has both numbers; 1 otherwise.
"""

import argparse
import csv
import gzip
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import fit  # noqa: E402

PROGRAMS = {  # the two recorded batches
    "autoencoder": (128, 256),
    "decoder": (64, 128),
    "routing": (32, 64),
    "unet": (48, 96),
}
STEPS = "5"
GRID = 24  # parts of a batch, a power of two each; a quarter more than the batch is tried
NEIGHBOURS = 2  # tried above the largest
GIB = 1 << 30
COLUMNS = ("program", "allocator", "limit_gib", "low", "best", "high", "tried", "error", "trials",
           "seconds", "failure")  # fmt: skip


# ---- in a child ------------------------------------------------------------------------------


def try_batch(path, batch, limit_bytes):
    """Exit code 0, or 5 where memory is short."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((limit_bytes + (1 << 20)) / total)
    sys.argv = [path, str(batch), STEPS]
    try:
        runpy.run_path(path, run_name="__main__")
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return 5
    return 0


def serve(path, limit_bytes):
    """A line of stdin is a batch, to be tried in a fork: PyTorch is imported once."""
    import torch  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = try_batch(path, int(line), limit_bytes)
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


# ---- the search ------------------------------------------------------------------------------


class Trials:
    def __init__(self, path, allocator, limit_bytes, end):
        words = [os.path.abspath(__file__), "--serve", path, str(limit_bytes)]
        self._server = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=fit.environment_of(allocator),
        )
        self._end = end
        self.count = 0

    def fits(self, batch):
        if time.monotonic() > self._end:
            raise RuntimeError("no time is left")
        self.count += 1
        self._server.stdin.write(f"{batch}\n")
        self._server.stdin.flush()
        code = self._server.stdout.readline().strip()
        if code not in ("0", "5"):
            raise RuntimeError(f"batch {batch} ended with {code or 'its server'}")
        return code == "0"

    def close(self):
        self._server.stdin.close()
        self._server.wait()


def bisect(fits, good, bad):
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def largest_by_trying(fits, good, end):
    """The largest batch from `good` on, below `end`. A batch may fail where a larger one runs: what
    bisection finds depends on its ends, so that a grid above it is tried from the top."""
    good = bisect(fits, good, end)
    step = 1 << max(good // GRID, 1).bit_length() - 1
    top = good * (GRID + GRID // 4) // GRID // step * step
    for batch in range(top, good, -step):
        if fits(batch):
            good = bisect(fits, batch, batch + step)
            break
    for batch in range(good + 2, good + 2 + NEIGHBOURS):
        if fits(batch):
            good = batch
    return good


def answer_of(row, folder, end):
    """vmm-fit's, from two recordings."""
    environment, name = fit.environment_of("native"), row["program"]
    path, files = fit.path_of("new", name), []
    for batch in PROGRAMS[name]:
        files.append(os.path.join(folder, f"{name}-{row['allocator']}-{batch}.pickle"))
        words = ["-m", "libvmm", "record", "-o", files[-1], path, str(batch), STEPS]
        fit.run_child(words, environment, max(5, end - time.monotonic()))
    words = ["-m", "libvmm", "fit", *files, "--json", "--beside", "0", "--batch"]
    words += [",".join(map(str, PROGRAMS[name])), "--device", f"{row['limit_gib']}GiB"]
    answer = json.loads(fit.run_child(words, environment, 300))
    return answer["largest_batch"][f"{row['limit_gib']}GiB"][row["allocator"]]


def keep(row, folder, out):
    os.makedirs(out, exist_ok=True)
    for batch in PROGRAMS[row["program"]]:
        name = f"{row['program']}-{row['allocator']}-{batch}.pickle"
        with open(os.path.join(folder, name), "rb") as file:
            with gzip.open(os.path.join(out, name + ".gz"), "wb", compresslevel=6) as packed:
                shutil.copyfileobj(file, packed)


def compare(row, folder, end, out):
    begun = time.monotonic()
    try:
        row.update(answer_of(row, folder, end))
        limit_bytes = int(row["limit_gib"] * GIB)
        path = fit.path_of("new", row["program"])
        least = PROGRAMS[row["program"]][1]
        trials = Trials(path, row["allocator"], limit_bytes, end)
        try:
            row["tried"] = largest_by_trying(trials.fits, least, max(4 * row["best"], 2 * least))
        finally:
            row["trials"] = trials.count
            trials.close()
        row["error"] = round(row["best"] / row["tried"] - 1, 4)
        if out and abs(row["error"]) > 0.03:
            keep(row, folder, out)
    except (RuntimeError, KeyError, ValueError, OSError) as failure:
        row["failure"] = f"{type(failure).__name__}: {failure}"
    row["seconds"] = round(time.monotonic() - begun, 1)


def print_table(rows):
    print("| program | allocator | limit, GiB | low | best | high | by trying | error | trials |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = [str(row[name]) for name in COLUMNS[:9]]
        if row["error"] != "":
            cells[7] = f"{100 * row['error']:+.1f} %"
        print(f"| {' | '.join(cells)} | {row['failure'][:200]}")


def write(rows, folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "fit-batches.csv")
    with open(path, "w", newline="") as file:
        file.write(fit.heading_line() + "\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {path}")


def main():
    if sys.argv[1:2] == ["--serve"]:
        return serve(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--limit", type=float, default=12, metavar="GIB")
    parser.add_argument("--allocators", default="native")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    limit = int(options.limit) if options.limit == int(options.limit) else options.limit
    rows = [
        dict.fromkeys(COLUMNS, "") | {"program": name, "allocator": each, "limit_gib": limit}
        for name in options.only.split(",")
        for each in options.allocators.split(",")
    ]
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            threading.Thread(target=compare, args=(row, folder, end, options.out)) for row in rows
        ]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    if options.out:
        write(rows, options.out)
    print_table(rows)
    return 1 if any(row["failure"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
