# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""vmm's environment variables, checked as the libraries check them (docs/options.md)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator

import _libvmm_start

import libvmm

from . import _native

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
    "VMM_LOG",
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


def why_no_backend(environment: dict[str, str]) -> str:
    """Why the driver that a valid VMM_BACKEND names does not open; "" if it does."""
    names = [each for each in ("VMM_BACKEND", *DRIVER_LIBRARIES) if environment.get(each)]
    if "VMM_BACKEND" in names:
        with _only(**{each: environment[each] for each in names}):
            try:
                libvmm.Driver("").close()
            except libvmm.Error as refused:
                if refused.status != _BAD_OPTION:
                    return f"VMM_BACKEND={environment['VMM_BACKEND']}: {refused.advice}"
    return ""


#: By the system's code, as complain_of() in adapters/preload/settings.cpp.
_REASONS = {
    errno.EACCES: "permission denied",
    errno.EEXIST: "another user owns it, or it has a second name",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "it is a symbolic link to a file; name the file itself",
    errno.ENAMETOOLONG: "the path or a name in it is too long",
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ENXIO: "it is a named pipe (FIFO), a socket or a device without its other end: name a "
    "file, or a pipe by /dev/fd/N",
    errno.EROFS: "its file system is read-only",
}


def _open_output(path: str, is_emptied: bool) -> None:
    """Opens and closes the file as adapters/preload/output_file.h does. Raises OSError."""
    flags, is_link = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, False
    try:
        file = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as trouble:
        is_link = trouble.errno == errno.ELOOP
        if not is_link or os.lstat(path).st_uid not in (0, os.geteuid()):
            raise
        try:
            file = os.open(path, flags)
        except OSError as trouble:
            raise OSError(
                errno.ENXIO if trouble.errno == errno.ENXIO else errno.ELOOP, ""
            ) from None
    try:
        found = os.fstat(file)
        is_nameless = os.readlink(f"/proc/self/fd/{file}").startswith("pipe:[")
        is_file = stat.S_ISREG(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, "")
        if not (is_file or stat.S_ISCHR(found.st_mode) or is_nameless):
            raise OSError(errno.ENXIO, "")
        if is_emptied and is_file and is_link:
            raise OSError(errno.ELOOP, "")
        if is_emptied and is_file and (found.st_uid != os.geteuid() or found.st_nlink > 1):
            raise OSError(errno.EEXIST, "")
    finally:
        os.close(file)


@contextlib.contextmanager
def _unmade(path: str, remove: Callable[[str], None]) -> Iterator[None]:
    """Leaves no file at the path that was not there before."""
    is_new = not os.path.lexists(path)
    try:
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                remove(path)


def _why_not_written(path: str, is_emptied: bool) -> str:
    """Why the preload library refuses to write to a file of this name; "" if it does not."""
    path = path.replace("%p", str(os.getpid()))
    try:
        with _unmade(path, os.unlink):
            _open_output(path, is_emptied)
    except OSError as trouble:
        code = trouble.errno or 0
        return _REASONS.get(code, f"error {code} of the system")
    return ""


#: Reads the environment as a pool does, which opens the folder of VMM_REMEMBER.
_POOL = (
    "import sys; sys.path.insert(0, sys.argv[1]); import libvmm\n"
    "with libvmm.Driver('fake') as driver: "
    "libvmm.Pool(driver, read_environment=True, report_live=False).close()"
)


def _why_not_remembered(path: str) -> str:
    """The library's complaint of the folder; "" if peaks are remembered there. The library makes a
    folder that is missing: this one is removed again."""
    import subprocess

    kept = {name: value for name, value in os.environ.items() if not name.startswith("VMM")}
    with _unmade(path, os.rmdir):
        done = subprocess.run(
            [sys.executable, "-c", _POOL, os.path.dirname(_native.FOLDER)],
            env={**kept, "LIBVMM": _native.PATH, REMEMBER: path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    lines = (each.partition(f"vmm: {REMEMBER}: ") for each in done.stderr.splitlines())
    found = [said for _, _, said in lines if said.endswith("no peak is remembered")]
    return f"{REMEMBER}: {found[0]}" if found else ""


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
        is_size = _native.LIBRARY.vmm_parse_bytes(os.fsencode(value), ctypes.c_uint64()) == 0
        return "" if is_size else _refused(SIZES[name], value)
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
    if name == "VMM_LOG":
        with _unmade(value, os.unlink):
            return _ask_driver("fake", VMM_LOG=value)
    if name in FILES:
        words, said = FILES[name]
        why = "" if value in words else _why_not_written(value, name == "VMM_TRACE")
        return f"{_refused(said, value)}: {why}" if why else ""
    if name == REMEMBER:
        return _why_not_remembered(value)
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
