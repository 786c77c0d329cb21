# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots in the shapes that PyTorch's versions give them, made without PyTorch.

The fields by version are those of torch/csrc/cuda/memory_snapshot.cpp and
torch/csrc/cuda/Module.cpp: `version` is the minor of 2.x; 0 stands for the nightlies before 2.1.
"""

import io
import pickle
import struct

MIB = 1 << 20
BASE = 0x7F0000000000
VERSIONS = (0, 1, 3, 5, 12, 15)


def frames(line=42):
    return [
        {"filename": "??", "name": "at::native::empty", "line": 0},
        {"filename": "model.py", "name": "forward", "line": line},
    ]


class Recording:
    """What an allocator writes down of one device: events, and the segments at the end."""

    def __init__(self, version, device=0):
        self.version, self.device = version, device
        self.events, self.segments, self.now = [], {}, 1_700_000_000_000_000

    def event(self, action, at, size, stream=0, line=42, pool=(0, 0), tag=None):
        made = {"action": action, "device_free" if action == "oom" else "addr": at}
        made |= {"size": size, "stream": stream, "frames": frames(line)}
        self.now += 10
        if self.version >= 2:
            made["time_us"] = self.now
        if self.version >= 5:
            made["compile_context"] = "N/A"
            made["user_metadata"] = tag or ""
        if self.version >= 12:
            made["pool_id"] = pool
        self.events.append(made)

    def segment(self, at, size, stream=0, pool=(0, 0), expandable=False):
        self.event("segment_map" if expandable else "segment_alloc", at, size, stream, pool=pool)
        self.segments[at] = {
            "device": self.device,
            "address": at,
            "total_size": size,
            "stream": stream,
            "segment_type": "small" if size == 2 * MIB else "large",
            "segment_pool_id": pool,
            "is_expandable": expandable,
            "blocks": {},
        }

    def home(self, at):
        below = (each for each in self.segments.values() if each["address"] <= at)
        return next(each for each in below if at < each["address"] + each["total_size"])

    def alloc(self, at, size, rounded=None, line=42, tag=None):
        home = self.home(at)
        home["blocks"][at] = (size, rounded or -(-size // 512) * 512, line)
        self.event("alloc", at, size, home["stream"], line, home["segment_pool_id"], tag)

    def filled(self, at, size, **how):
        """A segment, and a block of its size."""
        self.segment(at, size)
        self.alloc(at, size, **how)

    def free(self, at):
        home = self.home(at)
        size, _, line = home["blocks"].pop(at)
        self.event("free_requested", at, size, home["stream"], line, home["segment_pool_id"])
        self.event("free_completed", at, size, home["stream"], line, home["segment_pool_id"])

    def listed(self):
        """The segments as the snapshot has them: blocks end to end."""
        out = []
        for segment in self.segments.values():
            at, blocks = segment["address"], []
            end = at + segment["total_size"]
            for base, (asked, size, line) in sorted(segment["blocks"].items()):
                if base > at:
                    blocks.append(self.block(at, base - at))
                blocks.append(self.block(base, size, asked, line))
                at = base + size
            if at < end:
                blocks.append(self.block(at, end - at))
            made = dict(segment, blocks=blocks, frames=frames(1))
            live = [each for each in blocks if each["state"] != "inactive"]
            made["allocated_size"] = made["active_size"] = sum(each["size"] for each in live)
            made["requested_size"] = sum(each.get("requested_size", 0) for each in live)
            if self.version == 0:
                del made["segment_pool_id"], made["is_expandable"], made["requested_size"]
            out.append(made)
        return out

    def block(self, at, size, asked=0, line=0):
        state = "active_allocated" if asked else "inactive"
        if self.version == 0:
            made = {"size": size, "state": state}
            if asked:
                made["history"] = [{"addr": at, "real_size": asked, "frames": frames(line)}]
            return made
        made = {"address": at, "size": size, "requested_size": asked, "state": state}
        made["frames"] = frames(line) if asked else []
        return made


def settings(**changed):
    out = {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
    }
    out.update(changed)
    return out


def snapshot(recordings, **changed):
    version = recordings[0].version
    traces = [[] for _ in range(1 + max(each.device for each in recordings))]
    for each in recordings:
        traces[each.device] = each.events
    segments = [segment for each in recordings for segment in each.listed()]
    out = {"segments": segments, "device_traces": traces}
    if version >= 3:
        out["allocator_settings"] = settings(**changed)
    if version >= 5:
        scope = {"name": "Optimizer.step#SGD.step", "device": recordings[0].device}
        out["external_annotations"] = [
            dict(scope, stage="START", time_us=recordings[0].now),
            dict(scope, stage="END", time_us=recordings[0].now + 1),
        ]
    return out


def small_program(version, device=0):
    """A program of PyTorch's native allocator: 52 MiB are held, 1,024 bytes and 38 MiB live."""
    made = Recording(version, device)
    made.segment(BASE, 2 * MIB)
    made.alloc(BASE, 1000, line=7, tag="weights")
    made.segment(BASE + 32 * MIB, 20 * MIB)
    made.alloc(BASE + 32 * MIB, 5 * MIB)
    made.free(BASE + 32 * MIB)
    made.alloc(BASE + 32 * MIB, 8 * MIB)
    made.segment(BASE + 64 * MIB, 30 * MIB)
    made.alloc(BASE + 64 * MIB, 30 * MIB, line=9)
    made.free(BASE + 64 * MIB)
    return made


