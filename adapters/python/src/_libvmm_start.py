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
from _thread import allocate_lock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
#: Inherited by the processes that this one starts: their lines have been printed.
REPORTED = "_LIBVMM_REPORTED"
#: Libraries, by the module after whose first execution their adapter is installed.
LIBRARIES = {
    "cupy": "cupy",
    "jax": "jax",
    "numba.cuda.cudadrv.driver": "numba",
    "rmm": "rmm",
    "torch": "torch",
    "warp": "warp",
}
BOUNDARY = "driver"  # the name of the driver boundary in VMM_EXCLUDE and in the state


JAX, JAX_GIVEN = "XLA_PYTHON_CLIENT_ALLOCATOR", "_LIBVMM_JAX"


def _is_wanted() -> bool:
    if os.environ.pop(JAX_GIVEN, None):  # what a parent gave to JAX holds for the parent alone
        os.environ.pop(JAX, None)
    value, disable = os.environ.get("VMM", ""), os.environ.get("VMM_DISABLE", "")
    if value in ("", "0") or disable == "1":
        return False
    if os.geteuid() != os.getuid() or os.getegid() != os.getgid():
        return False
    if disable not in ("", "0"):
        report("any library", f"VMM_DISABLE takes 0 or 1; not {disable!r}, which counts as 1")
        return False
    if value != "1":
        report("any library", f"VMM takes 0 or 1; not {value!r}")
    return value == "1"


def why_off(environment: Any = os.environ) -> str:
    """Why the variables let no library be served; "": they do."""
    known = sorted((*LIBRARIES.values(), BOUNDARY))
    for each in environment.get("VMM_EXCLUDE", "").replace(",", " ").split():
        if each not in known:
            shown = each[:60] + "..." * (len(each) > 60)
            return f"VMM_EXCLUDE takes a list of {', '.join(known)}; not '{shown}'"
    mode = environment.get("VMM_MODE")
    return f"VMM_MODE={mode} is set, which has precedence" if mode else ""


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
        module = module_from_spec(spec)
        if spec.submodule_search_locations is None:
            spec.loader.exec_module(module)
            return sys.modules.setdefault(name, module)  # for other threads once it is whole
        sys.modules[name] = module
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
    line = f"libvmm: VMM={os.environ.get('VMM')} does not serve {library}: {reason}\n"
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


_lock = allocate_lock()
_inside: set[int] = set()  # threads
_WAIT_SECONDS = 10


def _after_fork() -> None:
    global _lock
    _lock = allocate_lock()  # a thread that the child lacks may hold it
    _inside.clear()


os.register_at_fork(after_in_child=_after_fork)


def put_boundary() -> None:
    """Puts the preload library before the CUDA driver, once in a process and its forks. Other
    threads wait, since they could load the driver meanwhile."""
    me = get_ident()
    if BOUNDARY in served or me in _inside:
        return
    _inside.add(me)
    try:
        trouble = _put_once()
    finally:
        _inside.discard(me)
    if reason := why_off():
        report("any library", reason)
    elif trouble is not None and type(trouble).__name__ != "NoDriver":
        report("libraries without an adapter", str(trouble))


def _put_once() -> Exception | None:
    """Returns why the driver keeps its calls. The caller may hold locks of Python's imports, for
    which other threads wait with theirs: nothing is imported under the lock, and the wait for it
    has an end."""
    excluded = os.environ.get("VMM_EXCLUDE", "").replace(",", " ").split()
    is_off = why_off() != ""
    boundary, trouble = None, None
    try:
        boundary = None if is_off or BOUNDARY in excluded else _own("_libvmm_boundary")
    except Exception as why:
        trouble = why
    lock = _lock
    if not lock.acquire(True, _WAIT_SECONDS):
        return None
    try:
        if BOUNDARY in served:
            return None
        with open("/proc/self/maps", "rb") as maps:
            is_there = b"/memfd:vmm-libcuda" in maps.read()  # of another interpreter
        if is_there:  # whose ctypes may be the process's only one
            trouble = None
        if not is_there and boundary is not None:
            preload = os.path.join(FOLDER, "libvmm", "lib", "libvmm_preload.so")
            path = boundary.load(preload)
            note(BOUNDARY, f"the preload library before {path}")
        elif BOUNDARY in excluded and not (is_off or is_there):
            note(BOUNDARY, "its own memory: VMM_EXCLUDE names it")
        elif is_off and not is_there:
            note(BOUNDARY, f"its own memory: {why_off()}")
    except Exception as why:
        trouble = why
    finally:
        if trouble is not None:
            note(BOUNDARY, f"its own memory: {trouble}")
        served.setdefault(BOUNDARY, "")  # the adapters have the reason
        _Loader.create_module = _create_module
        lock.release()
    return trouble


class Finder:
    """Leaves each module to the other finders, and has its loader put the boundary in before it
    executes ctypes, and call _serve() behind a library. find_spec() itself imports nothing and
    waits for nothing: its caller holds the lock of all imports."""

    def __init__(self) -> None:
        self._searched: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        search = name, get_ident()
        is_first = name == "ctypes" and BOUNDARY not in served
        if not (is_first or name in LIBRARIES) or search in self._searched:
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
        if name == "ctypes":
            put_boundary()
        execute(module)
        is_it = getattr(module, "__name__", name) == name  # an archive has one loader for all
        if is_it and name in LIBRARIES:
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
