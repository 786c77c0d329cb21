# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: under VMM=1 the preload library stands before the driver that the loader finds, in trees of
libraries as containers have them, or leaves the process alone with a reason.
Method: programs call a stub of CUDA's driver through ctypes, as libraries without an adapter do.
Without VMM=1 they show the driver that the loader finds. Mounts need root and are made in
namespaces of their own. The library's own tests run at the boundary as well (tests/preload)."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import DRIVER, PRELOAD, SOURCE

sys.path.insert(0, SOURCE)
import _libvmm_boundary as boundary

pytestmark = pytest.mark.skipif(
    not os.path.exists(PRELOAD) or not os.path.exists(DRIVER),
    reason="LIBVMM_TEST_PRELOAD and LIBVMM_TEST_DRIVER name no libraries",
)
FOLDER = os.path.dirname(DRIVER)

TOOLS = r"""
import ctypes, os, sys
class Found(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("file", "base", "name", "address")]
def owner(library, name="cuMemAlloc_v2"):
    found, at = Found(), ctypes.cast(getattr(library, name), ctypes.c_void_p)
    ctypes.CDLL(None).dladdr(at, ctypes.byref(found))
    return found.file.decode()
def use(cuda):
    at, context = ctypes.c_uint64(), ctypes.c_void_p()
    codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
    codes += [cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(at), 5 << 20)]
    return [*codes, cuda.cuMemFree_v2(at)] == [0] * 5
def is_ours(cuda):
    return "libvmm_preload" in owner(cuda)
def mapped(name):
    with open("/proc/self/maps") as maps:
        return len({line.split(maxsplit=5)[-1] for line in maps if name in line})
cuda = ctypes.CDLL("libcuda.so.1")
"""
OURS = f"the preload library before {DRIVER}"
SHORT = TOOLS + "print(is_ours(cuda), use(cuda), owner(cuda, 'cuInit'))"


def reason(text):
    return f"libvmm: VMM=1 does not serve libraries without an adapter: {text}"


def test_every_name_of_the_driver_leads_to_the_boundary(run):
    """By its path, and in another namespace of the loader, the driver is plain."""
    code = TOOLS + (
        "dlmopen = ctypes.CDLL(None).dlmopen; dlmopen.restype = ctypes.c_void_p\n"
        "other = ctypes.CDLL('', handle=dlmopen(ctypes.c_long(-1), b'libcuda.so.1', 2))\n"
        "print([is_ours(each) for each in (cuda, ctypes.CDLL('libcuda.so'), other, "
        "ctypes.CDLL(sys.argv[1]))])\n"
        "print(use(cuda), mapped('libvmm_preload'), mapped('/libcuda.so'), flush=True)\n"
        "ctypes.CDLL('libvmm_preload.so').vmm_preload_report(1, 0)"
    )
    out, error = run("-c", code, DRIVER, LD_LIBRARY_PATH=FOLDER)
    ways, used, *report = out.splitlines()
    assert (ways, used, error) == ("[True, True, False, False]", "True 1 1", "")
    assert "mode vmm" in report[0] and any("served by the pool 1," in line for line in report)


@pytest.mark.parametrize(
    ("loaded", "owner"),
    [("libc.so.6", "/nowhere"), ("libc.so.6", "off"), ("libnvidia-ml.so.1", "/nowhere")],
)
def test_nvml_shows_a_tenant_its_share(run, loaded, owner):
    """Under both of its names; not where it was loaded before."""
    ours = (loaded, owner) == ("libc.so.6", "/nowhere")
    seen = [64, 0, 64, 0] if ours else [1024, 24, 600, 424]
    code = (
        f"import _ctypes; _ctypes.dlopen('{loaded}', 0)\n{TOOLS}"
        "for name in ('libnvidia-ml.so', 'libnvidia-ml.so.1'):\n"
        "    nvml, device = ctypes.CDLL(name), ctypes.c_void_p()\n"
        "    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))\n"
        "    memory = (ctypes.c_uint64 * 5)(0x02000028)  # a version, total, reserved, free, used\n"
        "    nvml.nvmlDeviceGetMemoryInfo_v2(device, memory)\n"
        "    print('libvmm_preload' in owner(nvml, 'nvmlDeviceGetMemoryInfo'), 'libnvidia-ml' in "
        "owner(nvml, 'nvmlInit_v2'), [each >> 20 for each in memory[1:]])"
    )
    tenant = {"VMM_OWNER": owner, "VMM_TENANT": "limit=64MiB"}
    out, error = run("-c", code, LD_LIBRARY_PATH=FOLDER, **tenant)
    assert (out.splitlines(), error) == ([f"{ours} True {seen}"] * 2, "")


