# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""VMM=1 at the start of an interpreter: a finder that calls libvmm._auto around the import of the
libraries that it serves, and puts the driver boundary in before the first native code.

libvmm.pth (libvmm.start from Python 3.15 on) calls go(), and PyTorch calls torch_imported() by its
entry point torch.backends. Both do nothing where VMM is unset, and raise nothing. Modules are
loaded from the folder of this file, and from no other entry of sys.path."""

from __future__ import annotations

import os
import sys
from _frozen_importlib import module_from_spec  # what importlib.util has, without its imports
from _frozen_importlib_external import ExtensionFileLoader, PathFinder
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
#: Inherited by the processes that this one starts: their lines have been printed.
REPORTED = "_LIBVMM_REPORTED"
#: Libraries, by the module after whose first execution their adapter is installed.
LIBRARIES = {
    "cupy": "cupy",
    "numba.cuda.cudadrv.driver": "numba",
    "rmm": "rmm",
    "torch": "torch",
    "warp": "warp",
}
BOUNDARY = "driver"  # the name of the driver boundary in VMM_EXCLUDE and in the state


def _is_wanted() -> bool:
    disable = os.environ.get("VMM_DISABLE", "")
    if os.environ.get("VMM", "0") in ("", "0") or disable == "1":
        return False
    if os.geteuid() != os.getuid() or os.getegid() != os.getgid():
        return False
    if disable not in ("", "0"):
        report("any library", f"VMM_DISABLE takes 0 or 1; not {disable!r}, which counts as 1")
        return False
    return True


def _check_folders() -> None:
    """Raises ImportError for a folder with code of the package that everybody can write to."""
    package = os.path.join(FOLDER, "libvmm")
    for part in ("", "torch", "lib", os.path.join("lib", "torch")):
        folder = os.path.join(package, part).rstrip(os.path.sep)
        if os.path.isdir(folder) and os.stat(folder).st_mode & 0o002:
            raise ImportError(f"everybody can write to {folder}")


def _own(name: str) -> Any:
    """A module of this folder. Raises what its import raises."""
    if name not in sys.modules:
        _check_folders()
        spec = PathFinder.find_spec(name, [FOLDER])
        if spec is None or spec.loader is None:
            raise ImportError(f"there is no {name} in {FOLDER}")
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    return sys.modules[name]


# ---- the state ----------------------------------------------------------------------------------


#: By library: how it is served, or why not.
served: dict[str, str] = {}
_state, _process = (-1, (0, 0)), 0


def mark_of(file: int) -> tuple[int, int]:
    """Which file an open one is: a program that closes all descriptors gives its number away."""
    try:
        found = os.fstat(file)
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def note(library: str, text: str) -> None:
    """Adds to the state, an open file without a name, which `doctor --tree` reads."""
    global _state, _process
    served[library] = text
    is_open = mark_of(_state[0]) == _state[1]
    if _process != os.getpid() or not is_open:
        try:
            made = os.memfd_create("libvmm-state", os.MFD_CLOEXEC)
        except (AttributeError, OSError):
            return
        if is_open:
            os.close(_state[0])  # the parent's, whose content stays
        _state, _process = (made, mark_of(made)), os.getpid()
    lines = "".join(f"{name}: {how}\n" for name, how in sorted(served.items()) if how)
    content = f"{_process}\n{lines}".encode(errors="replace")
    os.pwrite(_state[0], content, 0)
    os.ftruncate(_state[0], len(content))


def report(library: str, reason: str) -> None:
    """Writes a line to stderr, once for a tree of processes: for a library, or for all of them.
    Where stderr is closed, full, or the program's own and raises, there is none, and the program's
    exit code stays its own."""
    before = os.environ.get(REPORTED, "").split(",")
    if library in before:
        return
    os.environ[REPORTED] = ",".join([*filter(None, before), library])
    line = f"libvmm: VMM=1 does not serve {library}: {reason}\n"
    try:
        if sys.stderr is not None and sys.stderr is sys.__stderr__:
            os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))
        elif sys.stderr is not None:
            sys.stderr.write(line)
    except Exception:
        return


def _serve(name: str) -> None:
    try:
        _own("libvmm")
        from libvmm import _auto

        _auto.serve(name, sys.modules[name])
    except Exception as trouble:  # the program's import goes on
        report(name, str(trouble))


# ---- the driver boundary ------------------------------------------------------------------------

_Loader: Any = ExtensionFileLoader
_create_module = _Loader.create_module


def _create_module_behind(self: Any, spec: Any) -> Any:
    """create_module(), before the first module of native code that is not Python's own."""
    if f"{os.sep}lib-dynload{os.sep}" not in str(spec.origin):
        put_boundary()
    return _create_module(self, spec)


def put_boundary() -> None:
    """Puts the preload library before the CUDA driver, once in a process and its forks."""
    if BOUNDARY in served:
        return
    served[BOUNDARY] = ""
    _Loader.create_module = _create_module
    excluded = os.environ.get("VMM_EXCLUDE", "").replace(",", " ").split()
    is_wrong = not {BOUNDARY, *LIBRARIES.values()}.issuperset(excluded)
    if is_wrong or os.environ.get("VMM_MODE") or os.environ["VMM"] != "1":
        return  # the adapters have the reason
    try:
        with open("/proc/self/maps", "rb") as maps:
            if b"/memfd:vmm-libcuda" in maps.read():
                return  # of another interpreter of this process
        if BOUNDARY in excluded:
            note(BOUNDARY, "its own memory: VMM_EXCLUDE names it")
            return
        preload = os.path.join(FOLDER, "libvmm", "lib", "libvmm_preload.so")
        path = _own("_libvmm_boundary").load(preload)
        note(BOUNDARY, f"the preload library before {path}")
    except Exception as trouble:
        note(BOUNDARY, f"its own memory: {trouble}")
        if type(trouble).__name__ != "NoDriver":
            report("libraries without an adapter", str(trouble))


class Finder:
    """Leaves each module to the other finders, and has _serve() called when its loader has executed
    it."""

    def __init__(self) -> None:
        self._searched: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name == "ctypes":
            put_boundary()
        search = name, get_ident()
        if name not in LIBRARIES or search in self._searched:
            return None
        self._searched.add(search)  # a finder may search by importlib.util.find_spec()
        try:
            for each in sys.meta_path:
                own = isinstance(each, Finder)
                find = None if own else getattr(each, "find_spec", None)
                spec = None if find is None else find(name, path, target)
                if spec is not None:
                    _follow(name, spec.loader)
                    return spec
            return None
        finally:
            self._searched.discard(search)


def _follow(name: str, loader: object) -> None:
    """Replaces exec_module of this one loader until it has run."""
    execute = getattr(loader, "exec_module", None)
    if execute is None or "exec_module" in getattr(loader, "__dict__", {"exec_module": 0}):
        return  # a namespace, an older kind of loader, or one that is followed already

    def exec_module(module: object) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        if getattr(module, "__name__", name) == name:  # an archive has one loader for its modules
            _serve(name)

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def go() -> None:
    """Installs the finder, once."""
    if _is_wanted() and not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
        _Loader.create_module = _create_module_behind
        if "ctypes" in sys.modules:
            put_boundary()


def torch_imported() -> None:
    """Of the entry point torch.backends: the end of `import torch`."""
    if _is_wanted():
        _serve("torch")
