# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the allocator against the PyTorch of this machine, once. Imports no torch."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile

from .. import _native
from ._headers import MINORS, unknown_functions

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "allocator.cpp")


class CannotBuild(Exception):
    """Compilation failed; the text has the missing part or the compiler's output."""


def find_compiler() -> list[str] | None:
    """The program and the arguments of CXX; if it is unset, the first C++ compiler of the path."""
    named = os.environ.get("CXX", "").split()
    for words in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        found = shutil.which(words[0])
        if found:
            return [found, *words[1:]]
    return None


def why_no_compiler() -> str:
    """The error for a missing compiler."""
    named = os.environ.get("CXX", "").strip()
    if named:
        return f"CXX={named} names no program: set CXX to a C++ compiler, or unset it"
    return "there is no C++ compiler: install g++, or set CXX to one"


def built_without_cuda(origin: str | None) -> bool:
    """Whether the PyTorch whose __init__.py lies there has no CUDA, without importing it."""
    return re.search(r"^cuda\b.*=\s*None\s*$", _version_file(origin), re.MULTILINE) is not None


def torch_version(origin: str | None) -> str:
    """The version of the PyTorch whose __init__.py lies there, without importing it."""
    found = re.search(r"__version__\s*=\s*'([^']*)'", _version_file(origin))
    return found.group(1) if found else ""


def _version_file(origin: str | None) -> str:
    path = os.path.join(os.path.dirname(origin or ""), "version.py")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def cuda_folders(torch_folder: str) -> list[str]:
    """Where cuda_runtime_api.h may lie: NVIDIA's wheels beside PyTorch, then the toolkit."""
    wheels = os.path.join(os.path.dirname(torch_folder), "nvidia")
    folders = [os.path.join(wheels, name, "include") for name in ("cu13", "cuda_runtime", "cu12")]
    folders += [
        os.path.join(os.environ[name], "include")
        for name in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(name)
    ]
    return [*folders, "/usr/local/cuda/include", "/usr/include"]


def find_cuda_headers(torch_folder: str) -> str | None:
    """The first of these folders that has cuda_runtime_api.h."""
    for folder in cuda_folders(torch_folder):
        if os.path.exists(os.path.join(folder, "cuda_runtime_api.h")):
            return folder
    return None


def find_crt(torch_folder: str, cuda: str) -> str | None:
    """A folder with crt/host_config.h, for CUDA headers without it: NVIDIA packages it apart. Of
    the toolkit, else our own, which has what a host compiler must read. None: it is there."""
    if os.path.exists(os.path.join(cuda, "crt", "host_config.h")):
        return None
    roots = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots.append(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))))
    roots += ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)]
    folders = [
        folder
        for root in roots
        if root
        for folder in (
            os.path.join(root, "include"),
            *glob.glob(os.path.join(root, "targets", "*", "include")),
        )
    ]
    wheels = os.path.dirname(torch_folder)
    folders += glob.glob(os.path.join(wheels, "nvidia", "*", "include"))
    folders.append(os.path.join(wheels, "triton", "backends", "nvidia", "include"))
    wanted = _major(cuda)
    for folder in folders:
        if os.path.exists(os.path.join(folder, "crt", "host_config.h")) and _major(folder) in (
            wanted,
            0,
        ):
            return folder
    return os.path.join(os.path.dirname(SOURCE), "host")


def _major(folder: str) -> int:
    """The major version of the CUDA headers in a folder; 0 if unknown."""
    try:
        with open(
            os.path.join(folder, "cuda_runtime_api.h"), encoding="utf-8", errors="replace"
        ) as file:
            found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", file.read())
    except OSError:
        return 0
    return int(found.group(1)) // 1000 if found else 0


def find_vmm_headers() -> str | None:
    """Of the wheel; of the source tree where the package is used from there; of the system."""
    package = _native.FOLDER
    for folder in (
        os.path.join(package, "include"),
        os.path.join(package, "..", "..", "..", "c", "include"),
        "/usr/include",
    ):
        if os.path.exists(os.path.join(folder, "vmm_allocator.h")):
            return os.path.normpath(folder)
    return None


def _owner_of(path: str) -> int:
    """Of the folder, or of the nearest one above it."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return os.stat(path).st_uid if path else 0


def cache_folder() -> str:
    """LIBVMM_CACHE, else libvmm in the user's cache folder. Raises CannotBuild."""
    named = os.environ.get("LIBVMM_CACHE")
    if named:
        return named
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if os.geteuid() == 0 and _owner_of(base) != 0:  # by `sudo -E`: root's folder stops the user
        base = "/root/.cache"
    if not os.path.isabs(base):  # a container's user without an entry and without HOME
        raise CannotBuild("this user has no home folder: set LIBVMM_CACHE to a folder of yours")
    return os.path.join(base, "libvmm")


