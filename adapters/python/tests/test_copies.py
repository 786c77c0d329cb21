# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a second copy of the package in a process, and modules that are reloaded, harm no array of
the first; a sub-interpreter gets a clear error.
Method: children that import, reload and interpret, with arrays that outlive all of it."""

import subprocess
import sys

import pytest

pytest.importorskip("numpy")

BEGIN = """
import gc, importlib, sys
import numpy, libvmm

def shown(pool, value):
    block = pool.allocate(64 << 10)
    pool.driver.write(block.address, bytes([value]) * block.size)
    return numpy.from_dlpack(block)

def again():
    for name in [each for each in sys.modules if each.partition(".")[0] == "libvmm"]:
        del sys.modules[name]
    return importlib.import_module("libvmm")
"""


def child(code, *words):
    made = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEGIN + code, *words],
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    return made


def test_a_second_import():
    """Arrays of three copies, made and dropped in turns; each frees what it shows and no more."""
    child("""
packages = [libvmm, again(), again()]
assert len({id(each) for each in packages}) == 3
pools = [each.Pool(each.Driver("host")) for each in packages]
arrays = {}
for turn in range(60):
    which = turn % 3
    arrays[turn] = which, shown(pools[which], turn + 1)
    if turn % 2:
        del arrays[min(arrays)]
    gc.collect()
    for number, (_, array) in arrays.items():
        assert (array == number + 1).all(), (turn, number)
    for which, pool in enumerate(pools):
        live = sum(1 for of, _ in arrays.values() if of == which)
        assert pool.statistics().live_count == live, turn
        assert pool._life.arrays() == live, turn
del array
arrays.clear()
gc.collect()
for pool in pools:
    assert pool.statistics().live_count == 0
    pool.close()
""")


def test_modules_that_are_reloaded():
    child("""
import libvmm.growable, libvmm.share, libvmm.suspend, libvmm.history
import libvmm.cupy, libvmm.rmm, libvmm.torch
pool = libvmm.Pool(libvmm.Driver("host"))
first = shown(pool, 1)
for name in sorted(each for each in sys.modules if each.partition(".")[0] == "libvmm"):
    importlib.reload(sys.modules[name])
    second = shown(pool, 2)
    assert (first == 1).all() and (second == 2).all(), name
    del second
    gc.collect()
    assert pool.statistics().live_count == 1 and (first == 1).all(), name
importlib.reload(libvmm)
new = libvmm.Pool(libvmm.Driver("host"))
third = shown(new, 3)
del first
gc.collect()
assert pool.statistics().live_count == 0 and (third == 3).all()
del third
gc.collect()
assert new.statistics().live_count == 0
new.close()
pool.close()
""")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_sub_interpreter(tmp_path, is_first):
    """Before and after the main interpreter has the package."""
    said = tmp_path / "said"
    child(
        """
import sys
if sys.argv[2] == "True":
    again = None
    for name in [each for each in sys.modules if each.partition(".")[0] == "libvmm"]:
        del sys.modules[name]
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
made = interpreters.create()
interpreters.run_string(made, '''
import sys
sys.path[:] = %r
try:
    import libvmm
    text = "imported"
except ImportError as refused:
    text = str(refused)
with open(%r, "w") as file:
    file.write(text)
''' % (sys.path, sys.argv[1]))
interpreters.destroy(made)
import libvmm
libvmm.Driver("host").close()
""",
        str(said),
        str(is_first),
    )
    text = said.read_text()
    assert "main interpreter" in text or "subinterpreters" in text, text
