# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: VMM=1 reaches every Python process of a tree and changes none where it is unset or has a
reason to stand back.
Method: an environment that has the package and its .pth file as the wheel installs them. Modules
with the names of libraries stand in for the imports alone; the libraries themselves are `./run
check adapters`'s."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
from conftest import RMM, SOURCE

STATE = "import rmm, sys; print(len(rmm.devices), 'libvmm' in sys.modules)"
SERVED = "2 True"


# From 3.15 on Python imports the module that libvmm.start names, whatever the variable is.
HAS_START_FILES = sys.version_info >= (3, 15)
LOADED = (
    "import sys; print([each for each in sys.modules if 'libvmm' in each], "
    "[each for each in sys.meta_path if type(each).__module__ == '_libvmm_start'])"
)


def test_a_pth_file_that_was_left_behind(run, environment):
    start = environment[1] / "_libvmm_start.py"
    kept = os.readlink(start)
    start.unlink()
    try:
        out, error = run("-c", "print(7)")
        assert out == "7" and (error == "" or HAS_START_FILES)  # Python's own words
    finally:
        start.symlink_to(kept)


def test_an_installation_that_goes_while_a_process_runs(run, environment):
    """As by pip, at an upgrade or a removal: what is loaded stays, an import later on is plain."""
    package = str(environment[1] / "libvmm")
    remove = f"import os; os.rename({package!r}, {package + '.away'!r})"
    for steps, devices, lines in (((remove, STATE), "0 False", 1), ((STATE, remove), SERVED, 0)):
        try:
            out, error = run("-c", "; ".join((*steps, "import ctypes")))
        finally:
            os.rename(package + ".away", package)
        assert out == devices and error.count("does not serve rmm: ") == lines, error


@pytest.mark.parametrize("variables", [{"VMM": None}, {"VMM": ""}])
def test_unset_it_loads_nothing(run, variables):
    found = "['_libvmm_start'] []" if HAS_START_FILES else "[] []"
    assert run("-c", LOADED, **variables) == (found, "")


@pytest.mark.parametrize("variables", [{"VMM": "0"}, {"VMM_DISABLE": "1"}])
def test_switched_off_it_installs_nothing(run, variables):
    assert run("-c", LOADED, **variables) == ("['_libvmm_start'] []", "")
    assert run("-c", STATE, **variables) == ("0 False", "")


def test_a_malformed_disable_switches_off_and_says_so(run):
    out, line = run("-c", LOADED, VMM_DISABLE="yes")
    assert out == "['_libvmm_start'] []"
    assert "does not serve any library: VMM_DISABLE takes 0 or 1; not 'yes'" in line


def test_set_it_installs_one_finder_and_loads_no_package(run):
    modules, finder = run("-c", LOADED)[0].split("] [")
    assert modules == "['_libvmm_start'" and finder.count("Finder") == 1
    again = "import _libvmm_start as start, sys; start.go(); start.go(); " + LOADED
    assert run("-c", again)[0].count("Finder") == 1


# Python's own start, and what the package adds to it: files, modules, and bytes of their sources.
COST = """
import sys
opened = []
sys.addaudithook(lambda event, words: event == "open" and opened.append(str(words[0])))
import site
before = set(sys.modules)
site.main()
{}
import json, os
modules = sorted(each for each in set(sys.modules) - before if "libvmm" in each)
print(json.dumps([
    sorted({{os.path.basename(each).split(".")[0] for each in opened if "libvmm" in each}}),
    sum(os.path.getsize(sys.modules[each].__file__) for each in modules),
    modules,
    sorted({{"argparse", "dataclasses", "difflib", "inspect"}} & set(sys.modules)),
]))
"""


def cost(run, code, **variables):
    return json.loads(run("-S", "-c", COST.format(code), **variables)[0])


def test_the_cost_of_a_start_does_not_grow(run):
    """What a clock would show only on an idle machine."""
    if not HAS_START_FILES:
        assert cost(run, "", VMM=None) == [["libvmm"], 0, [], []]
    opened, size, modules, others = cost(run, "")
    assert (opened, modules) == (["_libvmm_start", "libvmm"], ["_libvmm_start"])
    assert others == [] and size < 12 << 10
    _, size, modules, others = cost(run, "import ctypes")
    assert modules == ["_libvmm_boundary", "_libvmm_start"]
    assert others == [] and size < 28 << 10


