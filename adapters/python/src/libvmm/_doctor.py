# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m libvmm doctor`: the state of a process, and obstacles to vmm."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any

import _libvmm_start

import libvmm

from . import _market, _native, _settings
from ._hooks import hooks

_CUDA_LIBRARY = re.compile(r"/(libcuda|libcudart|libnccl|libc10_cuda)[^/]*\.so[^/]*$")
_OWN_LIBRARY = re.compile(r"/libvmm(_preload)?\.so[^/]*$")


def mapped_libraries(wanted: re.Pattern[str] = _CUDA_LIBRARY) -> list[str]:
    """The CUDA libraries that this process maps, or others."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if wanted.search(path):
                found.add(path)
    return sorted(found)


def preload_library() -> str | None:
    """The preload library: the wheel's own, else one beside the C library that is loaded, where a
    distribution's packages have it."""
    beside = [
        os.path.dirname(path)
        for path in mapped_libraries(_OWN_LIBRARY)
        if os.path.basename(path).startswith("libvmm.so")
    ]
    for folder in (os.path.join(_native.FOLDER, "lib"), *beside):
        path = os.path.join(folder, "libvmm_preload.so")
        if os.path.exists(path):
            return path
    return None


def why_no_preload_library(drivers: list[Any]) -> str:
    """Why this installation lacks the preload library."""
    for each in drivers:
        if each.name == "cuda" and "cuda.h" in each.reason:
            return f"{each.reason}; the preload library comes with that driver"
    return "the build excluded it, or another package has it (vmm-tools on Debian)"


def preload_conflicts(environment: dict[str, str], loaded: list[str]) -> list[str]:
    """Reasons why LD_PRELOAD and VMM_MODE have no effect; `loaded`: libraries of this process."""
    found = []
    value = environment.get("LD_PRELOAD", "")
    entries = [each for each in re.split("[ :]+", value) if each]
    own = [each for each in entries if os.path.basename(each).startswith("libvmm_preload")]
    mode = environment.get("VMM_MODE", "")
    command = f"`python -m libvmm run --mode {mode or 'vmm'} SCRIPT`"
    there = preload_library()
    is_named = there is not None and re.search(r"[\s:$]", there) is None
    advice = f"set it to {there}" if is_named else "remove it"
    if there and not is_named:
        advice += f", and run the program by {command}"
    whole = [each for each in (value, *value.split(":")) if " " in each and os.path.exists(each)]
    if whole:
        found.append(f"LD_PRELOAD names {whole[0]}, and is cut at blanks and colons: {advice}")
        entries = []
    for each in entries:
        if "/" in each and not os.path.exists(each):
            found.append(f"LD_PRELOAD names {each}, which does not exist: {advice}")
        elif each in own and not any(
            os.path.basename(os.path.realpath(each)) == os.path.basename(path) for path in loaded
        ):
            found.append(
                f"LD_PRELOAD names {each}, which was not loaded: it is not a library for this "
                f"machine, or not found; {advice}"
            )
    if mode in ("monitor", "vmm", "cache") and not own:
        found.append(
            f"VMM_MODE={mode} has no effect without the preload library: run the program by "
            + command
            + (f", or set LD_PRELOAD={there}" if is_named else "")
        )
    return found


#: Variables that the report judges, beside vmm's own.
CHECKED = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
_SETTING = re.compile(
    r"(VMM$|VMM_|VPMM_|LIBVMM|LD_PRELOAD$|CUDA_|PYTORCH_|NUMBA_CUDA_|XLA_PYTHON_)"
)
_DEVICE = re.compile(r"\d+|(GPU|MIG)-[0-9A-Fa-f/-]+(:\d+){0,2}")
_TAKES_CUDA = ("cuMemAlloc_v2", "cuGetProcAddress_v2", "cudaMalloc", "cudaFree")


def not_checked(environment: dict[str, str]) -> list[str]:
    """Variables that are listed as settings and not checked."""
    return [
        name
        for name in sorted(environment)
        if _SETTING.match(name) and name not in CHECKED and not name.startswith(("VMM", "VPMM_"))
    ]


