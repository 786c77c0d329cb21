# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Files of format 1 that no allocator wrote, by tools/history/README.md, for readers."""

import random
import struct

ALLOCATED, FREED, RESIZED, MAPPED, UNMAPPED, RELEASED = 1, 2, 8, 18, 19, 20
FOOTPRINT, SUSPENDED, RESUMED, GROW, SERVED, BLOCKED, PASSED, SHORT = 21, 22, 23, 32, 33, 35, 36, 37
LIVE, FREE, HOLE, STALE = range(4)


def text(what):
    return struct.pack("<I", len(what)) + what


def made_history(path, events=(), tags=(), lines=(), facts=(), regions=(), mappings=()):
    """An event: time, address, size, stream, detail, line, tag, kind. A region: address, size,
    stream, kind. A mapping: address, size, whether it is stale."""
    sections = [
        struct.pack("<Q", 0) + b"".join(struct.pack("<5QIHBB", *each, 0) for each in events),
        b"".join(struct.pack("<3QII", *each, 0) for each in regions),
        b"".join(struct.pack("<3Q", *each) for each in mappings),
        b"".join(map(text, tags)),
        b"".join(struct.pack("<I", line) + text(file) + text(name) for line, file, name in lines),
        b"".join(text(name) + text(value) for name, value in facts),
    ]
    out = b"vmmhist\n" + struct.pack("<II", 1, 0)
    for number, contents in enumerate(sections, 1):
        out += struct.pack("<IIQ", number, 0, len(contents)) + contents + bytes(-len(contents) % 8)
    path.write_bytes(out)
    return path


POOL = (b"allocator", b"stream_pool")
MARKUP = [
    b"</script><script>document.title='taken'</script>",
    b"<img src=x onerror=alert(1)>",
    b"<!--<script>",
    b"__proto__",
    b"constructor",
    b"]]>",
    b"\"');alert(1);//",
    b"\xff\xfe\x00\x1b[31m",
    "\u2028\u202e\u0000".encode(),
    b"n" * 65535,
    b"",
]

KINDS = [1, 1, 2, 2, 3, 4, 5, 6, 8, 18, 18, *range(19, 24), 32, 33, 37]


def scrambled(seed):
    """Events of every kind, at a few places of odd sizes, in any order."""
    source = random.Random(seed)
    places = [source.randrange(1 << source.randrange(12, 63)) for _ in range(6)]
    sizes = [0, 1, 511, 512, 4096, 2 << 20, 20 << 20, 1 << 40, 1 << 55]
    now, events = 0, []
    for _ in range(source.randrange(400)):
        now += source.choice([0, 1, 1000, 1 << 40])
        kind = source.choice([*KINDS, source.randrange(1, 256)])
        at, size, stream = (source.choice(each) for each in (places, sizes, range(4)))
        detail = source.choice([*places, 0])
        events.append((now, at, size, stream, detail, 0, source.randrange(2), kind))
    ends, regions, mappings = 0, [], []
    for at in sorted(set(places)):
        size = source.choice(sizes)
        if at < ends or at + size >= 1 << 64:
            continue
        ends = at + size
        regions.append((at, size, 0, source.randrange(5)))
        mappings.append((at, size, source.randrange(2)))
    facts = [
        source.choice([POOL, (b"allocator", b"manager"), (b"allocator", b"\xff")]),
        (b"page_bytes", source.choice([b"0", b"1", b"512", b"2097152", b"-5", b"1e300"])),
    ]
    made = {"events": events, "tags": [b"t"], "facts": facts}
    return {**made, "regions": regions, "mappings": mappings}


def hostile():
    """What a file may say, by name: the reader takes each of them."""
    top, huge = (1 << 64) - 8192, 1 << 55
    out = {"empty": {}, "one": {"events": [(1 << 63, 4096, 512, 0, 500, 0, 0, ALLOCATED)]}}
    for size in (b"0", b"-1", b"1e-300", b"Infinity", b"9" * 400, b"512"):
        out["page of " + size.decode()[:12]] = {
            "facts": [POOL, (b"page_bytes", size)],
            "mappings": [(0, huge, 0)],
            "regions": [(512, huge - 512, 0, LIVE)],
            "events": [(5, 512, huge - 512, 0, 0, 0, 0, ALLOCATED)],
        }
    out["behind a mapping's end"] = {
        "facts": [POOL],
        "mappings": [(0, 512, 0)],
        "regions": [(1024, 512, 0, LIVE)],
        "events": [(1, 0, 512, 0, 0, 0, 0, MAPPED), (2, 1024, 512, 0, 0, 0, 0, ALLOCATED)],
    }
    out["the last addresses"] = {
        "facts": [POOL, (b"page_bytes", b"512")],
        "mappings": [(top, 8191, 0)],
        "regions": [(top, 4096, 0, LIVE)],
        "events": [(1, top, 8191, 0, 0, 0, 0, MAPPED), (2, top, 4096, 0, 0, 0, 0, ALLOCATED)],
    }
    names = [(i, each, each) for i, each in enumerate(MARKUP)]
    out["markup"] = {
        "tags": MARKUP,
        "lines": names,
        "facts": [POOL, (b"policy", MARKUP[0])] + [(each, each) for each in MARKUP],
        "events": [
            (i, 4096 * (i + 1), 512, i, 500, i + 1, i + 1, ALLOCATED) for i in range(len(MARKUP))
        ],
        "regions": [(4096 * (i + 1), 512, 0, LIVE) for i in range(len(MARKUP))],
    }
    out["thousands of streams and tags"] = {
        "tags": [b"tag %d" % i for i in range(20000)],
        "facts": [POOL],
        "events": [(i, 4096 * (i + 1), 512, i, 0, 0, i + 1, ALLOCATED) for i in range(20000)],
        "regions": [(4096 * (i + 1), 512, 0, LIVE) for i in range(20000)],
    }
    out["growths without an end"] = {
        "facts": [POOL],
        "events": [(i, 0, 1 << 47, 0, 0, 0, 0, GROW) for i in range(30000)],
    }
    out["everything at one place"] = {
        "facts": [POOL],
        "events": [
            (0, 4096, 512, 0, 4096, 0, 0, kind)
            for kind in (RESIZED, MAPPED, UNMAPPED, RELEASED, SUSPENDED, RESUMED, FREED, ALLOCATED)
            for _ in range(500)
        ],
    }
    for seed in range(5):
        out["scrambled %d" % seed] = scrambled(seed)
    return out
