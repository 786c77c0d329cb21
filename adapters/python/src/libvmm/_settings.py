# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""vmm's environment variables, checked as the libraries check them (docs/options.md)."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

import _libvmm_start

import libvmm

# Read by pools and by managers, through the C library.
POOL = (
    "VMM_POOL_POLICY",
    "VMM_POOL_CAPTURE",
    "VMM_POOL_PAGE_SIZE",
    "VMM_POOL_PAGES",
    "VMM_VA_SIZE",
    "VMM_BUDGET",
    "VPMM_VA_SIZE",
    "VPMM_PAGE_SIZE",
    "VPMM_PAGES",
)
MANAGER = ("VMM_POLICY", "VMM_FRAG_RATIO", "VMM_CHUNK_SIZE")

# Read by the preload library, the CUDA driver, and for vmm-top: what each may be, and what they say
# of others.
CHOICES = {
    "VMM_MODE": (
        ("off", "monitor", "vmm", "cache"),
        "VMM_MODE takes one of off, monitor, vmm, cache",
    ),
    "VMM_REPORT_FORMAT": (("text", "json"), "VMM_REPORT_FORMAT takes one of text, json"),
    "VMM_REPORT_SIGNAL": (("usr1", "off"), "VMM_REPORT_SIGNAL takes one of usr1, off"),
    "VMM_IPC": (("share", "refuse", "plain"), "VMM_IPC takes one of share, refuse, plain"),
    "VMM_COPY": (("off", "alias", "move"), "VMM_COPY takes one of off, alias, move"),
    "VMM_FREE": (("later", "wait"), "VMM_FREE takes one of later, wait"),
    "VMM_CUDA_MEMORY": (("mapped", "plain"), "VMM_CUDA_MEMORY takes one of mapped, plain"),
    "VMM_TOP": (("0", "off", "1", "on"), "VMM_TOP is 0, off, 1 or on"),
    "VMM": (("0", "1"), "VMM takes 0 or 1"),
    "VMM_DISABLE": (("0", "1"), "VMM_DISABLE takes 0 or 1"),
}
SIZES = {
    "VMM_KEEP": "VMM_KEEP is a size: a number with a unit, such as 512MiB",
    "VMM_CACHE_LIMIT": "VMM_CACHE_LIMIT is a size: a number with a unit, such as 4GiB",
}
FILES = {
    "VMM_LOG": (("off", "stderr"), "VMM_LOG is off, stderr, or the path of a writable file"),
    "VMM_REPORT": (("off", "stderr"), "VMM_REPORT is off, stderr, or the path of a writable file"),
    "VMM_TRACE": ((), "VMM_TRACE is the path of a writable file"),
}
#: Libraries, each of a driver.
DRIVER_LIBRARIES = {"VMM_CUDA_LIBRARY": "cuda", "VMM_LEVEL_ZERO_LIBRARY": "level_zero"}
REMEMBER = "VMM_REMEMBER"
OTHERS = (
    "VMM_OWNER_PROGRAM",
    "VMM_BACKEND",
    "VMM_DRIVER_VERSION",
    "VMM_SCHEDULES",
    "VMM_FIRST_SCHEDULE",
    "VMM_PRELOAD_PROGRAMS",
    "VMM_PRELOAD_FIRST",
    "VMM_KILL_ROUNDS",
    "VMM_SHARE_KILL_ROUNDS",
    "VMM_GROWABLE_STEP",
    "VMM_POOL_ROUNDS",
    "VMM_PROVE_COUNT",
)
MARKET = ("VMM_OWNER", "VMM_TENANT")
KNOWN = {
    *MARKET,
    "VMM_EXCLUDE",
    *POOL,
    *MANAGER,
    *CHOICES,
    *SIZES,
    *FILES,
    *DRIVER_LIBRARIES,
    REMEMBER,
    *OTHERS,
}

_BAD_OPTION = 2


@contextlib.contextmanager
def _only(**settings: str) -> Iterator[None]:
    """The process's environment with exactly these VMM_ variables."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(("VMM_", "VPMM_"))}
    for name in ours:
        del os.environ[name]
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(ours)


def _ask(made: type[libvmm.Pool | libvmm.Manager], name: str, value: str) -> str:
    """The library's error for a variable that pools or managers read; "" if it is valid."""
    with _only(**{name: value}), libvmm.Driver("fake") as driver:
        try:
            made(driver, read_environment=True, report_live=False).close()
        except libvmm.Error as refused:
            if refused.status == _BAD_OPTION:
                return refused.advice
    return ""