def test_adapters_are_installed_where_the_program_has_the_driver_in_its_scope(run):
    code = "import ctypes; ctypes.CDLL('libcuda.so.1', ctypes.RTLD_GLOBAL); import rmm; "
    assert run("-c", code + "print(len(rmm.devices))", LD_LIBRARY_PATH=FOLDER) == ("2", "")


def test_a_named_pipe_is_no_driver_and_is_not_waited_for(run, tmp_path):
    """The first import of ctypes looks for the driver."""
    os.mkfifo(tmp_path / "libcuda.so.1")
    assert run("-c", "import ctypes; print('done')", LD_LIBRARY_PATH=str(tmp_path))[0] == "done"


# ---- the driver that the loader finds -----------------------------------------------------------


def versioned(folder, *links):
    """The driver under its version, and links to it."""
    folder.mkdir(parents=True)
    shutil.copy(DRIVER, folder / "libcuda.so.580.95.05")
    for each in links:
        os.symlink("libcuda.so.580.95.05", folder / each)
    return folder


def copies(folder, *names):
    folder.mkdir(parents=True)
    for each in names:
        shutil.copy(DRIVER, folder / each)
    return folder


#: Trees below a root: what is in the loader's cache, in its order, and what in LD_LIBRARY_PATH.
def tree(root, name):
    host = root / "usr/lib/x86_64-linux-gnu"
    plugin, wsl = root / "usr/local/nvidia/lib64", root / "usr/lib/wsl/lib"
    compat = root / "usr/local/cuda/compat"
    if name == "container toolkit":
        return [versioned(host, "libcuda.so.1", "libcuda.so")], []
    if name in ("device plugin", "without a cache"):
        return [], [versioned(plugin, "libcuda.so.1")]
    if name == "WSL":  # three files of one soname
        return [copies(wsl, "libcuda.so", "libcuda.so.1", "libcuda.so.1.1")], []
    if name == "WSL in a container":
        return [], [copies(wsl, "libcuda.so", "libcuda.so.1", "libcuda.so.1.1")]
    if name == "forward compatibility":
        return [versioned(host, "libcuda.so.1")], [copies(compat, "libcuda.so.1")]
    if name == "forward compatibility in the cache":
        return [copies(compat, "libcuda.so.1"), versioned(host, "libcuda.so.1")], []
    assert name == "of another machine"
    compat.mkdir(parents=True)
    image = boundary.empty_library("libcuda.so.1", [])
    (compat / "libcuda.so.1").write_bytes(image[:18] + b"\x08\0" + image[20:])
    return [], [compat, versioned(plugin, "libcuda.so.1")]


NAMES = (
    "container toolkit",
    "device plugin",
    "WSL",
    "WSL in a container",
    "forward compatibility",
    "forward compatibility in the cache",
    "of another machine",
    "without a cache",  # images without a shell have none
)