def foreign_conflicts(environment: dict[str, str], taken: dict[str, str]) -> list[str]:
    """Variables of CUDA and PyTorch that are malformed or slow everything down, and libraries in
    LD_PRELOAD that take CUDA's calls; `taken`: as hooks() returns it."""
    found = []
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        named = [each.strip() for each in devices.split(",")]
        wrong = [each for each in named if not _DEVICE.fullmatch(each)]
        if devices.strip() in ("", "-1", "NoDevFiles"):
            found.append(f"CUDA_VISIBLE_DEVICES='{devices}' hides every GPU: unset it")
        elif wrong or len(set(named)) < len(named):
            why = f"'{wrong[0]}' names no device" if wrong else "a device is named twice"
            found.append(
                f"CUDA_VISIBLE_DEVICES='{devices}': {why}; CUDA sees only what stands before it. "
                f"Name devices as 0,1 or GPU-UUID"
            )
    if environment.get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"):
        found.append("CUDA_LAUNCH_BLOCKING: each kernel launch waits for the kernel; unset it")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        text = re.sub(r"\[[^]]*\]", "[]", environment.get(name, ""))
        wrong = [each for each in text.split(",") if not re.fullmatch(r"\s*\w+\s*:.*\S\s*", each)]
        if text and wrong:
            found.append(f"{name}: '{wrong[0]}' is not OPTION:VALUE, and PyTorch refuses it")
    preloaded = [each for each in re.split("[ :]+", environment.get("LD_PRELOAD", "")) if each]
    for file in sorted({taken[each] for each in _TAKES_CUDA if each in taken}):
        base = os.path.basename(file)
        if any(os.path.basename(each) == base for each in preloaded) and "libvmm" not in base:
            found.append(
                f"LD_PRELOAD names {file}, which defines calls of CUDA: another allocator or "
                f"profiler then meets them first; remove it"
            )
    return found


def conflicts(environment: dict[str, str]) -> list[str]:
    """Settings that prevent libvmm from working, or have no effect with it. Under the preload
    library PyTorch's settings concern memory that a mode does not serve only."""
    found = []
    if environment.get("VMM") == "1" and environment.get("VMM_DISABLE", "") not in ("", "0"):
        found.append("VMM=1 has no effect with VMM_DISABLE: unset one of them")
    if why := _settings.why_no_backend(environment):
        found.append(why)
    is_preloaded = "libvmm_preload" in environment.get("LD_PRELOAD", "")
    mode = environment.get("VMM_MODE", "") if is_preloaded else ""
    settings = ",".join(
        environment.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )
    if mode == "vmm" and re.search(r"expandable_segments\s*:\s*True", settings):
        found.append(
            "expandable_segments:True: PyTorch maps its memory itself, which VMM_MODE=vmm does not "
            "serve; set VMM_MODE=cache, or remove it"
        )
    if not is_preloaded and re.search(r"backend\s*:\s*cudaMallocAsync", settings):
        found.append(
            "backend:cudaMallocAsync: PyTorch's graphs and MemPool beside libvmm.torch "
            "need its native backend; remove it"
        )
    if not is_preloaded and environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "") not in ("", "0"):
        found.append("PYTORCH_NO_CUDA_MEMORY_CACHING: nothing is pooled; remove it")
    if environment.get("PYTORCH_CUDA_ALLOC_CONF") and environment.get("PYTORCH_ALLOC_CONF"):
        found.append(
            "PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are both set, and PyTorch reads one: "
            "remove the other"
        )
    return found


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _children() -> dict[int, list[int]]:
    """By process, those that it started and that run."""
    found: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # The name of a program may have blanks and parentheses.
        words = _text(f"/proc/{name}/stat").rpartition(")")[2].split()
        if len(words) > 1 and words[0] != "Z":
            found.setdefault(int(words[1]), []).append(int(name))
    return found


def _counts(content: bytes) -> str:
    """What the preload library counts (adapters/preload/account_records.h): the bytes of
    allocations and of mapped memory, vmm's pools included, and the calls left to the driver."""
    numbers = struct.unpack_from("<83Q", content, 64)
    parts = []
    for name, kind in (("allocated", 0), ("mapped", 36)):
        live, peak = sum(numbers[kind : kind + 36 : 4]), sum(numbers[kind + 1 : kind + 36 : 4])
        if peak:
            parts.append(f"{live / 2**20:.1f} MiB {name}, peak {peak / 2**20:.1f}")
    if left := sum(numbers[72:82]):
        parts.append(f"{left} calls left to the driver")
    return "; ".join(parts)


