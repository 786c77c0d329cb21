# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""cache_lines - the cache lines that a warm allocate and free of the stream pool touch.

Runs `bench_stream --lines` under valgrind's lackey, which prints each access, and counts the lines
of 64 bytes between the marks that the program writes. A line counts once a call, whoever touches
it: the caller's stack is one. Lines are named by the function that touches them first, where the
program has line tables (-DCMAKE_CXX_FLAGS=-gline-tables-only, which changes no instruction);
without them only the counts are printed. Line tables are of DWARF 4, which valgrind reads
(-gdwarf-4). A trace is cut to its first events, since each access is a line of text.

    usage: cache_lines.py BENCH_STREAM TRACE [--events N] [--every N] [--created]
"""

import argparse
import collections
import gzip
import os
import re
import statistics
import subprocess
import sys
import tempfile

LINE_BYTES = 64

# What a line is for, by the innermost function that touches it first. The first that fits.
CALLER = "caller: its stack, its own arrays"
PARTS = [
    (r"play_marked|pool_subject|_Storage<", CALLER),
    (r"process_mark|forks_passed", "fork counter"),
    (r"live_block_table", "table of blocks: a bucket"),
    (r"first_region_by_page|forget_start|note_start", "first regions of pages: records, bits"),
    (r"size_bins|first_fit|best_fit|lowest_region", "free lists: counts, bitmap, heads, next"),
    (r"stream_progress|stream_table|advance", "state: streams and clock"),
    (r"free_handle_bins|leave_free|enter_free", "free handles: lists"),
    (
        r"handle_record|count_live_in_each|release_range",
        "handles and their mappings, where one becomes free or live",
    ),
    (r"mapping_at|_M_ptr.*mapping", "units: what is mapped where"),
    (r"mapping@|mapping::|release_live", "mapping of the block"),
    (
        r"mappings@|pool_geometry|pool_state|granules_|segment_around|wants_slow",
        "state: first segment, live counts",
    ),
    (r"region_map|note_of|mark_of|kind_of|region_record", "regions: records, notes, kinds"),
    (r"segment@|segment::|_M_ptr|operator-", "segment: where its parts are"),
    (
        r"stream_pool|spin_lock|history_use|state_cell|warm_lock|table_lock|__atomic_base",
        "pool: gate, lock, flags",
    ),
]
STACK_FROM = 0x1FFE000000  # where valgrind puts the stack of a 64-bit program


def part_of(function):
    for pattern, part in PARTS:
        if re.search(pattern, function):
            return part
    return function


def names_of(program, addresses):
    """The innermost function at each address of the program's own code."""
    order = sorted(addresses)
    text = "".join(f"{program} {address:#x}\n" for address in order)
    command = "llvm-symbolizer-19 --inlines --demangle".split()
    try:
        out = subprocess.check_output(command, input=text, text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return {}
    blocks = out.strip().split("\n\n")
    if len(blocks) != len(order):
        return {}
    return {address: block.split("\n")[0] for address, block in zip(order, blocks)}


def calls_of(command, every):
    """(kind, {line: (instruction, is_written)}) of each call that is looked at."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1 << 20
    )
    marks = {}
    kind, lines, seen, instruction = None, {}, 0, 0
    for text in process.stdout:
        head = text[:3]
        if head == "I  ":
            if kind is not None:
                instruction = text[3:].split(",")[0]
            continue
        if head not in (" S ", " L ", " M "):
            if text.startswith("marks "):
                names = zip(text.split()[1:], ("allocate", "free", "end"))
                marks = {f"{int(address, 16):08x}": name for address, name in names}
            continue
        if not marks:
            continue
        address, size = text[3:].split(",")
        mark = marks.get(address) if head == " S " else None
        if mark == "end":
            if kind is not None:
                yield kind, lines
            kind = None
        elif mark is not None:
            seen += 1
            kind, lines = (mark, {}) if seen % every == 0 else (None, {})
        elif kind is not None:
            first = int(address, 16)
            last = first + int(size) - 1
            for line in range(first // LINE_BYTES, last // LINE_BYTES + 1):
                where, written = lines.get(line, (instruction, False))
                lines[line] = (where, written or head != " L ")
    if process.wait() != 0:
        sys.exit("cache_lines: the program under valgrind has failed")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("program")
    options.add_argument("trace")
    options.add_argument("--events", type=int, default=8000, help="of the trace")
    options.add_argument("--every", type=int, default=8, help="look at each Nth call")
    options.add_argument("--created", action="store_true", help="on a stream that was created")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shorter = os.path.join(folder, "cut.trace")
        with gzip.open(chosen.trace, "rt") as whole, open(shorter, "w", encoding="utf-8") as cut:
            cut.writelines(line for _, line in zip(range(chosen.events), whole))
        command = "setarch -R valgrind --tool=lackey --trace-mem=yes --log-fd=1".split()
        command += [chosen.program, "--lines", shorter]
        command += ["--created"] if chosen.created else []
        calls = list(calls_of(command, chosen.every))
    if not calls:
        sys.exit("cache_lines: no call was seen")
    # A position-independent program that valgrind loads without randomisation lies there.
    base = 0x108000 if os.path.exists(chosen.program) else 0
    instructions = {int(where, 16) for _, lines in calls for where, _ in lines.values()}
    names = names_of(chosen.program, {i - base for i in instructions})
    for kind in ("allocate", "free"):
        of_kind = [lines for each, lines in calls if each == kind]
        counts = [len(lines) for lines in of_kind]
        written = [sum(w for _, w in lines.values()) for lines in of_kind]
        print(
            f"{os.path.basename(chosen.trace)}, {kind}: {len(counts)} calls, lines: mean "
            f"{statistics.mean(counts):.1f}, median {statistics.median(counts):.0f}, written "
            f"{statistics.mean(written):.1f}"
        )
        parts = collections.Counter()
        for lines in of_kind:
            for line, (where, _) in lines.items():
                function = names.get(int(where, 16) - base, "")
                on_stack = line * LINE_BYTES >= STACK_FROM
                parts[CALLER if on_stack else part_of(function)] += 1
        own = sum(count for part, count in parts.items() if part != CALLER) / len(of_kind)
        print(f"  {own:6.2f}  the pool's own, of which")
        for part, count in parts.most_common(24):
            print(f"  {count / len(of_kind):6.2f}  {part or 'not known'}")


if __name__ == "__main__":
    main()