def can_mount():
    words = ["unshare", "-m", "mount", "--bind", "/tmp", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_mounts = pytest.mark.skipif(not can_mount(), reason="this user cannot mount")


@needs_mounts
@pytest.mark.parametrize("name", NAMES)
def test_the_driver_is_the_one_that_the_loader_finds(run, tmp_path, name):
    cached, named = tree(tmp_path / "root", name)
    configuration, cache = tmp_path / "ld.so.conf", tmp_path / "ld.so.cache"
    configuration.write_text("".join(f"{each}\n" for each in cached))
    made = ["ldconfig", "-X", "-f", configuration, "-C", cache]
    subprocess.run(made, check=True, env={"PATH": "/sbin:/usr/sbin"})
    if name == "without a cache":
        cache.write_bytes(b"")
    # Nothing is writable, the home is missing, and capabilities are dropped.
    setup = (
        f"mount --bind {cache} /etc/ld.so.cache; mount -o remount,ro,bind /; "
        'exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"'
    )
    where = {"LD_LIBRARY_PATH": ":".join(map(str, named)) or None, "HOME": "/nowhere"}
    inside = ["unshare", "-m", "sh", "-ec", setup, "sh"]
    plain = run("-c", SHORT, before=inside, VMM=None, **where)
    ours = run("-c", SHORT, before=inside, **where)
    path = plain[0].rpartition(" ")[2]
    assert path.startswith(str(tmp_path)) and plain == (f"False True {path}", "")
    assert ours == (f"True True {path}", "")


# Runs a program whose calls of memfd_create fail with EPERM, as under a filter of a container.
DENIED = r"""
import ctypes, os, struct, sys
number = {"x86_64": 319, "aarch64": 279}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in steps))
class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
found = Filter(len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
assert prctl(38, 1, None, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert prctl(22, 2, ctypes.addressof(found), 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_container_without_memory_files_leaves_the_driver_alone(run):
    inside = [sys.executable, "-c", DENIED]
    if subprocess.run([*inside, sys.executable, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip("filters of system calls are not for this process")
    out, error = run("-c", SHORT, before=inside, LD_LIBRARY_PATH=FOLDER)
    assert out == f"False True {DRIVER}" and error == reason("[Errno 1] Operation not permitted")


@needs_mounts
def test_a_container_without_proc_leaves_the_driver_alone(run):
    inside = ["unshare", "-m", "sh", "-ec", 'mount -t tmpfs none /proc; exec "$@"', "sh"]
    out, error = run("-c", SHORT, before=inside, LD_LIBRARY_PATH=FOLDER)
    assert out == f"False True {DRIVER}"
    assert error.startswith(reason("")) and "/proc/self/maps" in error and "\n" not in error


def test_paths_are_found_as_the_loader_finds_them():
    """Of the libraries in this machine's cache."""

    class Map(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("name", ctypes.c_char_p)]

    process, different = ctypes.CDLL(None), []
    process.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    for name in ("libc.so.6", "libm.so.6", "libz.so.1", "libstdc++.so.6", "libgcc_s.so.1"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        opened = ctypes.POINTER(Map)()
        assert process.dlinfo(library._handle, 2, ctypes.byref(opened)) == 0
        if not os.path.samefile(opened.contents.name, boundary.find(name) or "/"):
            different.append((name, opened.contents.name, boundary.find(name)))
    assert different == [] and boundary.find("libno_such_library.so.1") == ""


def test_an_update_of_the_driver_is_taken_by_the_next_process(run, tmp_path):
    for version in ("1", "2"):
        folder = tmp_path / version
        copies(folder, "libcuda.so.1")
        link = tmp_path / "libcuda.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(folder / "libcuda.so.1")
        code = SHORT + f"; print(mapped('{folder}/'))"
        out, error = run("-c", code, LD_LIBRARY_PATH=str(tmp_path))
        assert out == f"True True {link}\n1" and error == ""


# ---- reasons ------------------------------------------------------------------------------------


def test_a_driver_that_is_gone_is_a_reason(run):
    code = (
        "import _libvmm_start as start; start.served['driver'] = ''\n"
        "it = start._own('_libvmm_boundary'); it.find = lambda: '/nowhere/libcuda.so.1'\n"
        "start.served.clear(); start.put_boundary()\n"
    )
    out, error = run("-c", code + SHORT, LD_LIBRARY_PATH=FOLDER)
    assert out.startswith("False True ") and "No such file" in error
    assert error.startswith(reason("")) and error.count("\n") == 0


def linked(folder, path):
    """A path without a blank, which LD_PRELOAD cannot have."""
    (folder / "preloaded").mkdir()
    link = folder / "preloaded" / os.path.basename(path)
    link.symlink_to(path)
    return str(link)


@pytest.mark.parametrize(
    "why", ["stub", "current folder", "writable", "before", "old", "other", "library"]
)
def test_it_leaves_the_driver_alone_with_one_line(environment, run, tmp_path, why):
    variables, path = {"LD_LIBRARY_PATH": FOLDER}, DRIVER
    if why == "stub":
        path = f"{copies(tmp_path / 'lib/stubs', 'libcuda.so.1')}/libcuda.so.1"
        text = f"{path} is the toolkit's stub and not a driver"
    elif why == "current folder":
        shutil.copy(DRIVER, tmp_path)
        path = "./libcuda.so.1"
        text = "LD_LIBRARY_PATH names the current folder, which has a libcuda.so.1"
    elif why == "writable":
        folder = copies(tmp_path / "open", "libcuda.so.1")
        os.chmod(folder, 0o1777)
        (tmp_path / "libcuda.so.1").symlink_to(folder / "libcuda.so.1")
        path, text = f"{tmp_path}/libcuda.so.1", f"everybody can write to {folder}"
    elif why == "before":
        variables["LD_PRELOAD"] = linked(tmp_path, DRIVER)
        text = f"{os.path.realpath(DRIVER)} was loaded before"
    elif why == "old":
        path = f"{os.path.dirname(FOLDER)}/driver_old/libcuda.so.1"
        text = f"{path} is of a CUDA before 12"
    elif why == "other":
        (tmp_path / "lib").mkdir()
        other = tmp_path / "lib/libvgpu.so"
        other.write_bytes(boundary.empty_library("libvgpu.so", []))
        variables["LD_PRELOAD"], text = str(other), f"{other} was loaded before"
    else:
        other = environment[1] / "libvmm/lib/libvmm_preload.so"
        other.rename(tmp_path / "away")
        text = "this installation lacks the preload library"
    if path != DRIVER:
        variables["LD_LIBRARY_PATH"] = os.path.dirname(path)
    code = SHORT + "; import subprocess; subprocess.run([sys.executable, '-c', 'import ctypes'])"
    try:
        out, error = run("-c", code, **variables)
    finally:
        if why == "library":
            (tmp_path / "away").rename(other)
    assert out.startswith("False True ") and error == reason(text)


@pytest.mark.parametrize(
    ("variables", "owner"),
    [
        ({"VMM_EXCLUDE": "driver"}, "False"),
        ({"VMM_EXCLUDE": "cupy"}, "True"),
        ({"VMM_DISABLE": "1"}, "False"),
        ({"VMM": "0"}, "False"),
        ({"VMM_MODE": "monitor"}, "False"),
        ({"LD_PRELOAD": PRELOAD, "VMM_MODE": "vmm"}, "True"),
        ({"LD_PRELOAD": PRELOAD}, "False"),
    ],
)
def test_the_users_choice_has_precedence(run, tmp_path, variables, owner):
    if "LD_PRELOAD" in variables:
        variables = {**variables, "LD_PRELOAD": linked(tmp_path, variables["LD_PRELOAD"])}
    code = SHORT + "; print(mapped('libvmm_preload'), mapped('memfd:vmm-libcuda'))"
    out = run("-c", code, LD_LIBRARY_PATH=FOLDER, **variables)[0].splitlines()
    is_preloaded = "LD_PRELOAD" in variables
    is_served = owner == "True" and not is_preloaded
    assert out[0].startswith(f"{owner} True ")
    assert out[1] == f"{int(is_served or is_preloaded)} {2 * is_served}"


def test_set_uid_processes_and_machines_without_a_driver_are_left_alone(run):
    if os.geteuid() == 0:
        code = (
            "import os, sys, _libvmm_start as start; start.served.clear(); sys.meta_path.pop(0); "
            "os.setresuid(65534, 0, 0); start.go()\n"
        )
        assert run("-c", code + SHORT, LD_LIBRARY_PATH=FOLDER)[0].startswith("False ")
    if not boundary.find():
        code = "import ctypes, _libvmm_start; print(_libvmm_start.served['driver'])"
        assert run("-c", code) == ("its own memory: the loader finds no libcuda.so.1", "")


# ---- processes ----------------------------------------------------------------------------------


def test_a_process_without_native_code_loads_no_driver(run):
    code = (
        "import json, sys, _libvmm_start; print(_libvmm_start.served, 'ctypes' in sys.modules); "
        "maps = open('/proc/self/maps').read(); print('libcuda' in maps, 'preload' in maps)"
    )
    assert run("-c", code, LD_LIBRARY_PATH=FOLDER)[0] == "{} False\nFalse False"


def test_the_boundary_makes_no_structure(run):
    """A Structure imports ctypes from Python 3.14 on, and that import waits for the boundary."""
    code = "import _ctypes; _ctypes.Structure = _ctypes.Union = None\n"
    code += "import _libvmm_start as it; it.put_boundary(); print(it.served['driver'])"
    assert run("-c", code, LD_LIBRARY_PATH=FOLDER) == (OURS, "")


def native_module():
    """_lsprof's file, which other folders can have as well."""
    found = next(pathlib.Path(os.__file__).parent.glob("lib-dynload/_lsprof*.so"), None)
    return found or pytest.skip("this Python has no modules of native code of its own")


def test_the_first_module_of_native_code_is_behind_the_boundary(run, tmp_path):
    """One that is not Python's own; and the loader's class is as before."""
    shutil.copy(native_module(), tmp_path)
    code = (
        "import sys, _libvmm_start as it; sys.path.insert(0, sys.argv[1]); import _lsprof\n"
        "from importlib.machinery import ExtensionFileLoader as loader\n"
        "print(it.served['driver'][:19], loader.create_module is it._create_module)"
    )
    assert run("-c", code, str(tmp_path), LD_LIBRARY_PATH=FOLDER)[0] == "the preload library True"


NAMED = r"""
import subprocess
class Map(ctypes.Structure):
    _fields_ = [("base", ctypes.c_size_t), ("name", ctypes.c_char_p)]
at = ctypes.POINTER(Map)()
ctypes.CDLL(None).dlinfo(ctypes.c_void_p(cuda._handle), 2, ctypes.byref(at))
name = at.contents.name.decode()
print(is_ours(cuda), subprocess.run(["head", "-c4", name], capture_output=True).stdout)
"""


def test_a_debugger_finds_each_library_by_its_name(run):
    """In another process, whose descriptors may be pipes."""
    out, _ = run("-c", TOOLS + NAMED, LD_LIBRARY_PATH=FOLDER)
    assert out == r"True b'\x7fELF'"


FORKS = r"""
def child():
    number = os.fork()
    if number == 0:
        os._exit(0 if is_ours(cuda) and use(cuda) == (len(sys.argv) < 2) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
if len(sys.argv) > 1:
    use(cuda)
print([child() for _ in range(3)], use(cuda))
"""


@pytest.mark.parametrize("words", [(), ("used",)])
def test_forks(run, words):
    """Where the parent used CUDA, the driver refuses a child's calls, as without the boundary."""
    assert run("-c", TOOLS + FORKS, *words, LD_LIBRARY_PATH=FOLDER) == ("[0, 0, 0] True", "")


# Each thread imports something, and then loads the driver.
AT_ONCE = r"""
import faulthandler, sys, threading
faulthandler.dump_traceback_later(60, exit=True)
sys.setswitchinterval(1e-6)
modules = sys.argv[1:]
barrier = threading.Barrier(len(modules))
def work(name):
    barrier.wait()
    __import__(name)
    import ctypes
    ctypes.CDLL("libcuda.so.1")
threads = [threading.Thread(target=work, args=(name,)) for name in modules]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""
NATIVE = [f"own{number}._lsprof" for number in range(4)]
LEAVES = ["_ctypes", "fcntl", "mmap", "struct"]


@pytest.mark.parametrize(
    "modules",
    [["ctypes"] * 8, NATIVE, ["ctypes", *NATIVE, "ctypes"], [*LEAVES, "ctypes", *NATIVE, *LEAVES]],
)
def test_threads_that_import_at_once(environment, run, modules):
    """No thread loads the driver before the boundary is there, and none waits for ever."""
    for name in NATIVE:
        folder = environment[1] / name.partition(".")[0]
        folder.mkdir(exist_ok=True)
        shutil.copy(native_module(), folder)
    for _ in range(12):
        out, error = run("-c", AT_ONCE + SHORT, *modules, LD_LIBRARY_PATH=FOLDER)
        assert out.startswith("True True ") and error == ""


HELD = r"""
import _libvmm_start as start, os, threading
start._WAIT_SECONDS = 0.2
begun, ends = threading.Event(), threading.Event()
def hold():
    with start._lock:
        begun.set()
        ends.wait()
other = threading.Thread(target=hold)
other.start()
begun.wait(9)
if os.fork() == 0:
    start._WAIT_SECONDS = 1000
    import ctypes
    os._exit(len(start.served["driver"]) == 0)
import ctypes
print(os.wait()[1], "driver" in start.served)
ends.set()
other.join()
"""


def test_the_wait_for_another_thread_has_an_end(run):
    """And a forked child, which lacks that thread, does not wait."""
    ignored = ("-W", "ignore::DeprecationWarning")  # Python 3.12's, of a fork beside a thread
    assert run(*ignored, "-c", HELD, LD_LIBRARY_PATH=FOLDER) == ("0 False", "")


def test_it_is_loaded_once(environment, run, tmp_path):
    """Also where a second copy of the package is on the path, and in a second interpreter."""
    shutil.copytree(environment[1] / "libvmm", tmp_path / "two/libvmm", symlinks=True)
    for name in ("_libvmm_boundary.py", "_libvmm_start.py", "libvmm.pth"):
        shutil.copy(environment[1] / name, tmp_path / "two")
    code = (
        f"import site; site.addsitedir({str(tmp_path / 'two')!r}); import _libvmm_start as start; "
        "start.go(); start.put_boundary()\n" + SHORT + "\n"
        "try:\n    import _interpreters as it\nexcept ImportError:\n"
        "    import _xxsubinterpreters as it\n"
        "made = it.create()\n"
        "it.run_string(made, 'import _libvmm_start; _libvmm_start.put_boundary()')\n"
        "it.destroy(made)\n"
        "print(mapped('memfd:vmm-libcuda'), mapped('libvmm_preload'))"
    )
    out, error = run("-c", code, LD_LIBRARY_PATH=FOLDER)
    assert out.startswith("True True ") and out.endswith("\n2 1") and error == ""


DOCTOR = r"""
import subprocess
child = os.fork()
at = ctypes.c_uint64()
for size in (5, 3) if child else (7, 2):
    use(cuda)
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), size << 20) == 0
if child == 0:
    os.kill(os.getpid(), 19)
