# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""compare - the times of two commits in one run.

Builds the benchmarks of this tree with the library of each commit, in a folder of its own under
build/compare (preset release, benchmarks alone), and runs them in turns: a turn runs each benchmark
twice for each commit, in the order A B B A, the next turn in the order B A A B. A ratio is of two
runs of one turn: B over A, and each commit over itself. The table shows the median of all turns and
its interval of 95 %. A measure with several figures, such as one a trace, is their geometric mean.
A commit over itself is 1 but for noise: within 0.01 on a quiet machine.

Ends with 1 where a median of B over A is above the limit, with 2 where a word is wrong or a build
fails.
"""

import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = ("gpt_train", "llama_generate", "maskrcnn_train", "beam_kv")
TRACES = [str(ROOT / "traces" / f"{name}.trace.gz") for name in NAMES]
STREAM = ["bench_stream", "--json", "--alone"]


def of_traces(answer):
    return {each["trace"]: each["ns_per_event"] for each in answer["traces"]}


def of_cold(answer):
    return {each["trace"]: each["pool_mean_ns"] for each in answer["cold"]}


def of_live(answer):
    rows = [(int(each["count"]), each) for each in answer["live_blocks"]]
    kinds = ("random_ns", "recent_ns")
    return {(count, kind): each[kind] for count, each in rows for kind in kinds}


def of_threads(answer):
    last = next(each for each in answer["rows"] if each["threads"] == 16)
    return {name: last[name] for name in ("one_pool_ns", "without_arenas_ns", "arenas_at_once_ns")}


# What is measured: the benchmark, and the nanoseconds that it prints, by name.
MEASURES = {
    "warm": ([*STREAM, "--traces", *TRACES], of_traces),
    "created": ([*STREAM, "--created", "--traces", *TRACES], of_traces),
    "cold": ([*STREAM, "--cold", *TRACES], of_cold),
    "live": ([*STREAM, "--live"], of_live),
    "resize": (["bench_manager", "--json"], dict),
    "shared": (["bench_threads", "--json", "--events", "200000", "--rounds", "7"], of_threads),
}


def ratio_of(first, second):
    """The geometric mean of second / first over the figures that both have."""
    both = first.keys() & second.keys()
    if not both:
        raise ValueError("two runs have no figure in common")
    return math.exp(statistics.fmean(math.log(second[each] / first[each]) for each in both))


def interval_of(values):
    """The interval that holds the median of what the values are drawn from with 95 %, by their
    order alone. All of them where there are fewer than six."""
    ordered, dropped, outside = sorted(values), 0, 0.0
    while outside <= 0.05:
        outside += 2 * math.comb(len(ordered), dropped) / 2 ** len(ordered)
        dropped += 1
    dropped = max(dropped - 2, 0)
    return ordered[dropped], ordered[-1 - dropped]


class Ratios:
    """Of one measure: B over A, and each commit over itself, in all turns so far."""

    def __init__(self):
        self.both, self.itself, self.ns = [], ([], []), ([], [])

    def add(self, turn, runs):
        """Two runs of A and two of B. Every other turn is turned round for a commit over itself, so
        that a machine that slows down is no ratio."""
        for of in (0, 1):
            self.itself[of].append(ratio_of(*(runs[of] if turn % 2 == 0 else runs[of][::-1])))
            self.ns[of].extend(statistics.geometric_mean(each.values()) for each in runs[of])
        self.both.extend(ratio_of(a, b) for a, b in zip(*runs))

    def noise(self):
        return max(abs(end - 1) for each in self.itself for end in interval_of(each))

    def row(self):
        cells = [f"{statistics.median(self.both):.3f}"]
        for values in (self.both, *self.itself):
            cells.append("{:.3f} to {:.3f}".format(*interval_of(values)))
        return cells + [f"{statistics.median(each):.1f}" for each in self.ns]


def verdict(ratios, limit):
    """The lines below the table, and whether a measure is above the limit."""
    medians = {name: statistics.median(each.both) for name, each in ratios.items()}
    lines = [f"mean {statistics.fmean(medians.values()):.3f}"]
    if noisy := [name for name, each in ratios.items() if each.noise() > 0.01]:
        lines.append(f"noise: a commit over itself is not within 0.01 of 1: {', '.join(noisy)}")
    if above := [f"{name} {ratio:.3f}" for name, ratio in medians.items() if ratio > limit]:
        lines.append(f"above {limit:g}: {', '.join(above)}")
    return lines, bool(above)


def die(why):
    print(f"compare: {why}", file=sys.stderr)
    sys.exit(2)


def commit_of(name):
    words = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        die(f"'{name}' is no commit of this tree")
    return found.stdout.strip()


def copy_if_other(source, target):
    target = pathlib.Path(target)
    if not target.exists() or target.read_bytes() != pathlib.Path(source).read_bytes():
        shutil.copyfile(source, target)


def build(commit, programs, own):
    """The folder of the programs. What is built already stays."""
    folder = ROOT / "build" / "compare" / (commit[:12] + ("-own" if own else ""))
    if not (folder / ".unpacked").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        (folder / ".unpacked").touch()
    place = "benchmarks" if (folder / "benchmarks").exists() else "bench"  # an older commit's
    if not own:
        for part, target in (("benchmarks", place), ("tools/program", "tools/program")):
            shutil.copytree(ROOT / part, folder / target, False, None, copy_if_other, True, True)
    configure = ["cmake", "--preset", "release", "-DVMM_BUILD_TESTS=OFF", "-DVMM_INSTALL=OFF"]
    for step in (configure, ["ninja", "-C", "build/release", *programs]):
        if subprocess.run(step, cwd=folder, stdout=sys.stderr).returncode != 0:
            die(f"the benchmarks do not build with {commit[:12]}; --own takes each commit's own")
    return folder / "build" / "release" / place


def run(folder, measure):
    command, read = MEASURES[measure]
    done = subprocess.run([folder / command[0], *command[1:]], capture_output=True, text=True)
    if done.returncode != 0:
        die(f"{folder / command[0]} ends with {done.returncode}: {done.stderr[-500:]}")
    return read(json.loads(done.stdout))


def parse(words):
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("./run bench compare", None, __doc__, formatter_class=form)
    parser.add_argument("commits", nargs="+", metavar="COMMIT", help="A, and B: HEAD without it")
    parser.add_argument("--limit", type=float, default=1.02, help="of B over A (%(default)s)")
    parser.add_argument("--turns", type=int, default=9, help="%(default)s")
    parser.add_argument("--only", default=",".join(MEASURES), help="measures (%(default)s)")
    own = "each commit's own benchmarks, whose requests may differ"
    parser.add_argument("--own", action="store_true", help=own)
    asked = parser.parse_args(words)
    asked.measures = asked.only.split(",")
    if len(asked.commits) > 2:
        parser.error("two commits at most")
    if asked.turns < 1 or not asked.limit > 0:
        parser.error("--turns is a whole number from 1 on, --limit a ratio above 0")
    if unknown := [each for each in asked.measures if each not in MEASURES]:
        parser.error(f"no measure '{unknown[0]}'; measures are: {', '.join(MEASURES)}")
    return asked


def main(words):
    asked = parse(words)
    commits = [commit_of(name) for name in (*asked.commits, "HEAD")[:2]]
    programs = sorted({MEASURES[each][0][0] for each in asked.measures})
    folders = [build(each, programs, asked.own) for each in commits]
    ratios = {name: Ratios() for name in asked.measures}
    for turn in range(asked.turns):
        for name, each in ratios.items():
            runs = ([], [])
            for which in (0, 1, 1, 0) if turn % 2 == 0 else (1, 0, 0, 1):
                runs[which].append(run(folders[which], name))
            each.add(turn, runs)
        print(f"turn {turn + 1} of {asked.turns}", file=sys.stderr)
    a, b = (each[:7] for each in commits)
    heads = (f"{b} / {a}", "interval", f"{a} / {a}", f"{b} / {b}", f"{a}, ns", f"{b}, ns")
    rows = [("measure", *heads), ("---", *["---:"] * len(heads))]
    rows += [(name, *each.row()) for name, each in ratios.items()]
    lines, is_above = verdict(ratios, asked.limit)
    print("\n".join([f"| {' | '.join(row)} |" for row in rows] + ["", *lines]))
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
