# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""What `python -m libvmm doctor` reports of VMM_OWNER and VMM_TENANT (docs/market.md)."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
from collections.abc import Iterator

from . import _programs


def folder(environment: dict[str, str]) -> str:
    """The folder of the owners' sockets; "" without a market."""
    owner = environment.get("VMM_OWNER", "off")
    if owner != "auto":
        return owner if owner.startswith("/") else ""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return f"{runtime}/vmm-market"
    return f"/tmp/vmm-market-{os.geteuid()}"


def _why_not_private(path: str) -> str:
    try:
        found = os.lstat(path)
    except OSError as trouble:
        return trouble.strerror or str(trouble)
    if not stat.S_ISDIR(found.st_mode):
        return f"it is {'a symbolic link' if stat.S_ISLNK(found.st_mode) else 'not a folder'}"
    if found.st_uid != os.geteuid():
        return f"it is of user {found.st_uid}, and this is user {os.geteuid()}"
    mode = stat.S_IMODE(found.st_mode)
    return "" if mode == 0o700 else f"it has mode {mode:04o}, and must have 0700"


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


def _run(program: str, *words: str) -> str:
    """The program's output, or its error, in one line."""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return str(trouble)
    return "; ".join((done.stdout or done.stderr).strip().splitlines())


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
        said = _run(program, "ctl", "list", place, device) if program else "vmm-owner is not found"
        yield f"owner of {device}, {version}: {said}"
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
    is_program = program and os.path.isfile(program) and os.access(program, os.X_OK)
    if environment.get("VMM_OWNER") == "auto" and not is_program:
        found.append(f"VMM_OWNER=auto: {program or 'vmm-owner'} is not a program: none can start")
    return found