def _ask_driver(name: str, **settings: str) -> str:
    with _only(**settings):
        try:
            libvmm.Driver(name).close()
        except libvmm.Error as refused:
            if refused.status == _BAD_OPTION:
                return refused.advice
    return ""


def _why_not_written(path: str, is_emptied: bool) -> str:
    """Why the libraries refuse to write to a file of this name; "" if they do not. A file that is
    overwritten must be this user's own, with no other name and no symbolic link to it."""
    path = path.replace("%p", str(os.getpid()))
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            return f"there is no folder {folder}"
        return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written to"
    except OSError as trouble:
        return trouble.strerror or str(trouble)
    is_link = stat.S_ISLNK(found.st_mode)
    if is_link and found.st_uid not in (0, os.geteuid()):
        return "it is a symbolic link of another user"
    if is_link and not os.path.exists(path):
        return "it is a symbolic link that leads nowhere"
    of = os.stat(path)
    if stat.S_ISDIR(of.st_mode):
        return "it is a folder"
    is_nameless = "pipe:[" in os.path.realpath(path)  # /dev/fd/N of a shell's >(...)
    if not (stat.S_ISREG(of.st_mode) or stat.S_ISCHR(of.st_mode) or is_nameless):
        return "it is a named pipe (FIFO), a socket or a block device"
    if is_emptied and stat.S_ISREG(of.st_mode):
        if is_link:
            return "a symbolic link leads to it"
        if of.st_uid != os.geteuid() or of.st_nlink > 1:
            return "another user owns it, or it has a second name"
    return "" if os.access(path, os.W_OK) else "it cannot be written to"


def _why_not_remembered(path: str) -> str:
    """Why pools read and write no peak in the folder; "" if they do."""
    if not path.startswith("/") or not path.strip("/"):
        return "name a folder by its whole path, such as /home/me/peaks"
    try:
        found = os.lstat(path.rstrip("/"))
    except FileNotFoundError:
        above = os.path.dirname(path.rstrip("/"))
        if not os.path.isdir(above):
            return f"there is no folder {above}"
        return "" if os.access(above, os.W_OK | os.X_OK) else f"{above} cannot be written to"
    except OSError as trouble:
        return trouble.strerror or str(trouble)
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link: name the folder itself"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return "it must be this user's, and others must not write there (mode 0755)"
    return ""


def _refused(said: str, value: str) -> str:
    """The end of the libraries' texts for refused values."""
    return f"{said}; not '{value[:60]}{'...' if len(value) > 60 else ''}'"


def excluded(value: str) -> set[str]:
    """The names in VMM_EXCLUDE."""
    return {each for each in re.split(r"[,\s]+", value) if each}


def _judge(name: str, value: str) -> str:
    if name in POOL:
        return _ask(libvmm.Pool, name, value)
    if name in MANAGER:
        return _ask(libvmm.Manager, name, value)
    if name in CHOICES:
        choices, said = CHOICES[name]
        return "" if value in choices else _refused(said, value)
    if name in SIZES:
        return _refused(SIZES[name], value) if _ask(libvmm.Pool, "VMM_BUDGET", value) else ""
    if name in DRIVER_LIBRARIES:
        return _ask_driver(DRIVER_LIBRARIES[name], **{name: value})
    if name == "VMM_BACKEND":
        return _ask_driver("", VMM_BACKEND=value)
    if name == "VMM_EXCLUDE":
        return _libvmm_start.why_off({"VMM_EXCLUDE": value})
    if name in MARKET:  # each word of VMM_TENANT, then all together
        parts = [*value.split(","), value] if name == "VMM_TENANT" else [value]
        wrong_parts = (_ask_driver("fake", **{name: each}) for each in parts)
        return "; ".join(dict.fromkeys(filter(None, wrong_parts)))
    if name in FILES:
        words, said = FILES[name]
        why = "" if value in words else _why_not_written(value, name == "VMM_TRACE")
        return f"{_refused(said, value)}: {why}" if why else ""
    if name == REMEMBER:
        why = _why_not_remembered(value)
        return f"{_refused('VMM_REMEMBER is a folder of this user', value)}: {why}" if why else ""
    if name in KNOWN:
        return ""
    import difflib

    nearest = difflib.get_close_matches(name, sorted(KNOWN), n=1, cutoff=0.0)
    return f"vmm has no variable {name}; the nearest is {nearest[0]}"


def wrong(environment: dict[str, str]) -> list[str]:
    """A line for each variable that the libraries refuse or lack. Empty ones count as unset."""
    found = []
    for name, value in sorted(environment.items()):
        if value and (name == "VMM" or name.startswith(("VMM_", "VPMM_"))):
            said = _judge(name, value)
            if said:
                found.append(said)
    return found