def _state_of(process: int) -> list[str]:
    """What VMM=1 wrote there of each library, or why there is nothing."""
    lines, counts = _notes_of(process)
    if counts:
        lines = [f"{each}; {counts}" if each.startswith("driver:") else each for each in lines]
    return lines


def _notes_of(process: int) -> tuple[list[str], str]:
    folder = f"/proc/{process}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError as trouble:
        return [f"cannot be read: {trouble.strerror}"], ""
    lines, counts = [], ""
    for each in descriptors:
        try:
            link = os.readlink(f"{folder}/{each}")
            if "memfd:libvmm-counts-1" in link:
                with open(f"{folder}/{each}", "rb") as file:
                    content = file.read()
                if struct.unpack_from("<Q", content) == (process,):
                    counts = _counts(content)
        except (OSError, struct.error):
            continue  # closed meanwhile
        if "memfd:libvmm-state" in link:
            owner, *lines = _text(f"{folder}/{each}").splitlines() or [""]
            if owner != str(process):
                lines = [f"{line} (forked)" for line in lines]
    if lines:
        return lines, counts
    if re.search(r"libvmm_preload", _text(f"/proc/{process}/maps")):
        return ["the preload library"], ""
    variables = _text(f"/proc/{process}/environ").split("\0")
    named = dict(each.partition("=")[::2] for each in variables)
    if named.get("VMM_DISABLE", "0") not in ("", "0"):
        return ["VMM_DISABLE is set"], ""
    if named.get("VMM", "0") in ("", "0"):
        return ["VMM is not set"], ""
    if wrong := _settings._judge("VMM", named["VMM"]) or _libvmm_start.why_off(named):
        return [f"no library is served: {wrong}"], ""
    return ["no library was imported, or the package is not installed for its interpreter"], ""


def tree(root: int, as_json: bool) -> tuple[str, int]:
    """The processes below `root` with what each library has there; the exit code. As lines, or as
    one JSON object."""
    if not os.path.exists(f"/proc/{root}"):
        why = f"--tree {root}: there is no such process, or this one cannot see it: name one of ps"
        print(f"libvmm doctor: {why}", file=sys.stderr)
        return json.dumps({"error": why}) if as_json else "", 2
    children, found, left = _children(), [], [(root, 0)]
    while left:
        process, depth = left.pop()
        name = _text(f"/proc/{process}/comm").strip()
        found.append({"process": process, "depth": depth, "name": name})
        found[-1]["state"] = _state_of(process)
        left += [(each, depth + 1) for each in sorted(children.get(process, ()), reverse=True)]
    if as_json:
        return json.dumps({"processes": found}, indent=2), 0
    return _plain(_tree_lines(found)), 0


def _plain(lines: Iterator[str]) -> str:
    """The lines, with a ? for each control character."""
    return "\n".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", each) for each in lines)


def _tree_lines(found: list[dict[str, Any]]) -> Iterator[str]:
    for each in found:
        for state in each["state"]:
            yield f"{'  ' * each['depth']}{each['process']} {each['name']}: {state}"


def _torch() -> dict[str, Any]:
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return {"state": "not installed"}
    loaded = sys.modules.get("torch")
    answer: dict[str, Any] = {"state": "imported" if loaded else "installed", "path": spec.origin}
    from .torch import _ahead, _build, _headers

    answer["version"] = _build.torch_version(spec.origin)
    answer["allocator"] = (
        f"PyTorch {answer['version']} is built without CUDA: install a build for CUDA"
        if _build.built_without_cuda(spec.origin)
        else _headers.support(str(answer["version"]))
    )
    path, why = _ahead.find(os.path.dirname(str(spec.origin)), answer["version"], True)
    answer["class"] = path or f"{why}: it is compiled where it is used"
    answer["compiler"] = " ".join(_build.find_compiler() or [_build.why_no_compiler()])
    return answer


def one_variable(environment: Any = os.environ) -> str:
    """Which way serves which library under VMM=1; "" where it serves none."""
    is_off = environment.get("VMM_DISABLE", "") not in ("", "0")
    if environment.get("VMM") != "1" or is_off or environment.get("VMM_MODE"):
        return ""
    out = _settings.excluded(environment.get("VMM_EXCLUDE", ""))
    boundary = _libvmm_start.served.get(_libvmm_start.BOUNDARY) or "their own memory"
    ways = ["torch by its class"] if "torch" not in out else []
    if adapters := [each for each in ("cupy", "numba", "rmm", "warp") if each not in out]:
        ways.append(f"{', '.join(adapters)} by adapters")
    return "; ".join([*ways, f"others: {boundary}"])


