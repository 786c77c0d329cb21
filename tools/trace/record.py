# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Records the allocations of a PyTorch program as a trace (traces/README.md has the format).

    python3 record.py [--json] [--max-entries N] OUT PROGRAM.py [ARGS...]

OUT ending in .gz is compressed; '-' records nothing and only says what PyTorch held and how long
the program took. The program may mark its iterations:

    import record
    record.iteration()

which does nothing while nobody records. --json prints the figures as one JSON object on stdout.

A request is an 'a' line, a free that has completed (no stream uses the block any more) an 'f'
line. Ids are numbered anew, lowest free number first; the default stream is 0 and the others are
numbered in the order in which they first appear. What was live before the recording began stands
at the head of the trace. The same history gives the same bytes. Requests and frees are counted by
PyTorch itself too: a history that does not have them all is refused.

Exit codes: 0 recorded; 1 the program failed, the history is not whole or the trace could not be
written in full; 2 the command line is wrong or OUT cannot be opened.
"""

import argparse
import gzip
import heapq
import json
import os
import runpy
import sys
import time

LIVE_UNIT_BYTES = 512
NO_EVENTS = frozenset(
    "segment_alloc segment_free segment_map segment_unmap oom snapshot workspace_snapshot".split()
)


# ---- from a history to a trace: pure, without PyTorch --------------------------------------------


class _Lines:
    """The lines so far, and which ids and streams are taken."""

    def __init__(self):
        self.lines = []
        self.ids = {}  # address of a live block to its id
        self.free_ids = []
        self.streams = {0: 0}

    def allocate(self, address, size_bytes, stream):
        if address in self.ids:
            raise ValueError(f"history: {address:#x} is handed out while it is live")
        if size_bytes < 1:
            raise ValueError(f"history: a request of {size_bytes} bytes")
        number = heapq.heappop(self.free_ids) if self.free_ids else len(self.ids)
        self.ids[address] = number
        name = self.streams.setdefault(stream, len(self.streams))
        self.lines.append(f"a {number} {size_bytes} {name}")

    def free(self, address):
        if address not in self.ids:
            raise ValueError(f"history: {address:#x} is freed and is not live")
        number = self.ids.pop(address)
        heapq.heappush(self.free_ids, number)
        self.lines.append(f"f {number}")


def convert(history, marks=(), live_before=(), counted=None):
    """The lines of a trace.

    history: PyTorch's entries in their order, dicts with "action" and, where the action is one of
    "alloc", "free_requested" and "free_completed", "addr", "size" (bytes) and "stream".
    marks: an (allocations, frees) for each iteration: how many of either had been asked for when
    it began. live_before: dicts with "addr", "size" and "stream". counted: the (allocations,
    frees) that the whole history must have. Raises ValueError for a history that is not whole.
    """
    made = _Lines()
    for block in sorted(live_before, key=lambda block: block["addr"]):
        made.allocate(block["addr"], block["size"], block["stream"])
    asked = [0, 0]
    begun = 0
    for entry in history:
        action = entry["action"]
        if action in ("alloc", "free_requested"):
            while begun < len(marks) and tuple(marks[begun]) == tuple(asked):
                made.lines.append(f"i {begun}")
                begun += 1
            asked[action == "free_requested"] += 1
        if action == "alloc":
            made.allocate(entry["addr"], entry["size"], entry["stream"])
        elif action == "free_completed":
            made.free(entry["addr"])
        elif action != "free_requested" and action not in NO_EVENTS:
            raise ValueError(f"history: '{action}' is no action that this recorder knows")
    while begun < len(marks) and tuple(marks[begun]) == tuple(asked):
        made.lines.append(f"i {begun}")
        begun += 1
    if begun < len(marks):
        raise ValueError(f"history: iteration {begun} began at no place in it")
    if counted is not None and tuple(counted) != tuple(asked):
        raise ValueError(
            f"history: has {asked[0]} allocations and {asked[1]} frees, but {counted[0]} and "
            f"{counted[1]} were made; was it too short (--max-entries)?"
        )
    return made.lines


def figures_of(lines):
    """What a trace has: counts, and its most live bytes, each request rounded up to 512."""
    sizes, streams = {}, set()
    live = most = allocations = frees = iterations = 0
    for line in lines:
        words = line.split()
        if words[0] == "a":
            sizes[words[1]] = -(-int(words[2]) // LIVE_UNIT_BYTES) * LIVE_UNIT_BYTES
            live += sizes[words[1]]
            most = max(most, live)
            allocations += 1
            streams.add(words[3])
        elif words[0] == "f":
            live -= sizes.pop(words[1])
            frees += 1
        else:
            iterations += 1
    return {
        "allocations": allocations,
        "frees": frees,
        "iterations": iterations,
        "streams": len(streams),
        "peak_live_bytes": most,
        "end_live_bytes": live,
    }


def write_trace(path, lines):
    """Writes the lines, compressed where the path ends in .gz; no time and no name go into it."""
    text = "".join(line + "\n" for line in lines).encode()
    with open(path, "wb") as file:
        if not path.endswith(".gz"):
            file.write(text)
            return
        with gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as packed:
            packed.write(text)


# ---- recording -----------------------------------------------------------------------------------


class Recording:
    """From its making to finish(): the history of the current device."""

    def __init__(self, max_entries, with_history=True):
        try:
            import torch
        except ImportError as trouble:
            sys.exit(f"record.py: {trouble}: it records programs that use PyTorch")
        torch.cuda.init()
        self.cuda = torch.cuda
        self.device = torch.cuda.current_device()
        self.max_entries = max_entries
        self.with_history = with_history
        self.marks = []
        self.began_at = None
        torch.cuda.synchronize()
        self.live_before = []
        for segment in torch.cuda.memory._snapshot()["segments"]:
            if segment["device"] == self.device:
                for block in segment["blocks"]:
                    if block["state"] != "inactive":
                        at, size = block["address"], block["requested_size"]
                        stream = segment["stream"]
                        self.live_before.append({"addr": at, "size": size, "stream": stream})
        self.before = self._count()
        torch.cuda.reset_peak_memory_stats()
        if with_history:
            torch.cuda.memory._record_memory_history(
                enabled="all", context=None, stacks="python", max_entries=max_entries
            )

    def _count(self):
        counts = self.cuda.memory_stats_as_nested_dict(self.device).get("allocation")
        if not counts:  # nothing was ever allocated
            return 0, 0
        return counts["all"]["allocated"], counts["all"]["freed"]

    def _count_since(self):
        return tuple(now - then for now, then in zip(self._count(), self.before))

    def mark(self):
        if self.began_at is None:
            self.cuda.synchronize()
            self.began_at = time.monotonic()
        self.marks.append(self._count_since())

    def finish(self):
        """The trace's lines (none without a history) and what PyTorch says of its memory."""
        self.cuda.synchronize()
        stats = self.cuda.memory_stats(self.device)
        took = None if self.began_at is None else round(time.monotonic() - self.began_at, 3)
        figures = {
            "torch_peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
            "torch_peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
            "torch_peak_requested_bytes": stats.get("requested_bytes.all.peak", 0),
            "torch_retries": stats.get("num_alloc_retries", 0),
            "live_before": len(self.live_before),
            "iterations_seconds": took,
        }
        if not self.with_history:
            return [], figures
        counted = self._count_since()
        histories = self.cuda.memory._snapshot()["device_traces"]
        self.cuda.memory._record_memory_history(enabled=None)
        for device, history in enumerate(histories):
            if device != self.device and any(entry["action"] == "alloc" for entry in history):
                raise ValueError(f"device {device} was used too; device {self.device} is recorded")
        if len(histories[self.device]) >= self.max_entries:
            raise ValueError(f"the history is full with {self.max_entries} entries (--max-entries)")
        lines = convert(histories[self.device], self.marks, self.live_before, counted)
        figures.update(figures_of(lines))
        return lines, figures


