# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: VMM_OWNER makes a Python program a tenant; `doctor` shows the market and its mistakes.
Method: vmm-owner over the host's memory, and processes that take turns in three quarters of it."""

import contextlib
import os
import pathlib
import re
import select
import shlex
import signal
import socket
import subprocess
import sys

import libvmm
import pytest
from libvmm import _native, _programs
from libvmm.growable import Growable
from libvmm.suspend import Suspender

OWNER = _programs.find_program("owner")
pytestmark = pytest.mark.skipif(OWNER is None, reason="vmm-owner is not built here")

TENANT = """
import sys, libvmm
with libvmm.Driver("host") as driver, libvmm.Manager(driver) as blocks:
    for line in sys.stdin:
        with blocks.allocate(48 << 20) as block:
            driver.write(block.address, line.encode())
            print(driver.read(block.address, len(line)).decode(), end="", flush=True)
"""


# Holds 48 MiB from a line to the next.
HOLDER = """
import sys, libvmm
with libvmm.Driver("host") as driver, libvmm.Manager(driver) as blocks:
    for line in sys.stdin:
        with blocks.allocate(48 << 20):
            print("held", flush=True)
            sys.stdin.readline()
        blocks.trim()
        print("free", flush=True)
"""


# Offers 48 MiB, and says after each line whether another tenant has them.
OFFER = """
import sys, libvmm
from libvmm.suspend import Suspender
with libvmm.Driver("host") as driver, libvmm.Manager(driver) as blocks:
    with blocks.allocate(48 << 20) as block, Suspender() as sleeper:
        driver.write(block.address, b"kept")
        sleeper.add(blocks, "kv")
        for line in sys.stdin:
            if line == "resume\\n":
                sleeper.resume()
                print(driver.read(block.address, 4).decode(), flush=True)
            else:
                sleeper.offer("kv") if line == "offer\\n" else None
                print(sleeper.is_suspended("kv"), flush=True)
        sleeper.resume()
"""


@contextlib.contextmanager
def tenant(program=TENANT, **settings):
    words = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env={**os.environ, **settings}, **pipes) as process:
        yield process
        process.stdin.close()


def turn(process, word):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture
def folder(tmp_path):
    """An owner's."""
    place = tmp_path / "market"
    serve = [OWNER, "serve", str(place), "host", "--daemon", "--capacity", "64MiB"]
    subprocess.run([*serve, "--quiet-ms", "50"], check=True)
    return str(place)