def report() -> dict[str, Any]:
    """The whole report, as `doctor --json` prints it."""
    drivers = libvmm.drivers()
    return {
        "libvmm": libvmm.__version__,
        "library": libvmm.loaded_library(),
        "preload_library": (
            preload_library() or "not in this installation: " + why_no_preload_library(drivers)
        ),
        "python": sys.version.split()[0],
        "drivers": [
            {"name": each.name, "available": each.available, "reason": each.reason}
            for each in drivers
        ],
        "mapped": mapped_libraries(),
        "mapped_vmm": mapped_libraries(_OWN_LIBRARY),
        "one_variable": one_variable(),
        "market": list(_market.lines(dict(os.environ))),
        "hooks": hooks(),
        "wrong": _settings.wrong(dict(os.environ)),
        "conflicts": [
            *preload_conflicts(dict(os.environ), mapped_libraries(_OWN_LIBRARY)),
            *conflicts(dict(os.environ)),
            *_market.conflicts(dict(os.environ)),
            *foreign_conflicts(dict(os.environ), hooks()),
        ],
        "checked": ["VMM_*", "VPMM_*", *CHECKED],
        "not_checked": not_checked(dict(os.environ)),
        "settings": {
            name: value for name, value in sorted(os.environ.items()) if _SETTING.match(name)
        },
        "torch": _torch(),
        "packages": {
            name: importlib.util.find_spec(name) is not None
            for name in ("cupy", "numba", "rmm", "numpy")
        },
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield (f"libvmm {found['libvmm']}: {found['library']}")
    yield (f"preload library: {found['preload_library']}")
    for driver in found["drivers"]:
        state = "available" if driver["available"] else f"not available: {driver['reason']}"
        yield (f"driver {driver['name']}: {state}")
    yield ("CUDA libraries of this process: " + (", ".join(found["mapped"]) or "none"))
    yield ("vmm's libraries of this process: " + ", ".join(found["mapped_vmm"]))
    if found["one_variable"]:
        yield (f"VMM=1: {found['one_variable']}")
    for each in found["market"]:
        yield (f"market: {each}")
    for name, file in found["hooks"].items():
        yield (f"hook: {name} is {file}")
    torch = found["torch"]
    words = ", ".join(str(torch[name]) for name in ("state", "version", "path") if torch.get(name))
    yield (f"torch: {words}")
    if "allocator" in torch:
        yield (f"libvmm.torch: {torch['allocator']}")
    if "class" in torch:
        yield (f"class for PyTorch's allocator: {torch['class']}")
    if "compiler" in torch:
        yield (f"compiler for the PyTorch allocator: {torch['compiler']}")
    yield (
        "packages: "
        + ", ".join(
            f"{name} {'installed' if there else 'not installed'}"
            for name, there in found["packages"].items()
        )
    )
    for name, value in found["settings"].items():
        yield (f"setting: {name}={value}")
    for each in found["wrong"]:
        yield (f"wrong: {each}")
    for each in found["conflicts"]:
        yield (f"conflict: {each}")
    yield (f"checked: {', '.join(found['checked'])}")
    yield (f"not checked: {', '.join(found['not_checked']) or 'no other variable of CUDA is set'}")
    yield (f"{len(found['wrong'])} wrong settings, {len(found['conflicts'])} conflicts")


def main(arguments: list[str]) -> tuple[str, int]:
    """The text of the report, and the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m libvmm doctor",
        description="The state of a process, and obstacles to vmm.",
        add_help=False,
        epilog="exit code: 1 with a wrong setting or a conflict",
    )
    parser.add_argument("-h", "--help", action="store_true", help="this text")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--tree", type=int, metavar="PID", help="what VMM=1 serves in a process and those below it"
    )
    options = parser.parse_args(arguments)
    if options.tree is not None:
        return tree(options.tree, options.json)
    if options.help:  # argparse writes it to stdout itself, and fails where that takes nothing
        return parser.format_help().rstrip(), 0
    found = report()
    text = json.dumps(found, indent=2) if options.json else _plain(_lines(found))
    return text, 1 if found["wrong"] or found["conflicts"] else 0