_recording = None


def iteration():
    """Says that an iteration of the program begins here."""
    if _recording is not None:
        _recording.mark()


def _run(program, arguments):
    """Runs the program as python3 would. While what it answers is held, so is its memory."""
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    sys.modules["record"] = sys.modules["__main__"]
    try:
        return runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code in (None, 0):
            return end  # it holds the frames, and so the globals
        print(f"record: the program ended with {end.code}", file=sys.stderr)
        sys.exit(1)


def _why_not_writable(path):
    """Nothing, or the system's reason. What stands in the file stays, and no new one is left."""
    was_there = os.path.exists(path)
    try:
        open(path, "ab").close()
        if not was_there:
            os.remove(path)
    except OSError as trouble:
        return trouble.strerror
    return ""


def _describe(figures):
    gib = 1 << 30
    held = figures["torch_peak_reserved_bytes"] / gib
    text = f"PyTorch held at most {held:.3f} GiB"
    if "allocations" in figures:
        text = (
            f"{figures['allocations']} allocations, {figures['frees']} frees, "
            f"{figures['streams']} streams, {figures['iterations']} iterations, at most "
            f"{figures['peak_live_bytes'] / gib:.3f} GiB live; " + text
        )
    if figures["live_before"]:
        text += f"; {figures['live_before']} blocks were live before, and stand at the head"
    if figures["iterations_seconds"] is not None:
        text += f"; {figures['iterations_seconds']} s from the first iteration on"
    return text


def main():
    global _recording
    parser = argparse.ArgumentParser(prog="record.py", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="figures as JSON on stdout")
    parser.add_argument("--max-entries", type=int, default=1 << 24, help="longest history")
    parser.add_argument("out", help="the trace to write; '-' writes none")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    trouble = _why_not_writable(options.out) if options.out != "-" else ""
    if trouble:  # before a program runs whose recording would be lost
        print(f"record: {options.out}: cannot be written: {trouble}", file=sys.stderr)
        return 2
    _recording = Recording(options.max_entries, with_history=options.out != "-")
    held = _run(options.program, options.arguments)
    try:
        lines, figures = _recording.finish()
    except ValueError as trouble:
        print(f"record: {trouble}", file=sys.stderr)
        return 1
    del held
    if options.out != "-":
        if figures["allocations"] == 0:
            print("record: the program allocated nothing; no trace is written", file=sys.stderr)
            return 1
        try:
            write_trace(options.out, lines)
        except OSError as trouble:
            print(f"record: {options.out}: cannot be written: {trouble.strerror}", file=sys.stderr)
            return 1
    if options.json:
        print(json.dumps({"trace": os.path.basename(options.out), **figures}))
    print(f"record: {_describe(figures)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
