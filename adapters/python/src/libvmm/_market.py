# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What `python -m libvmm doctor` reports of VMM_OWNER and VMM_TENANT (docs/market.md)."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator

from . import _native, _programs

ON = ("1", "on")  # of VMM_TOP


def folder(environment: dict[str, str]) -> str:
    """The folder of the owners' sockets; "" without a market."""
    owner = environment.get("VMM_OWNER", "off")
    if owner != "auto":
        return owner if owner.startswith("/") else ""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and not _why_not_runtime(runtime):
        return f"{runtime}/vmm-market"
    return f"/tmp/vmm-market-{os.geteuid()}"


def _why_not_runtime(path: str) -> str:
    """Why vmm's folders are not in this XDG_RUNTIME_DIR: top_folders() in modules/observe."""
    if not path.startswith("/"):
        return "is a relative path"
    try:
        owner = os.stat(path).st_uid
    except OSError as trouble:
        return f"cannot be used ({trouble.strerror})"
    return "" if owner == os.geteuid() else f"is of user {owner}, and this is user {os.geteuid()}"


def _why_not_private(path: str) -> str:
    try:
        found = os.lstat(path)
    except OSError as trouble:
        return trouble.strerror or str(trouble)
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a folder"
        return f"it is {kind}: name a folder"
    if found.st_uid != os.geteuid():
        users = f"of user {found.st_uid}, and this is user {os.geteuid()}"
        return f"it is {users}: name another folder"
    mode = stat.S_IMODE(found.st_mode)
    why = f"it has mode {mode:04o}, and must have 0700: name a folder in it, which is made"
    return "" if mode == 0o700 else why


def _devices(place: str) -> list[str]:
    """Those of which an owner's socket is there."""
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return []
    return [each[6:] for each in names if each.startswith("owner-") and "." not in each]


def _version_at(path: str) -> str:
    """The version of the owner whose metrics are there. It waits for no request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        try:
            client.connect(path)
            text = b"".join(iter(lambda: client.recv(65536), b"")).decode(errors="replace")
        except OSError:
            return "of an unknown version"
    found = re.search(r'vmm_market_owner_info{version="([^"]*)"}', text)
    return found[1] if found else "of an unknown version"


_HANGING: set[str] = set()


def _run(program: str, *words: str, between: str = "; ") -> str:
    """The lines of the program's output, or of its error. One that hangs is not run again."""
    program = shutil.which(program) or program
    try:
        if program not in _HANGING:
            done = subprocess.run([program, *words], capture_output=True, text=True, timeout=5)
    except OSError as trouble:
        return str(trouble)
    except subprocess.TimeoutExpired:
        _HANGING.add(program)
    if program in _HANGING:
        return "no output in 5 s"
    return between.join((done.stdout or done.stderr).strip().splitlines())


def _why_no_tenant(program: str, place: str, device: str, share: str) -> str:
    """Why the owner, as `vmm-owner ctl list` reports it, takes no tenant, and what to do."""
    path = f"{place}/owner-{device}"
    said = _run(program, "ctl", "list", place, device)
    if said.startswith("vmm-owner: "):
        return said.partition(": ")[2]
    there = re.search(r"device \S+: (\d+) MiB", said)
    wanted, found = re.search(r"guarantee=([^,]+)", share), ctypes.c_uint64()
    if there is None or wanted is None:
        return ""
    is_size = _native.LIBRARY.vmm_parse_bytes(os.fsencode(wanted[1]), found) == 0
    if not is_size or found.value <= int(there[1]) << 20:
        return ""
    return f"{path}: it has {there[1]} MiB, and VMM_TENANT wants {wanted[0]}: lower the guarantee"


def lines(environment: dict[str, str]) -> Iterator[str]:
    """The folder, the program, the share, and the owners that listen. Starts none."""
    place = folder(environment)
    if not place:
        return
    yield f"folder {place}: {_why_not_private(place) or 'private'}"
    program = environment.get("VMM_OWNER_PROGRAM") or _programs.find_program("owner")
    if environment["VMM_OWNER"] == "auto":
        found = _run(program, "--version") if program else "not found: install vmm-tools"
        yield f"program {program or 'vmm-owner'}: {found}"
    yield f"share: {environment.get('VMM_TENANT') or 'no guarantee, no limit'}"
    devices = _devices(place)
    for device in devices:
        version = _version_at(f"{place}/owner-{device}.metrics")
        said = "vmm-owner is not found"
        if program:
            said = _run(program, "ctl", "list", place, device, between="\n")
        yield from f"owner of {device}, {version}:\n{said}".splitlines()
    if not devices:
        starts = environment["VMM_OWNER"] == "auto"
        yield "owner: none listens" + ("; the first tenant starts one" if starts else "")


def conflicts(environment: dict[str, str]) -> list[str]:
    """Settings of the market that have no effect, or keep a tenant out."""
    found = []
    if environment.get("VMM_TENANT") and environment.get("VMM_OWNER", "") in ("", "off"):
        found.append("VMM_TENANT has no effect without VMM_OWNER: set VMM_OWNER=auto")
    place = folder(environment)
    if place and os.path.lexists(place) and (why := _why_not_private(place)):
        found.append(f"VMM_OWNER: {place}: {why}")
    elif place and environment.get("VMM_OWNER") != "auto" and not _devices(place):
        found.append(f"VMM_OWNER: no owner listens in {place}: start it with vmm-owner serve")
    elif place and not os.path.lexists(place):
        above = os.path.dirname(place.rstrip("/"))
        if not os.access(above, os.W_OK | os.X_OK):
            found.append(f"VMM_OWNER: {place} cannot be made: {above} is missing or read-only")
    program = environment.get("VMM_OWNER_PROGRAM") or _programs.find_program("owner")
    for device in [] if found else _devices(place):
        share = environment.get("VMM_TENANT", "")
        why = _why_no_tenant(program, place, device, share) if program else ""
        if why and not ("no owner" in why and environment["VMM_OWNER"] == "auto"):  # starts one
            found.append(f"VMM_OWNER: {why}")
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    uses_runtime = environment.get("VMM_OWNER") == "auto" or environment.get("VMM_TOP") in ON
    if runtime and uses_runtime and (why := _why_not_runtime(runtime)):
        found.append(
            f"XDG_RUNTIME_DIR='{runtime}' {why}: vmm's folders are in /tmp instead; set it to a "
            "folder of this user by its absolute path, or unset it"
        )
    return [*found, *_program_conflicts(environment)]


def _program_conflicts(environment: dict[str, str]) -> Iterator[str]:
    named, is_auto = environment.get("VMM_OWNER_PROGRAM"), environment.get("VMM_OWNER") == "auto"
    if named and not is_auto:
        yield (
            f"VMM_OWNER_PROGRAM={named} has no effect without VMM_OWNER=auto: set that, or unset it"
        )
    elsewhere = "set it to the path of vmm-owner, or unset it"
    if not named and is_auto and _programs.find_program("owner") is None:
        yield (
            "VMM_OWNER=auto: vmm-owner is not found: install vmm-tools, or set VMM_OWNER_PROGRAM "
            "to its path"
        )
    elif named and (path := shutil.which(named)) is None:
        yield f"VMM_OWNER_PROGRAM={named} is not a program: {elsewhere}"
    elif named and not re.fullmatch(r"\S+ \d+\.\d+\.\d+", said := _run(str(path), "--version")):
        why = f"is not vmm-owner: its --version is '{said[:60]}'"
        yield f"VMM_OWNER_PROGRAM={named} {why}; {elsewhere}"
