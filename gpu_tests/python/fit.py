# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the answers of `python -m libvmm fit` with what PyTorch's allocators hold on a GPU.

    python3 fit.py [--only NAME,...] [--kinds traces,new] [--jobs 10] [--memory GIB]
                   [--allocators native,expandable,vmm] [--seconds 420] [--out FOLDER]

Each program runs under each allocator in a process of its own. Kinds: `traces`, the requests of the
sixteen recorded programs, the same under all; `new`, six programs of the folder programs, on which
vmm-fit was not tuned. Native and expandable runs go through
`python -m libvmm record`, and vmm-fit answers from the snapshot. The run's own figure is the
allocator's peak of reserved bytes. The table has, for each run, the figure, the answer from its own
snapshot, the answer from the snapshot of the other allocator (native's for vmm), and how many
segment events of the recording the replay has in the same order.

Needs PyTorch with CUDA, and libvmm with vmm-fit (a wheel, or LIBVMM and PYTHONPATH for a source
tree). Runs that do not fit on the device together wait for each other. FOLDER gets fit.csv;
fit-addresses.csv: where the driver put the segments of native caching, in order; and the snapshot
of each run whose answer differs. Exit codes: 0, each run has its answer; 1 otherwise.
"""

import argparse
import csv
import gzip
import json
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

import common  # noqa: E402

COLUMNS = (
    "kind",
    "program",
    "allocator",
    "measured_bytes",
    "own_answer_bytes",
    "other_answer_bytes",
    "own_error",
    "other_error",
    "segment_events",
    "answered_segment_events",
    "same_segment_events",
    "peak_live_bytes",
    "fit_seconds",
    "seconds",
    "failure",
)
ADDRESSES = {}  # by program
LIVE_BYTES = {}  # by program, of its trace
KEPT_BYTES_MAX = 6 << 20  # of a snapshot
# The most held over the most live, of the sixteen programs (docs/results/data/fit-h100.csv).
HELD_PER_LIVE = {"native": 2.9, "expandable": 1.25, "vmm": 1.25}
NEW_LIVE_BYTES = 7 << 30  # the most that one of the new programs has
CONTEXT_BYTES = 1 << 30
MIB, GIB = 1 << 20, 1 << 30


# ---- in a child ------------------------------------------------------------------------------


def read_trace(path):
    with gzip.open(path, "rt") as file:
        return file.read().splitlines()


def play(path):
    """The requests of a trace, made to the allocator that PyTorch has here."""
    import torch

    device = torch.cuda.current_device()
    streams, blocks = {0: 0}, {}
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
    kept = []
    with torch.cuda.device(device):
        for line in read_trace(path):
            word, number, *rest = line.split()
            if word == "a":
                stream = int(rest[1])
                if stream not in streams:
                    kept.append(torch.cuda.Stream())
                    streams[stream] = kept[-1].cuda_stream
                blocks[number] = allocate(int(rest[0]), streams[stream])
            elif word == "f":
                free(blocks.pop(number))
    return blocks  # live at the end


def run(path):
    common.enable(os.environ["CHECK_ALLOCATOR"])
    import torch

    if path.endswith(".trace.gz"):
        play(path)
    else:
        sys.argv = [path]
        sys.path[0] = os.path.dirname(path)
        runpy.run_path(path, run_name="__main__")
        torch.cuda.synchronize()
    if os.environ["CHECK_ALLOCATOR"] == "vmm":
        import libvmm.torch

        most = libvmm.torch.statistics().peak_held_bytes
    else:
        most = torch.cuda.max_memory_reserved()
    print(f"MEASURED {most}", flush=True)


# ---- the runs --------------------------------------------------------------------------------


class Room:
    """Device memory that runs beside each other share."""

    def __init__(self, size_bytes):
        self._free_bytes = self._size_bytes = size_bytes
        self._changed = threading.Condition()

    def take(self, size_bytes):
        size_bytes = min(size_bytes, self._size_bytes)
        with self._changed:
            self._changed.wait_for(lambda: self._free_bytes >= size_bytes)
            self._free_bytes -= size_bytes
        return size_bytes

    def give_back(self, size_bytes):
        with self._changed:
            self._free_bytes += size_bytes
            self._changed.notify_all()


def peak_live_of(path):
    sizes, live, most = {}, 0, 0
    for line in read_trace(path):
        word, number, *rest = line.split()
        if word == "a":
            sizes[number] = -(-int(rest[0]) // 512) * 512
            live += sizes[number]
            most = max(most, live)
        elif word == "f":
            live -= sizes.pop(number)
    return most


def path_of(kind, name):
    if kind == "traces":
        return os.path.join(ROOT, "traces", f"{name}.trace.gz")
    return os.path.join(HERE, "programs", f"{name}.py")


def weight_of(row):
    """About how much of the device a run takes."""
    live = NEW_LIVE_BYTES if row["kind"] == "new" else LIVE_BYTES[row["program"]]
    return CONTEXT_BYTES + HELD_PER_LIVE[row["allocator"]] * live


def environment_of(allocator):
    made = common.environment(allocator)
    paths = [os.path.join(ROOT, "tools", "trace"), made.get("PYTHONPATH", "")]
    made["PYTHONPATH"] = os.pathsep.join(each for each in paths if each)
    return made


def run_child(words, environment, seconds):
    """What it prints. Raises RuntimeError with its last words."""
    try:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end after {seconds:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last[:300]}")
    return done.stdout


def addresses_of(snapshot):
    """Size and address of each native segment of a snapshot, in the order of their events."""
    with open(snapshot, "rb") as file:
        traces = pickle.load(file)["device_traces"]
    made = [each for trace in traces for each in trace if each["action"] == "segment_alloc"]
    return [(each["size"], each["addr"]) for each in made]


def keep(row, snapshot, folder):
    """Packs a snapshot whose replay differs from the run, for a look at the difference."""
    differs = not is_same(row) or row["own_answer_bytes"] != row["measured_bytes"]
    if row["own_answer_bytes"] == "" or not differs or not folder:
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, os.path.basename(snapshot) + ".gz")
    with open(snapshot, "rb") as file, gzip.open(path, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(file, packed)
    if os.path.getsize(path) > KEPT_BYTES_MAX:
        os.remove(path)


def measure(row, snapshot, end):
    """Runs the program, and has vmm-fit's answer from its snapshot."""
    environment = environment_of(row["allocator"])
    words = [os.path.abspath(__file__), "--run", path_of(row["kind"], row["program"])]
    if row["allocator"] != "vmm":
        words = ["-m", "libvmm", "record", "-o", snapshot, *words]
    text = run_child(words, environment, max(5, end - time.monotonic()))
    measured = [line.split()[1] for line in text.splitlines() if line.startswith("MEASURED ")]
    row["measured_bytes"] = int(measured[-1])
    if row["allocator"] == "vmm":
        return None
    begun = time.monotonic()
    # An exit code of 1 or 2 needs --device.
    answer = json.loads(
        run_child(["-m", "libvmm", "fit", "--json", snapshot], environment, 300),
    )
    row["fit_seconds"] = round(time.monotonic() - begun, 2)
    if (row["kind"], row["allocator"]) == ("traces", "native"):
        ADDRESSES[row["program"]] = addresses_of(snapshot)
    row["peak_live_bytes"] = answer["peak_live_bytes"]
    check = answer["self_check"]
    row["own_answer_bytes"] = check["predicted_held_bytes"]
    row["segment_events"] = check["segment_events"]
    row["answered_segment_events"] = check["replayed_segment_events"]
    row["same_segment_events"] = check["same_segment_events"]
    return {name: of.get("held_bytes") for name, of in answer["allocators"].items()}


def run_one(row, room, folder, end, out):
    """Fills the row. The answers of vmm-fit by allocator, or None."""
    snapshot = os.path.join(folder, "{kind}-{program}-{allocator}.pickle".format(**row))
    taken = room.take(weight_of(row))
    begun = time.monotonic()
    try:
        if end - begun < 10:
            raise RuntimeError("not begun: no time is left")
        found = measure(row, snapshot, end)
        keep(row, snapshot, out)
        return found
    except (RuntimeError, KeyError, ValueError, IndexError) as failure:
        row["failure"] = f"{type(failure).__name__}: {failure}"
        return None
    finally:
        room.give_back(taken)
        row["seconds"] = round(time.monotonic() - begun, 1)
        if os.path.exists(snapshot):
            os.remove(snapshot)
        state = row["failure"] or f"{row['measured_bytes'] / GIB:.3f} GiB"
        print(f"{row['kind']:8} {row['program']:15} {row['allocator']:11} {state}", flush=True)


def error_of(answer, measured):
    return "" if not answer or not measured else round(answer / measured - 1, 5)


def compare(rows, answers):
    """Fills in the answers from the snapshots of the other allocator."""
    for row in rows:
        other = "native" if row["allocator"] != "native" else "expandable"
        found = answers.get((row["kind"], row["program"], other)) or {}
        row["other_answer_bytes"] = found.get(row["allocator"], "")
        row["own_error"] = error_of(row["own_answer_bytes"], row["measured_bytes"])
        row["other_error"] = error_of(row["other_answer_bytes"], row["measured_bytes"])


# ---- the table -------------------------------------------------------------------------------


def is_same(row):
    return row["segment_events"] == row["answered_segment_events"] == row["same_segment_events"]


def percent(error):
    return "-" if error == "" else f"{100 * error:+.2f} %"


def line_of(row):
    if row["failure"]:
        return f"| {row['kind']} | {row['program']} | {row['allocator']} | {row['failure'][:90]} |"
    events = "-"
    if row["allocator"] != "vmm":
        events = "all " if is_same(row) else f"{row['same_segment_events']} of "
        events += str(row["segment_events"])
    cells = (
        row["kind"],
        row["program"],
        row["allocator"],
        f"{row['measured_bytes'] / GIB:.3f}",
        percent(row["own_error"]),
        percent(row["other_error"]),
        events,
    )
    return "| " + " | ".join(cells) + " |"


def count_line(rows, kind, allocator):
    """One sentence on the runs of a kind under an allocator."""
    of = [row for row in rows if (row["kind"], row["allocator"]) == (kind, allocator)]
    done = [row for row in of if not row["failure"]]
    out = f"{kind}, {allocator}: {len(done)} of {len(of)} ran"
    for name in ("own_error", "other_error"):
        errors = [abs(row[name]) for row in done if row[name] != ""]
        if errors:
            near = sum(error <= 0.03 for error in errors)
            nearer = sum(error <= 0.02 for error in errors)
            out += (
                f"; {name.replace('_', ' ')}: {nearer} of {len(errors)} within 2 %, {near} within "
            )
            out += f"3 %, at most {100 * max(errors):.2f} %"
    if allocator != "vmm":
        out += f"; same segment events: {sum(map(is_same, done))} of {len(done)}"
    return out


def driver_version():
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.split()[0]
    except (OSError, IndexError):
        return "unknown"


def heading_line():
    import torch

    day = time.strftime("%Y-%m-%d", time.gmtime())
    version = ".".join(torch.__version__.split(".")[:2])
    return (
        f"# command: python3 gpu_tests/python/{os.path.basename(sys.argv[0])}; {day}, "
        f"{torch.cuda.get_device_name()}, driver {driver_version()}, PyTorch {version} "
        f"(CUDA {torch.version.cuda})"
    )


def write(rows, folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "fit.csv")
    with open(path, "w", newline="") as file:
        file.write(heading_line() + "\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with open(os.path.join(folder, "fit-addresses.csv"), "w", newline="") as file:
        file.write(heading_line() + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("program", "size_mib", "offset_mib"))
        for name, places in sorted(ADDRESSES.items()):
            least = min((at for _, at in places), default=0)
            writer.writerows((name, size / MIB, (at - least) / MIB) for size, at in places)
    print(f"wrote {path}")


def print_table(rows, kinds, allocators):
    print("| kind | program | allocator | most held, GiB | own | other | same segment events |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(line_of(row))
    for kind in kinds:
        for allocator in allocators:
            print(count_line(rows, kind, allocator))


def run_all(rows, options, folder):
    end = time.monotonic() + options.seconds
    LIVE_BYTES.update((name, peak_live_of(path_of("traces", name))) for name in NAMES)
    room = Room(options.memory * GIB)
    left, answers, lock = list(rows), {}, threading.Lock()

    def work():
        while True:
            with lock:
                if not left:
                    return
                row = left.pop(0)
            found = run_one(row, room, folder, end, options.out)
            answers[row["kind"], row["program"], row["allocator"]] = found

    workers = [threading.Thread(target=work) for _ in range(options.jobs)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return answers


NAMES = sorted(
    name[: -len(".trace.gz")]
    for name in os.listdir(os.path.join(ROOT, "traces"))
    if name.endswith(".trace.gz")
)


NEW = sorted(
    name[: -len(".py")]
    for name in os.listdir(os.path.join(HERE, "programs"))
    if name.endswith(".py")
)


def main():
    if sys.argv[1:2] == ["--run"]:
        return run(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default=",".join(NAMES + NEW))
    parser.add_argument("--kinds", default="traces,new")
    parser.add_argument("--allocators", default="native,expandable,vmm")
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--memory", type=float, default=74, metavar="GIB")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    unknown = [name for name in names if name not in NAMES + NEW]
    if unknown:
        parser.error(f"there is no program {unknown[0]}; there are: {', '.join(NAMES + NEW)}")
    kinds, allocators = options.kinds.split(","), options.allocators.split(",")
    rows = [
        dict.fromkeys(COLUMNS, "") | {"kind": kind, "program": name, "allocator": allocator}
        for kind in kinds
        for name in names
        if (name in NEW) == (kind == "new")
        for allocator in allocators
    ]
    with tempfile.TemporaryDirectory() as folder:
        answers = run_all(rows, options, folder)
    compare(rows, answers)
    if options.out:
        write(rows, options.out)
    print_table(rows, kinds, allocators)
    return 1 if any(row["failure"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
