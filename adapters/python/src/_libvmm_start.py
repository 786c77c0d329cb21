# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""VMM=1 at the start of an interpreter: a finder that calls libvmm._auto around the import of the
libraries that it serves.

libvmm.pth (libvmm.start from Python 3.15 on) calls go(), and PyTorch calls torch_imported() by its
entry point torch.backends. Both do nothing where VMM is unset, and raise nothing. The package is
loaded from the folder of this file, and from no other entry of sys.path."""

from __future__ import annotations

import os
import sys
from _thread import get_ident

FOLDER = os.path.dirname(os.path.abspath(__file__))
#: Inherited by the processes that this one starts: their lines have been printed.
REPORTED = "_LIBVMM_REPORTED"
#: Modules after whose first execution an adapter is installed.
MODULES = frozenset(("cupy", "numba.cuda.cudadrv.driver", "rmm", "torch", "warp"))


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


def _auto() -> object:
    """libvmm._auto. Raises what its import raises."""
    if "libvmm" not in sys.modules:
        _check_folders()
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec

        spec = PathFinder.find_spec("libvmm", [FOLDER])
        if spec is None or spec.loader is None:
            raise ImportError(f"there is no package libvmm in {FOLDER}")
        module = sys.modules["libvmm"] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop("libvmm", None)
            raise
    from libvmm import _auto

    return _auto


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
        _auto().serve(name, sys.modules[name])  # type: ignore[attr-defined]
    except Exception as trouble:  # the program's import goes on
        report(name, str(trouble))


class Finder:
    """Leaves each module to the other finders, and has _serve() called when its loader has executed
    it."""

    def __init__(self) -> None:
        self._searched: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        search = name, get_ident()
        if name not in MODULES or search in self._searched:
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


def torch_imported() -> None:
    """Of the entry point torch.backends: the end of `import torch`."""
    if _is_wanted():
        _serve("torch")