def doctor(**settings):
    done = subprocess.run(
        [sys.executable, "-m", "libvmm", "doctor"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_processes_take_turns(folder):
    settings = {"VMM_OWNER": folder, "VMM_TENANT": "limit=60MiB,name=first"}
    with tenant(**settings) as first, tenant(VMM_OWNER=folder) as second:
        for number in range(5):
            assert turn(first, f"a{number}") == f"a{number}"
            assert turn(second, f"b{number}") == f"b{number}"
        said = doctor(**settings)
        assert f"market: folder {folder}: private\n" in said
        assert "market: share: limit=60MiB,name=first\n" in said
        version = ".".join(map(str, libvmm.version()))
        table = said.partition(f"market: owner of host, {version}:\n")[2].splitlines()
        assert table[0].startswith("market: tenant  held MiB  "), said
        assert any(line.endswith("  first") for line in table[1:3]), said
        assert table[3].startswith("market: device host: 64 MiB, "), said
        first.kill()
        assert turn(second, "c") == "c"


def test_offered_memory_serves_another_tenant(folder):
    settings = {"VMM_OWNER": folder}
    with tenant(OFFER, **settings) as first, tenant(**settings) as second:
        assert turn(first, "offer") == "False"
        assert turn(second, "b") == "b"
        assert turn(first, "look") == "True"
        assert turn(first, "resume") == "kept"
        assert turn(first, "look") == "False"


@pytest.fixture
def ends_wait(alarm):
    """A call that waits runs handlers, one of which ends it."""

    def check(call, inside=lambda: None):
        seen = []

        def handle():
            inside()
            seen.append(1)
            if len(seen) == 5:
                raise alarm.Stop

        alarm(handle)
        with pytest.raises(alarm.Stop):
            call()
        alarm.end()
        assert len(seen) in (5, 6)  # one may be on its way

    return check


def test_a_handler_ends_a_wait_for_the_owner(folder, ends_wait, monkeypatch):
    """The request leaves nothing here, and nothing at the owner."""
    monkeypatch.setenv("VMM_OWNER", folder)
    size = 48 << 20
    with tenant(HOLDER, VMM_OWNER=folder) as holder, libvmm.Driver("host") as driver:
        with (
            libvmm.Manager(driver) as blocks,
            libvmm.Manager(driver) as cache,
            libvmm.Pool(driver) as pool,
            Growable(blocks, size) as rows,
            cache.allocate(size),
            Suspender() as sleeper,
        ):
            sleeper.add(cache, "kv", contents="discard")
            sleeper.suspend()
            assert turn(holder, "hold") == "held"
            ends_wait(lambda: blocks.allocate(size))
            ends_wait(lambda: pool.allocate(size))
            ends_wait(lambda: pool.allocate_dedicated(size))
            ends_wait(lambda: rows.grow(size))
            ends_wait(sleeper.resume)
            free, total = driver.memory()
            assert free == total
            words = [OWNER, "ctl", "list", folder, "host"]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            assert re.search(rf" \d+ +0 +0 +0 +0 +0 +0  {os.getpid()}\n", said), said
            assert turn(holder, "free") == "free"
            sleeper.resume()


def test_a_handler_ends_a_join_that_waits(folder, ends_wait, monkeypatch):
    monkeypatch.setenv("VMM_OWNER", folder)
    monkeypatch.setenv("VMM_TENANT", "guarantee=48MiB,wait=3600")

    def join_again():
        with pytest.raises(libvmm.InUse, match="raise an exception, which ends the call"):
            libvmm.Driver("host")

    with tenant(HOLDER) as holder:
        assert turn(holder, "hold") == "held"
        ends_wait(lambda: libvmm.Driver("host"), join_again)
        turn(holder, "free")


def owner_below(place):
    """The process of the owner that serves there."""
    found = []
    for each in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # of a process that has ended
            if str(place).encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    (owner,) = found
    return owner


def test_a_daemon_has_nothing_of_the_program_that_starts_it(tmp_path):
    ours, theirs = os.pipe()
    serve = [OWNER, "serve", str(tmp_path / "market"), "host", "--daemon", "--stay"]
    subprocess.run(serve, check=True, pass_fds=[theirs], cwd=tmp_path)
    os.close(theirs)
    owner = owner_below(tmp_path)
    try:
        assert select.select([ours], [], [], 60)[0], "the owner holds a descriptor"
        assert os.readlink(f"/proc/{owner}/cwd") == "/"
    finally:
        os.close(ours)
        os.kill(owner, signal.SIGTERM)


def test_a_daemon_returns_0_where_it_serves(tmp_path):
    serve = f"{shlex.quote(OWNER)} serve {tmp_path}/market host --daemon"
    subprocess.run(["sh", "-c", f"{serve} --capacity 64MiB <&- >&- 2>&-"], check=True)
    table = subprocess.run(
        [OWNER, "ctl", "drain", f"{tmp_path}/market", "host"],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert "device host: 64 MiB" in table.stdout
    (tmp_path / "pipe").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe/owner-host.log")
    words = shlex.split(serve.replace("/market ", "/pipe "))
    done = subprocess.run(words, stderr=subprocess.PIPE, timeout=100, check=True)
    assert b"/owner-host.log (ENXIO): it is not a regular file: remove" in done.stderr, done.stderr
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(f"{tmp_path}/pipe/owner-host")
        number = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
    os.kill(int.from_bytes(number, sys.byteorder), signal.SIGTERM)  # not of the starter
    (tmp_path / "kept").mkdir(mode=0o700)
    (tmp_path / "kept" / "owner-host").write_text("precious")
    for limit, kept in (("n 9", "market2"), ("n 64", "kept")):
        words = f"ulimit -{limit}; {serve.replace('/market ', f'/{kept} ')}"
        done = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE)
        assert done.returncode == 1 and done.stderr, words
    assert (tmp_path / "kept" / "owner-host").read_text() == "precious"


def test_auto_finds_the_program_beside_the_library(tmp_path):
    for name, target in (("lib/libvmm.so.1", _native.PATH), ("bin/vmm-owner", OWNER)):
        (tmp_path / name).parent.mkdir()
        os.symlink(os.path.abspath(target), tmp_path / name)
    settings = {"VMM_OWNER": "auto", "XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with tenant(LIBVMM=str(tmp_path / "lib/libvmm.so.1"), **settings) as only:
        assert turn(only, "a") == "a"
        assert "market: owner of host, " in doctor(**settings)


def test_the_doctor_names_each_mistake(tmp_path):
    said = doctor(VMM_OWNER="auto", VMM_TENANT="limit=x,priority=9,guarantee=2GiB")
    assert "not 'limit=x'; priority in VMM_TENANT is a number from 0 to 7; not 'priority=9'" in said
    assert "VMM_TENANT has each word once" in doctor(VMM_TENANT="job=1,job=1")
    said = doctor(VMM_TENANT="job=1", VMM_OWNER="")
    assert "conflict: VMM_TENANT has no effect without VMM_OWNER" in said
    assert "wrong: VMM_OWNER is off, auto, or the absolute path" in doctor(VMM_OWNER="relative")
    said = doctor(VMM_OWNER="/nowhere/market")
    assert "conflict: VMM_OWNER: no owner listens in /nowhere/market: start it" in said
    for path, why in (
        ("rel", "is a relative path"),
        ("/nowhere", "cannot be used (No such file or directory)"),
        *[("/proc/1/fd", "is of user 0, and this is")] * (os.geteuid() != 0),
    ):
        said = doctor(VMM_OWNER="auto", XDG_RUNTIME_DIR=path)
        assert f"market: folder /tmp/vmm-market-{os.geteuid()}: " in said
        assert f"conflict: XDG_RUNTIME_DIR='{path}' {why}: vmm's folders are in /tmp" in said
    for program in ("/nowhere/owner", "/tmp", "/etc/passwd"):
        said = doctor(VMM_OWNER="auto", VMM_OWNER_PROGRAM=program)
        assert f"conflict: VMM_OWNER_PROGRAM={program} is not a program: set it to the" in said
    said = doctor(VMM_OWNER="auto", VMM_OWNER_PROGRAM="/bin/true")
    assert "conflict: VMM_OWNER_PROGRAM=/bin/true is not vmm-owner: its --version is" in said
    hanging = tmp_path / "hanging"
    hanging.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs\nexec sleep 100\n")
    hanging.chmod(0o700)
    said = doctor(VMM_OWNER="auto", VMM_OWNER_PROGRAM=str(hanging))
    assert f"conflict: VMM_OWNER_PROGRAM={hanging} is not vmm-owner: its --version is 'no o" in said
    assert (tmp_path / "runs").read_text() == "\n", "it was run again"
    for program in (OWNER, "/nowhere/owner"):
        said = doctor(VMM_OWNER="", VMM_OWNER_PROGRAM=program)
        assert f"VMM_OWNER_PROGRAM={program} has no effect without VMM_OWNER=auto" in said
    assert "is not" not in doctor(VMM_OWNER="auto", VMM_OWNER_PROGRAM=OWNER).partition("wrong")[2]
    os.chmod(tmp_path, 0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    for path, why in (
        (tmp_path, "it has mode 0755, and must have 0700: name a folder in it, which is made"),
        ("/tmp", "it has mode 1777, and must have 0700: name a folder in it, which is made"),
        (tmp_path / "link", "it is a symbolic link: name a folder"),
        ("/dev/null", "it is not a folder: name a folder"),
    ):
        if path == "/tmp" and os.geteuid() != 0:
            continue
        assert f"conflict: VMM_OWNER: {path}: {why}" in doctor(VMM_OWNER=str(path))
        said = subprocess.run([OWNER, "serve", path, "host"], capture_output=True, text=True)
        assert f"vmm-owner: {path}: {why}" in said.stderr


def test_the_doctor_names_an_owner_that_takes_no_tenant(folder):
    owner, conflict = owner_below(folder), f"conflict: VMM_OWNER: {folder}/owner-host: "
    assert "0 conflicts" in doctor(VMM_OWNER=folder, VMM_TENANT="guarantee=64MiB")
    said = doctor(VMM_OWNER=folder, VMM_TENANT="guarantee=65MiB")
    assert f"{conflict}it has 64 MiB, and VMM_TENANT wants guarantee=65MiB: lower" in said
    watched = os.pidfd_open(owner)
    os.kill(owner, signal.SIGSTOP)
    silent = f"the owner in {folder}, process {owner}, is silent: continue it with kill -CONT "
    assert f"conflict: VMM_OWNER: {silent}{owner}, or end it" in doctor(VMM_OWNER=folder)
    os.kill(owner, signal.SIGKILL)
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)
    said = doctor(VMM_OWNER=folder)
    assert f"conflict: VMM_OWNER: no owner listens at {folder}/owner-host (ECONNREFUSED): " in said