os.waitpid(child, os.WUNTRACED)
words = [sys.executable, "-m", "libvmm", "doctor", "--tree", str(os.getpid())]
subprocess.run(words, env={**os.environ, "VMM": "0"})
os.kill(child, 9)
"""


def test_the_doctor_shows_what_the_boundary_served(run):
    """In a process and in a forked child of it."""
    out = run("-c", TOOLS + DOCTOR, LD_LIBRARY_PATH=FOLDER)[0].splitlines()
    lines = [line.partition(": driver: ")[2] for line in out]
    assert lines[0] == f"{OURS}; 8.0 MiB allocated, peak 10.0"
    assert lines[1] == f"{OURS} (forked); 9.0 MiB allocated, peak 12.0"


def test_a_report_at_the_end_of_the_process(run, tmp_path):
    """After Python's own end."""
    file = tmp_path / "report"
    run("-c", TOOLS + "print(use(cuda))", LD_LIBRARY_PATH=FOLDER, VMM_REPORT=str(file))
    assert "blocks served by the pool 1," in file.read_text()


JAX = """import _libvmm_start, os
import jax
print(os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR"), "|", _libvmm_start.served.get("jax"))"""


@pytest.mark.parametrize(
    ("variables", "allocator", "state"),
    [
        ({}, "cuda_async", "the driver boundary, with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "bfc"}, "bfc", "XLA_PYTHON_CLIENT_ALLOCATOR=bfc, as"),
        ({"VMM_EXCLUDE": "jax"}, None, "its own memory: VMM_EXCLUDE names it"),
        ({"VMM_EXCLUDE": "driver"}, None, "its own memory: the driver boundary, which would"),
    ],
)
def test_jax_takes_its_memory_at_the_boundary(run, tmp_path, variables, allocator, state):
    """A module with the name stands in for the import. `gpu_tests` has JAX."""
    (tmp_path / "jax.py").touch()
    given = {"LD_LIBRARY_PATH": FOLDER, "PYTHONPATH": str(tmp_path), **variables}
    out, error = run("-c", JAX, **given)
    assert out.startswith(f"{allocator} | {state}") and error == ""


@pytest.mark.parametrize("variables", [{"VMM_DISABLE": "1"}, {"VMM_EXCLUDE": "jax"}])
def test_what_jax_is_given_ends_with_its_process(run, tmp_path, variables):
    (tmp_path / "jax.py").touch()
    child = "import jax, os; print(os.environ.get('XLA_PYTHON_CLIENT_ALLOCATOR'))"
    code = f"{JAX}\nimport subprocess, sys\n"
    code += f"words, more = [sys.executable, '-c', {child!r}], {variables!r}\n"
    code += "sys.stdout.flush(); subprocess.run(words, env={**os.environ, **more})"
    out, _ = run("-c", code, LD_LIBRARY_PATH=FOLDER, PYTHONPATH=str(tmp_path))
    assert out.startswith("cuda_async") and out.endswith("None")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"VMM_MODE": "vmm"}, "VMM_MODE=vmm is set, which has precedence"),
        ({"VMM_EXCLUDE": "cupyy"}, "VMM_EXCLUDE takes a list of"),
    ],
)
def test_a_program_without_a_library_reports_why_nothing_is_served(run, variables, said):
    """With ctypes alone."""
    doctor = "[sys.executable, '-m', 'libvmm', 'doctor', '--tree', str(os.getpid())]"
    code = (
        SHORT + f"\nimport subprocess; subprocess.run({doctor}, env={{**os.environ, 'VMM': '0'}})"
    )
    out, error = run("-c", code, LD_LIBRARY_PATH=FOLDER, **variables)
    assert error.startswith(f"libvmm: VMM=1 does not serve any library: {said}")
    assert error.count("\n") == 0 and f"its own memory: {said}" in out


def test_the_doctor_says_which_way_serves_which_library(run):
    out = run("-m", "libvmm", "doctor", LD_LIBRARY_PATH=FOLDER)[0]
    assert f"torch by its class; cupy, numba, rmm, warp by adapters; others: {OURS}" in out
    out = run("-m", "libvmm", "doctor", LD_LIBRARY_PATH=FOLDER, VMM_EXCLUDE="torch,rmm")[0]
    assert f"cupy, numba, warp by adapters; others: {OURS}" in out and "torch by" not in out
    out = run("-m", "libvmm", "doctor", LD_LIBRARY_PATH=FOLDER, VMM_DISABLE="1", code=1)[0]
    assert "by adapters" not in out