def command(torch_folder: str, version: str, new_abi: bool) -> list[str]:
    """The compiler and its arguments, without the output. Raises CannotBuild."""
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or int(number[1]) != 2 or int(number[2]) < MINORS[0]:
        raise CannotBuild(f"PyTorch {version}: the allocator is for 2.{MINORS[0]} and later")
    unknown = unknown_functions(os.path.join(torch_folder, "include"), SOURCE)
    if unknown:
        raise CannotBuild(
            f"PyTorch {version} has functions that this version of libvmm does not "
            f"forward: {', '.join(unknown)}. A newer libvmm may"
        )
    compiler = find_compiler()
    cuda = find_cuda_headers(torch_folder)
    vmm = find_vmm_headers()
    missing = [
        why
        for why, found in (
            (why_no_compiler(), compiler),
            (
                "no cuda_runtime_api.h is in "
                + ", ".join(cuda_folders(torch_folder))
                + ": set CUDA_HOME to the CUDA toolkit",
                cuda,
            ),
            ("there is no vmm_allocator.h: install vmm's headers", vmm),
        )
        if not found
    ]
    if missing:
        raise CannotBuild("; ".join(missing))
    assert compiler and cuda and vmm
    crt = find_crt(torch_folder, cuda)
    library = _native.PATH if os.path.sep in _native.PATH else "-l:" + _native.PATH
    return [
        *compiler,
        "-std=c++20" if int(number[2]) >= 12 else "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        f"-DVMM_TORCH={number[1]}{int(number[2]):02}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(new_abi)}",
        "-I",
        vmm,
        "-isystem",
        os.path.join(torch_folder, "include"),
        "-isystem",
        cuda,
        *(["-idirafter", crt] if crt else []),
        SOURCE,
        "-L",
        os.path.join(torch_folder, "lib"),
        "-lc10",
        "-lc10_cuda",
        library,
    ]


def _may_be_changed(at: os.stat_result) -> str:
    """Why users other than this one and root can change a path; "" if they cannot."""
    if at.st_uid not in (0, os.geteuid()):
        return f"belongs to user {at.st_uid}"
    if stat.S_IMODE(at.st_mode) & 0o022:
        return f"can be written by others (mode {stat.S_IMODE(at.st_mode):o})"
    return ""


def _make_private(folder: str) -> None:
    """Makes the cache's folder. Raises CannotBuild if another user could change code in it."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        where = os.path.realpath(folder)
        why = _may_be_changed(os.stat(where))
        parent = os.path.dirname(where)
        while not why:  # a folder can be replaced where its parent lets everybody write
            mode = os.stat(parent).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                where, why = parent, "can be written by everybody"
            if parent == os.path.dirname(parent):
                break
            parent = os.path.dirname(parent)
    except OSError as trouble:
        raise CannotBuild(f"{trouble}; LIBVMM_CACHE names a folder to write to") from trouble
    if why:
        raise CannotBuild(
            f"no library is loaded from {folder}: {where} {why}. LIBVMM_CACHE names "
            "a folder of your own (chmod go-w)"
        )


def _is_own(path: str) -> bool:
    try:
        at = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(at.st_mode) and not _may_be_changed(at)


def build(torch_folder: str, version: str, new_abi: bool) -> str:
    """The path of the compiled allocator. An earlier result for the same PyTorch, source and
    compiler is reused if it and its folder belong to this user alone. Raises CannotBuild."""
    words = command(torch_folder, version, new_abi)
    what = hashlib.sha256()
    for source in (SOURCE, *sorted(glob.glob(os.path.join(os.path.dirname(SOURCE), "*.hpp")))):
        with open(source, "rb") as file:
            what.update(file.read())
    what.update("\0".join([version, *words]).encode())
    folder = cache_folder()
    target = os.path.join(folder, f"torch-{version}-{what.hexdigest()[:16]}.so")
    _make_private(folder)
    if _is_own(target):
        return target
    try:
        descriptor, made = tempfile.mkstemp(suffix=".so", dir=folder)
    except OSError as trouble:
        raise CannotBuild(f"{trouble}; LIBVMM_CACHE names a folder to write to") from trouble
    os.close(descriptor)
    done = subprocess.run([*words, "-o", made], capture_output=True, text=True)
    if done.returncode != 0:
        os.remove(made)
        raise CannotBuild(f"{words[0]} failed for PyTorch {version}:\n{done.stderr[-4000:]}")
    os.chmod(made, 0o700)
    os.replace(made, target)  # another process may have been faster: the files are the same
    return target