def test_an_adapter_loads_what_it_calls(run):
    modules = "libvmm _auto _hooks _native _settings _values _words errors torch torch._ahead "
    modules += "torch._build torch._headers torch._queues"
    expected = {f"libvmm.{each}".replace("libvmm.libvmm", "libvmm") for each in modules.split()}
    _, size, modules, others = cost(run, "import torch")
    assert {each for each in modules if not each.startswith("_")} == expected
    assert others == [] and size < 112 << 10


SPAWNED = """
import multiprocessing, sys
def work():
    {}
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_started_processes_are_served(run, tmp_path, how):
    (tmp_path / "parent.py").write_text(SPAWNED.format(STATE))
    assert run("parent.py", how) == (SERVED, "")


def test_a_child_does_not_wait_for_a_thread_of_its_parent(run):
    code = (
        "import os, signal, sys, threading, torch; lock = sys.modules['libvmm']._auto._state.lock\n"
        "held, done = threading.Event(), threading.Event()\n"
        "def hold():\n    with lock:\n        held.set(); done.wait()\n"
        "threading.Thread(target=hold).start(); held.wait()\n"
        "if os.fork() == 0:\n    signal.alarm(20); import rmm; os._exit(len(rmm.devices))\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1])); done.set()"
    )
    assert run("-c", code)[0] == "2"


def test_every_way_to_start_python_is_served(run, tmp_path):
    (tmp_path / "script.py").write_text(STATE)
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys; subprocess.run([sys.executable, 'script.py'], check=True)"
    )
    for words in (("-c", STATE), ("script.py",), ("-m", "script"), ("parent.py",)):
        assert run(*words) == (SERVED, ""), words
    for flag in ("-I", "-E", "-B", "-O", "-W error"):
        assert run(*flag.split(), "-c", STATE) == (SERVED, ""), flag


def test_a_search_alone_serves_nothing_and_leaves_the_loader(run):
    code = (
        "import importlib, importlib.util, sys; spec = importlib.util.find_spec('rmm'); "
        "print('libvmm' in sys.modules); import rmm; print(vars(rmm.__loader__).keys() - "
        "{'name', 'path'}, rmm.__spec__.origin.endswith('rmm.py')); "
        "importlib.reload(rmm); print(len(rmm.devices))"
    )
    assert run("-c", code) == ("False\nset() True\n0", "")


def test_modules_of_an_archive_share_a_loader(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("other.py", "")
        archive.writestr("rmm.py", RMM)
    code = "import importlib.util; importlib.util.find_spec('rmm'); import other; " + STATE
    assert run("-c", code, PYTHONPATH=str(tmp_path / "all.zip")) == (SERVED, "")


def test_an_import_that_fails_fails_as_without_it(run):
    out, error = run("-c", "import broken", code=1)
    assert out == "" and error.endswith("ZeroDivisionError: division by zero")
    missing = "import warp"
    assert run("-c", missing, code=1)[1].endswith("No module named 'warp'")


ONE_LINE = (
    "import subprocess, sys, torch, rmm; subprocess.run([sys.executable, '-c', 'import rmm'])"
)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"VMM": "yes"}, "any library: VMM takes 0 or 1; not 'yes'"),
        ({"VMM_MODE": "vmm"}, "any library: VMM_MODE=vmm is set, which has precedence"),
        (
            {"VMM_EXCLUDE": "rmmm"},
            (
                "any library: VMM_EXCLUDE takes a list of "
                "cupy, driver, jax, numba, rmm, torch, warp; not 'rmmm'"
            ),
        ),
        ({"VMM_EXCLUDE": "rmm"}, "torch: PyTorch 2.11.0 is built without CUDA"),
    ],
)
def test_it_stands_back_with_one_line_for_a_tree(run, variables, reason):
    line = f"libvmm: VMM={variables.get('VMM', '1')} does not serve {reason}"
    assert run("-c", ONE_LINE, **variables) == ("", line)


def test_a_library_that_cannot_be_loaded_is_one_line(run):
    out, error = run("-c", STATE, LIBVMM="/nowhere/libvmm.so")
    assert out.startswith("0 ")
    assert error.count("\n") == 0 and "VMM=1 does not serve rmm" in error and "/nowhere" in error


def test_an_import_goes_on_where_stderr_takes_no_line(run):
    """It is full, or closed: the line is not written to stdout."""
    for where in (">/dev/full", ">&-"):
        for variables in ({"VMM": "yes"}, {"LIBVMM": "/nowhere"}, {"VMM_EXCLUDE": "\udcff"}):
            code = (
                "import subprocess, sys; sys.exit(subprocess.run(['sh', '-c', "
                f"'exec \"$@\" 2{where}', 'sh', sys.executable, '-c', {STATE!r}]).returncode)"
            )
            assert run("-c", code, **variables)[0].startswith("0 "), (where, variables)


def test_another_owner_of_cudas_calls_has_precedence(run, tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "libcuda_other.so"
    source.write_text("int cuMemAlloc_v2(void) { return 0; }\n")
    made = subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], capture_output=True)
    if made.returncode != 0:
        pytest.skip("there is no C compiler")
    out, error = run("-c", STATE, LD_PRELOAD=str(library))
    assert out == "0 True" and "libcuda_other.so is loaded and defines cuMemAlloc_v2" in error


def test_descriptors_that_the_program_closed_are_not_written(run):
    """A program that closes all, as a daemon does, gets their numbers for files of its own."""
    code = (
        "import os, torch; os.closerange(3, 99)\n"
        "files = [open(f'log{each}', 'w+') for each in range(20)]\n"
        "[(each.write('kept'), each.flush()) for each in files]\n"
        "import rmm; os.fork() == 0 and os._exit(0); os.wait(); [each.seek(0) for each in files]\n"
        "print({each.read() for each in files}, len(rmm.devices))"
    )
    assert run("-c", code)[0] == "{'kept'} 2"


def test_nothing_is_loaded_from_the_current_folder(run, tmp_path):
    for name in ("libvmm", "_auto", "_libvmm_start"):
        (tmp_path / f"{name}.py").write_text("print('wrong')")
    (tmp_path / "script.py").write_text(STATE)
    for words in (("-c", STATE), ("-m", "script"), ("script.py",)):
        assert run(*words) == (SERVED, ""), words


@pytest.mark.parametrize("part", ["libvmm", "libvmm/torch"])
def test_nothing_is_loaded_from_a_folder_that_everybody_can_write_to(
    environment, run, tmp_path, part
):
    folder = tmp_path / "open"
    subprocess.run(["cp", "-r", SOURCE, folder], check=True)
    os.chmod(folder / part, 0o1777)
    code = (
        f"import site, sys; site.addsitedir({str(folder)!r}); "
        f"sys.path.append({str(environment[1])!r}); {STATE}"
    )
    out, error = run("-S", "-c", code)
    assert out == "0 False" and f"everybody can write to {folder}/{part}" in error


def test_set_uid_processes_are_left_alone(run):
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    code = (
        "import os, sys, _libvmm_start as start; sys.meta_path[:] = sys.meta_path[1:]; "
        f"os.setresuid(65534, 0, 0); start.go(); start.torch_imported(); {STATE}"
    )
    assert run("-c", code) == ("0 False", "")


TREE = """
import os, subprocess, sys, rmm, torch
if len(sys.argv) == 1:
    words = [sys.executable, __file__, "child"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    forked = os.fork()
    if forked == 0:
        child.stdin.close()
        child.stdout.read()
        os._exit(0)
    words = [sys.executable, "-m", "libvmm", "doctor", "--tree", str(os.getpid())]
    text = subprocess.run(words, env={**os.environ, "VMM": "0"}, capture_output=True, text=True)
    for process, name in ((os.getpid(), "P"), (child.pid, "C"), (forked, "F")):
        text.stdout = text.stdout.replace(f"{process} ", f"{name} ", 3)
    print(text.stdout)
    child.communicate(b"")
else:
    print("there", flush=True)
    sys.stdin.read()
"""


def test_the_doctor_shows_a_tree(run, tmp_path):
    (tmp_path / "parent.py").write_text(TREE)
    out, _ = run("parent.py")
    lines = [line.replace(line.split()[1], "python:", 1) for line in out.splitlines()]
    lines = [line for line in lines if ": driver: " not in line]  # test_boundary.py
    own = "torch: its own memory: PyTorch 2.11.0 is built without CUDA"
    assert lines[:2] == [f"P python: {each}" for each in ("rmm: one pool for each device", own)]
    assert f"  C python: {own}" in lines and f"  F python: {own} (forked)" in lines
    assert lines[-1].endswith("VMM is not set"), "the doctor itself"