class TorchPickler:
    """PyTorch's own pickler of C++ (torch/csrc/jit/serialization/pickler.cpp): protocol 2, each
    container marked once, strings and containers in the memo by BINPUT."""

    def __init__(self):
        self.out, self.memo, self.kept = io.BytesIO(), {}, []

    def dumps(self, value):
        self.out.write(b"\x80\x02")
        self.push(value)
        self.out.write(b".")
        return self.out.getvalue()

    def put(self, key, value):
        number = len(self.memo)
        self.memo[key] = number
        self.kept.append(value)
        short = number < 256
        self.out.write((b"q" if short else b"r") + struct.pack("<B" if short else "<I", number))

    def push(self, value):
        key = value if isinstance(value, str) else id(value)
        if isinstance(value, (str, dict, list)) and key in self.memo:
            number = self.memo[key]
            short = number < 256
            self.out.write((b"h" if short else b"j") + struct.pack("<B" if short else "<I", number))
        elif value is None:
            self.out.write(b"N")
        elif isinstance(value, bool):
            self.out.write(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            self.push_int(value)
        elif isinstance(value, float):
            self.out.write(b"G" + struct.pack(">d", value))
        elif isinstance(value, str):
            text = value.encode()
            self.out.write(b"X" + struct.pack("<I", len(text)) + text)
            self.put(key, value)
        elif isinstance(value, tuple):
            self.out.write(b"(")
            for each in value:
                self.push(each)
            self.out.write(b"t")
            self.put(key, value)
        else:
            self.push_container(key, value)

    def push_int(self, value):
        if -(1 << 31) <= value < 1 << 31:
            self.out.write(b"J" + struct.pack("<i", value))
        else:
            wrapped = value - (1 << 64) if value >= 1 << 63 else value
            self.out.write(b"\x8a\x08" + struct.pack("<q", wrapped))

    def push_container(self, key, value):
        is_dict = isinstance(value, dict)
        self.out.write(b"}" if is_dict else b"]")
        self.put(key, value)
        self.out.write(b"(")
        for each in value.items() if is_dict else value:
            for part in each if is_dict else (each,):
                self.push(part)
        self.out.write(b"u" if is_dict else b"e")


def forms(value):
    """The bytes of a snapshot in each form that its writers give it, by name."""
    for protocol in (2, 3, 4, 5):
        yield f"protocol {protocol}", pickle.dumps(value, protocol)
    yield "C++", TorchPickler().dumps(value)
