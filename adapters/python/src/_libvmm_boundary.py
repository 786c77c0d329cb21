# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""VMM=1 at the driver boundary: puts the preload library before the CUDA driver without LD_PRELOAD.

The loader finds a library that is loaded already by its soname, the first one loaded first. So
load() opens an empty library with the soname libcuda.so.1, which needs the preload library and then
the driver that the loader would find. A later dlopen("libcuda.so.1"), also of a statically linked
runtime, finds the empty library; its names are the preload library's, else the driver's. A tenant
of an owner has one before NVML, too.

The empty library is made in memory for each process, and maps no code: nothing is read from a
cache, and a folder without execute permission does not matter.

It calls the loader by _ctypes alone. An import of ctypes here would end the wait of other threads
for that module, and they could load the driver before the boundary is there; a Structure of
_ctypes makes one from Python 3.14 on. Nothing below imports after the module itself: its caller
holds a lock (_libvmm_start.put_boundary)."""

from __future__ import annotations

import _ctypes
import fcntl
import mmap
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SONAME = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
_PAGE_MAX = 0x10000
_MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_RTLD_DI_SERINFO, _RTLD_DI_SERINFOSIZE = 4, 5
_F_ADD_SEALS, _F_SEAL_SHRINK = 1033, 2
COUNTS = "libvmm-counts-1"  # with the number of its layout


class StandsBack(Exception):
    """The driver keeps its calls; the text has the reason."""


class NoDriver(StandsBack):
    """This machine has no CUDA driver."""


# ---- the loader ---------------------------------------------------------------------------------


class _Int(_ctypes._SimpleCData):
    _type_ = "i"


class _Text(_ctypes._SimpleCData):
    _type_ = "z"


class _Byte(_ctypes._SimpleCData):
    _type_ = "c"


class _Pointer(_ctypes._SimpleCData):
    _type_ = "P"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int


class Library:
    """A library that the loader has opened; None: the process and what it has globally. As
    ctypes.CDLL it is never closed by itself."""

    def __init__(self, name: str | None, mode: int = 0) -> None:
        self.handle = _ctypes.dlopen(name, mode | os.RTLD_NOW)

    def has(self, name: str) -> bool:
        try:
            return _ctypes.dlsym(self.handle, name) != 0
        except OSError:
            return False

    def function(self, name: str) -> Callable[..., int]:
        """A function that returns an int. A Python int is passed as an int of C."""
        return _Function(_ctypes.dlsym(self.handle, name))


# ---- the empty library --------------------------------------------------------------------------


def empty_library(soname: str, needed: list[str]) -> bytes:
    """An ELF file without code and names, which needs others in this order."""
    names, offsets = b"\0", []
    for each in (*needed, soname):
        offsets.append(len(names))
        names += os.fsencode(each) + b"\0"
    symbols = 64 + 3 * 56  # behind the header and the program headers
    hashes = symbols + 24
    dynamic = hashes + 16
    tags = [(1, each) for each in offsets[:-1]] + [(14, offsets[-1])]  # DT_NEEDED, DT_SONAME
    strings = dynamic + 16 * (len(tags) + 6)
    # DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL
    tags += [(4, hashes), (5, strings), (6, symbols), (10, len(names)), (11, 24), (0, 0)]
    size = strings + len(names)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    machine = _MACHINES[os.uname().machine]
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    segments = (
        (1, 6, 0, size, _PAGE_MAX),  # PT_LOAD, readable and writable
        (2, 6, dynamic, 16 * len(tags), 8),  # PT_DYNAMIC
        (0x6474E551, 6, 0, 0, 16),  # PT_GNU_STACK: not executable
    )
    for kind, rights, at, length, align in segments:
        head += struct.pack("<IIQQQQQQ", kind, rights, at, at, at, length, length, align)
    table = b"".join(struct.pack("<QQ", *each) for each in tags)
    return head + bytes(24) + struct.pack("<IIII", 1, 1, 0, 0) + table + names


# ---- the driver ---------------------------------------------------------------------------------


def _searched_folders() -> tuple[list[str], list[str]]:
    """Where the loader looks before its cache, for a library without a path of its own (the
    program's DT_RPATH, LD_LIBRARY_PATH as it was at the start), and behind it."""

    info, folder = struct.Struct("@LI0P"), struct.Struct("@PI0P")  # size and count; name and flags
    libc = Library("libc.so.6")
    dlinfo, handle = libc.function("dlinfo"), _Pointer(libc.handle)
    room = (_Byte * info.size)()
    if dlinfo(handle, _RTLD_DI_SERINFOSIZE, room) != 0:
        raise StandsBack("the loader does not show its folders")
    size, count = info.unpack_from(room)
    room = (_Byte * size)()
    info.pack_into(room, 0, size, count)
    if dlinfo(handle, _RTLD_DI_SERINFO, room) != 0:
        raise StandsBack("the loader does not show its folders")
    names = [_Text.from_buffer(room, info.size + i * folder.size).value for i in range(count)]
    found = [os.fsdecode(each) for each in names]
    # The system's own stand at the end, each once.
    last = len(found)
    while last and _is_default(found[last - 1]) and found[last - 1] not in found[last:]:
        last -= 1
    return found[:last], found[last:]


def _is_default(folder: str) -> bool:
    library = folder.removeprefix("/usr").removeprefix("/lib")
    is_multiarch = library.count("/") == 1 and library.endswith("-linux-gnu")
    return library != folder and (library in ("", "64") or is_multiarch)


def _cached(name: str, cache: str = _CACHE) -> Iterator[str]:
    """The paths of a library in the loader's cache, in its order."""
    try:
        with open(cache, "rb") as file:
            content = file.read()
    except OSError:
        return
    base = content.find(_CACHE_MAGIC)  # behind the entries of an older format
    wanted = name.encode() + b"\0"
    if base < 0 or wanted not in content:
        return
    (count,) = struct.unpack_from("<I", content, base + 20)
    entries = memoryview(content)[base + 48 : base + 48 + 24 * count]
    for _, key, value, _, capabilities in struct.iter_unpack("<iIIIQ", entries):
        if capabilities == 0 and content.startswith(wanted, base + key):
            end = content.index(b"\0", base + value)
            yield os.fsdecode(content[base + value : end])


def _is_for_this_machine(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # waits for no named pipe
    except OSError:
        return False
    try:
        head = os.read(file, 20) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    except OSError:
        return False
    finally:
        os.close(file)
    return (
        len(head) == 20
        and head[:6] == b"\x7fELF\x02\x01"
        and head[18] == _MACHINES[os.uname().machine]
    )


def find(name: str = SONAME) -> str:
    """The file that the loader opens for this name; "" if there is none."""
    before, behind = _searched_folders()
    for path in (
        *(os.path.join(folder, name) for folder in before),
        *_cached(name),
        *(os.path.join(folder, name) for folder in behind),
    ):
        if _is_for_this_machine(path):
            return path
    return ""


def _check(path: str) -> None:
    if not path:
        raise NoDriver(f"the loader finds no {SONAME}")
    if not os.path.isabs(path):
        raise StandsBack(f"LD_LIBRARY_PATH names the current folder, which has a {SONAME}")
    if "/stubs/" in path:
        raise StandsBack(f"{path} is the toolkit's stub and not a driver")
    real = os.path.realpath(path)
    for each in (os.path.dirname(path), os.path.dirname(real), real):
        if os.stat(each).st_mode & 0o002:
            raise StandsBack(f"everybody can write to {each}")


# ---- loading ------------------------------------------------------------------------------------


def _mapped() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return file.read()


def _check_process() -> None:
    """Raises StandsBack if the driver's calls have an owner already."""
    for line in _mapped().splitlines():
        path = line.split(maxsplit=5)[-1]
        name = path.rpartition("/")[2]
        if name.startswith(("libcuda.so", "libvmm_preload", "libvgpu")):
            raise StandsBack(f"{path} was loaded before")
    process = Library(None)
    for name in ("cuGetProcAddress", "cuMemAlloc_v2"):
        if process.has(name):
            raise StandsBack(f"a preloaded library defines {name}")


def _open(name: str, needed: list[str]) -> Library:
    """Loads an empty library. Its descriptor stays open: its path is the loader's name for it."""
    file = os.memfd_create(f"vmm-{name}", os.MFD_CLOEXEC)
    try:
        os.write(file, empty_library(name, needed))
        # Spelled as by no other: the loader would take a later library of that path for this one.
        # A debugger opens it by this name, and its own descriptors are others.
        return Library(f"/proc/{os.getpid()}/./fd/{file}")
    except BaseException:
        os.close(file)
        raise


def _ask_loaded(name: str, question: Callable[[Library], bool]) -> bool:
    found = Library(name, os.RTLD_NOLOAD)
    try:
        return question(found)
    finally:
        _ctypes.dlclose(found.handle)


def show_counts(library: Library) -> None:
    """Has the preload library count in an open file without a name, which `doctor --tree` reads. A
    forked child has its own."""
    file = os.memfd_create(COUNTS, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(file, mmap.PAGESIZE)
    fcntl.fcntl(file, _F_ADD_SEALS, _F_SEAL_SHRINK)  # a shorter file would end the process
    page = mmap.mmap(file, mmap.PAGESIZE)
    struct.pack_into("<Q", page, 0, os.getpid())  # a child has its parent's file open, too
    at = _ctypes.addressof(_Byte.from_buffer(page, 64))
    _ctypes.Py_INCREF(page)  # the driver is called, and counted, after the interpreter has ended
    library.function("vmm_preload_serve")(_Pointer(at))


def _show_in_child(library: Library) -> None:
    try:
        show_counts(library)
    except OSError:
        return  # it counts in its parent's


def _put_before(driver: str, preload: str) -> None:
    door = _open(SONAME, [preload, driver])
    try:
        if _ask_loaded(SONAME, lambda found: found.handle != door.handle):
            raise StandsBack(f"{driver} was loaded by another thread")
        # In an older one a program would find the preload library's.
        if not _ask_loaded(driver, lambda found: found.has("cuGetProcAddress_v2")):
            raise StandsBack(f"{driver} is of a CUDA before 12")
        _open("libcuda.so", [SONAME])  # some look for it by this name first
        library = Library(preload)
        show_counts(library)
        os.register_at_fork(after_in_child=lambda: _show_in_child(library))
    except BaseException:
        _ctypes.dlclose(door.handle)  # the preload library stays, and serves nothing
        raise


def _put_before_nvml(preload: str) -> None:
    """NVML shows a tenant its share. One that is loaded already, or missing, stays as it is."""
    path = find(NVML)
    if not path.startswith("/") or "$" in path or "/libnvidia-ml.so" in _mapped():
        return
    try:
        _open(NVML, [preload, path])
        _open(NVML.removesuffix(".1"), [NVML])
    except OSError:
        return


def load(preload: str) -> str:
    """Puts the preload library before the driver. Returns the driver's path. Raises StandsBack."""
    try:
        if "CS_GNU_LIBC_VERSION" not in os.confstr_names or os.uname().machine not in _MACHINES:
            raise StandsBack("it needs the GNU C library on x86-64 or AArch64")
        driver = find()
        _check(driver)
        _check_process()
        if not os.path.exists(preload):
            raise StandsBack("this installation lacks the preload library")
        if "$" in preload + driver:  # the loader would replace what follows
            raise StandsBack(f"there is a '$' in {preload} or {driver}")
        _put_before(driver, preload)
        if os.environ.get("VMM_OWNER", "off") not in ("", "off"):
            _put_before_nvml(preload)
    except (OSError, AttributeError, ValueError, struct.error) as trouble:
        raise StandsBack(str(trouble)) from trouble
    return driver
