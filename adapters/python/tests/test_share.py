# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: memory is lent and borrowed between processes without a copy, follows what moves, and comes
back when a peer ends; rights and links of devices are asked and given.
Method: a forked child borrows over a path and over a socketpair, on the host's memory; the
simulated devices for rights; every wrong use raises."""

import concurrent.futures
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import libvmm
import pytest
from libvmm import share

MIB = 1 << 20
WAIT = 20_000  # milliseconds: long enough for a loaded machine


def run_child(work):
    """The process number of a child that ends with what `work` returns; 99 where it raises."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        code = work()
    finally:
        os._exit(code)


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def ends():
    """Both ends of a connection of this process with itself."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    secret = share.make_secret()
    made = {}

    def accept():
        made["server"] = share.adopt(right, secret, accepts=True, timeout_ms=WAIT)

    thread = threading.Thread(target=accept)
    thread.start()
    made["client"] = share.adopt(left, secret, accepts=False, timeout_ms=WAIT)
    thread.join()
    yield made["client"], made["server"]
    made["client"].close()
    made["server"].close()


def test_a_block_is_lent_over_a_path(tmp_path):
    """The child sees what was written before, and the parent what the child writes."""
    os.chmod(tmp_path, 0o700)
    path, secret = tmp_path / "door", share.make_secret()

    def borrow():
        with (
            share.connect(path, secret, timeout_ms=WAIT) as channel,
            libvmm.Driver("host") as driver,
            channel.borrow(driver) as borrowed,
        ):
            info = borrowed.info()
            assert (info.size, info.label, info.parts) == (4 * MIB, b"keys", 2)
            assert driver.read(borrowed.address + 3 * MIB, 5) == b"hello"
            driver.write(borrowed.address, b"seen")
        return 7

    with share.Listener(path) as place:
        child = run_child(borrow)
        with place.accept(secret, timeout_ms=WAIT) as channel, libvmm.Driver("host") as driver:
            lent = share.export(driver, 4 * MIB, handle_bytes=2 * MIB, label=b"keys")
            driver.write(lent.address + 3 * MIB, b"hello")
            number = channel.lend(lent)
            event = channel.next(WAIT)
            assert (event.kind, event.id) == (share.What.RELEASED, number)
            assert driver.read(lent.address, 4) == b"seen"
            assert exit_code(child) == 7
            lent.close()
    assert not path.exists()


def test_a_followed_block_moves(ends):
    client, server = ends
    with (
        libvmm.Driver("host") as driver,
        libvmm.Manager(driver, shareable=share.Kind.POSIX_FD, reservation_bytes=256 * MIB) as owner,
    ):
        block = owner.allocate(2 * MIB)
        driver.write(block.address, b"old")
        lent = share.export_block(block, followed=True)
        with Lending(client, lent) as finish, server.borrow(driver) as borrowed:
            number = finish()
            assert driver.read(borrowed.address, 3) == b"old"
            block.resize(8 * MIB)
            driver.write(block.address + 6 * MIB, b"new")
            lent.moved(block)
            assert client.update(number) == 1
            assert server.next(WAIT).kind == share.What.UPDATED
            borrowed.apply()
            assert borrowed.info().epoch == 1 and borrowed.size == 8 * MIB
            assert driver.read(borrowed.address + 6 * MIB, 3) == b"new"
        lent_is_back(client)
        lent.close()
        block.free()


class Lending:
    """lend() in a thread, since both ends are here: it waits for the borrower's answer."""

    def __init__(self, channel, lent):
        self.number = None

        def work():
            self.number = channel.lend(lent)

        self.thread = threading.Thread(target=work)

    def __enter__(self):
        self.thread.start()

        def finish():
            self.thread.join()
            return self.number

        return finish

    def __exit__(self, *_):
        self.thread.join()


def lent_is_back(channel):
    while channel.next(WAIT).kind != share.What.RELEASED:
        pass


def test_a_borrowed_block_is_shown_without_a_copy(ends):
    numpy = pytest.importorskip("numpy")
    client, server = ends
    with libvmm.Driver("host") as driver:
        lent = share.export(driver, 2 * MIB)
        driver.write(lent.address, bytes(range(16)))
        with Lending(client, lent) as finish, server.borrow(driver) as borrowed:
            finish()
            shown = numpy.from_dlpack(borrowed.view("uint8", (4, 4)))
            assert shown.ctypes.data == borrowed.address
            assert shown[3].tolist() == [12, 13, 14, 15]
            with pytest.raises(libvmm.InUse):
                borrowed.give_back()
            del shown
        assert borrowed.address == 0
        with pytest.raises(libvmm.UnknownAddress):
            borrowed.view()
        lent_is_back(client)
        lent.close()


def test_a_peer_that_is_killed_gives_everything_back():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    secret = share.make_secret()

    def borrow():
        left.close()
        channel = share.adopt(right, secret, accepts=False, timeout_ms=WAIT)
        borrowed = channel.borrow(libvmm.Driver("host"))
        os.kill(os.getpid(), signal.SIGKILL)
        return borrowed.size

    child = run_child(borrow)
    right.close()
    with libvmm.Driver("host") as driver:
        lent = share.export(driver, 2 * MIB)
        with share.adopt(left, secret, accepts=True, timeout_ms=WAIT) as channel:
            channel.lend(lent)
            with pytest.raises(libvmm.InUse):
                lent.close()
            assert exit_code(child) == -signal.SIGKILL
            assert select.select([channel], [], [], 10)[0]
            with pytest.raises(libvmm.Unavailable):
                channel.next(WAIT)
            assert not lent.info().lent
            lent.close()


def test_a_socket_that_is_refused_stays_the_callers():
    secret = share.make_secret()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with pytest.raises(libvmm.InvalidArgument, match="timeout_ms is 0, and .*: give 1 or more"):
        share.adopt(here, secret, accepts=True, timeout_ms=0)
    there.send(b"connected")
    assert here.recv(9) == b"connected"
    with pytest.raises(libvmm.Unavailable, match="did not respond"):
        share.adopt(here, secret, accepts=True, timeout_ms=10)
    left, right = socket.socketpair()
    for end in (left, socket.socket(), here):
        number = end.fileno()
        with pytest.raises(libvmm.Error):
            share.adopt(end, secret, accepts=True, timeout_ms=10)
        assert end.fileno() == number and os.fstat(number)
        end.close()
    left.close(), right.close(), there.close()
    with pytest.raises(libvmm.InvalidArgument):
        share.adopt(left, secret, accepts=True)


class Waits:
    """Calls that wait for a peer which does nothing."""

    def __init__(self, ends, folder):
        os.chmod(folder, 0o700)
        self.channel, _ = ends
        self.secret = share.make_secret()
        self.listener_path = folder / "door"
        self.listener = share.Listener(self.listener_path)
        self.silent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.path = folder / "silent"
        self.full = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.full.bind(str(self.path))
        self.full.listen(1)
        self.queued = []
        self.driver = libvmm.Driver("host")
        self.lent = share.export(self.driver, 2 * MIB)

    def close(self):
        self.channel.close()
        self.listener.close()
        for each in (*self.silent, self.full, *self.queued):
            each.close()
        self.lent.close()
        self.driver.close()

    def accept(self):
        self.listener.accept(self.secret, timeout_ms=WAIT)

    def connect(self):
        share.connect(self.path, self.secret, timeout_ms=WAIT)

    def connect_to_a_full_queue(self):
        for _ in range(2):
            self.queued.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self.queued[-1].connect(str(self.path))
        self.connect()

    def adopt(self):
        share.adopt(self.silent[0], self.secret, accepts=True, timeout_ms=WAIT)

    def next(self):
        self.channel.next(WAIT)

    def borrow(self):
        self.channel.borrow(self.driver)

    def lend(self):
        self.channel.lend(self.lent)


@pytest.fixture
def waits(ends, tmp_path):
    made = Waits(ends, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "call",
    ["accept", "connect", "connect_to_a_full_queue", "adopt", "next", "borrow", "lend"],
)
def test_a_handler_runs_in_a_wait_and_ends_it(waits, alarm, call):
    """Handlers that return change nothing; what they use of the same channel is refused."""
    seen = []

    def handle():
        seen.append(time.monotonic())
        if len(seen) == 2 and call in ("accept", "next"):
            owner = waits.listener if call == "accept" else waits.channel
            for use in (getattr(waits, call), owner.close):
                with pytest.raises(libvmm.InUse, match="raise an exception, which ends the call"):
                    use()
        if len(seen) == 5:
            raise alarm.Stop

    alarm(handle)
    with pytest.raises(alarm.Stop):
        getattr(waits, call)()
    alarm.end()
    assert len(seen) in (5, 6) and time.monotonic() - seen[0] < WAIT / 2000
    with pytest.raises(libvmm.Unavailable, match="within the timeout"):
        waits.channel.next(10)


def test_a_block_that_is_being_lent_is_in_use(waits):
    with concurrent.futures.ThreadPoolExecutor() as others:
        other = others.submit(waits.lend)
        while not waits.lent.info().lent:
            time.sleep(0.001)
        with pytest.raises(libvmm.InUse, match="lent"):
            waits.lent.close()
        assert not other.done()
        waits.channel.close()
        assert isinstance(other.exception(), libvmm.Unavailable)


def test_handlers_cut_no_handshake(waits, alarm):
    """The peer begins after some of them."""
    seen, begins = [], threading.Event()

    def handle():
        seen.append(1)
        if len(seen) == 10:
            begins.set()

    def work():
        begins.wait()
        with share.connect(waits.listener_path, waits.secret, timeout_ms=WAIT) as channel:
            channel.next(WAIT)

    with concurrent.futures.ThreadPoolExecutor() as others:
        other = others.submit(work)
        alarm(handle)
        with waits.listener.accept(waits.secret, timeout_ms=WAIT):
            pass
        alarm.end()
        with pytest.raises(libvmm.Unavailable, match="the peer closed"):
            other.result()


@pytest.mark.parametrize("call", ["accept", "next", "borrow", "lend"])
def test_a_close_ends_another_threads_wait(waits, call):
    closed = waits.listener if call == "accept" else waits.channel
    with concurrent.futures.ThreadPoolExecutor() as others:
        other = others.submit(getattr(waits, call))
        while not closed._life.inside:
            time.sleep(0.001)
        closed.close()
        with pytest.raises(libvmm.Error, match="closed.*: make another"):  # or was not inside yet
            other.result()
    assert not closed.is_open


@pytest.mark.parametrize("accepts", [True, False])
def test_both_ends_of_one_kind_are_named(accepts):
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    secret = share.make_secret()
    with concurrent.futures.ThreadPoolExecutor() as others:
        made = [others.submit(share.adopt, each, secret, accepts=accepts) for each in ends]
        said = [str(each.exception()) for each in made]
    why = "sent its greeting and no proof" if accepts else "has another secret, or connects too"
    assert any(
        f"the peer {why}: of the two ends one accepts and the other" in each for each in said
    )
    for each in ends:
        each.close()


def test_wrong_uses_of_sharing_raise(ends, tmp_path):
    client, server = ends
    with pytest.raises(libvmm.Unavailable) as late:
        client.next(10)
    assert late.value.native_name == "ETIMEDOUT" or late.value.native_code
    with pytest.raises(libvmm.InvalidArgument):
        client.take_back(9)
    with pytest.raises(libvmm.InvalidArgument):
        share.connect(tmp_path / "x", b"short")
    with pytest.raises(libvmm.Unavailable, match="the path does not exist: start the process"):
        os.chmod(tmp_path, 0o700)
        share.connect(tmp_path / "nobody", share.make_secret(), timeout_ms=10)
    loose = tmp_path / "loose"
    loose.write_bytes(bytes(32))
    os.chmod(loose, 0o644)
    with pytest.raises(libvmm.NotPermitted):
        share.read_secret(loose)
    os.chmod(loose, 0o600)
    assert share.read_secret(loose) == bytes(32)
    with libvmm.Driver("host") as driver, libvmm.Manager(driver) as plain:
        with pytest.raises(libvmm.NotSupported):
            share.export_block(plain.allocate(2 * MIB))
        with pytest.raises(libvmm.InvalidArgument, match="from 1 to 2.56 bytes; not 0"):
            share.export(driver, 0)
        with pytest.raises(libvmm.InvalidArgument, match="whole granules of 4096 bytes; not 5"):
            share.export(driver, MIB, handle_bytes=5)
        with pytest.raises(libvmm.InvalidArgument):
            share.export(driver, MIB, label=bytes(33))
    server.close()
    with pytest.raises(libvmm.InvalidHandle):
        server.next()
    with pytest.raises(libvmm.Unavailable):
        client.next(WAIT)


@pytest.fixture
def two_devices(standin_library):
    """The first device of the tests' stub of CUDA's driver, which has two."""
    with libvmm.Driver("cuda", 0) as driver:
        yield driver


def test_rights_of_devices(two_devices):
    """Of a manager's block, of all of a manager, of a pool."""
    driver = two_devices
    topology = driver.topology()
    assert len(topology) == 2 and topology[0][0].link == libvmm.Link.ITSELF
    assert topology[0][1].is_reachable and topology[1][0].link == libvmm.Link.PEER
    with libvmm.Manager(driver) as manager, libvmm.Pool(driver) as pool:
        block, other = manager.allocate(2 * MIB), manager.allocate(2 * MIB)
        assert driver.rights(block.address, 1) == libvmm.Rights.NONE
        block.set_access({1: libvmm.Rights.READ})
        assert driver.rights(block.address, 1) == libvmm.Rights.READ
        assert driver.rights(other.address, 1) == libvmm.Rights.NONE
        block.resize(block.size + (8 << 20))
        first, second = block.parts()
        assert first.size + second.size == block.size and first.handle != second.handle
        block.set_access({1: libvmm.Rights.READ_WRITE}, first.size, second.size)
        block.set_access({1: libvmm.Rights.READ_WRITE}, first.size)
        assert driver.rights(block.address, 1) == libvmm.Rights.READ
        assert driver.rights(block.address + first.size, 1) == libvmm.Rights.READ_WRITE
        with pytest.raises(libvmm.NotSupported, match=r"inside a mapping.*Range\.parts\(\)"):
            block.set_access({1: libvmm.Rights.READ}, first.size, 2 << 20)
        with pytest.raises(libvmm.InvalidArgument):
            block.set_access({1: libvmm.Rights.READ}, block.size)
        block.resize(first.size)
        manager.set_peers({(libvmm.Place.DEVICE, 1): libvmm.Rights.READ_WRITE})
        assert driver.rights(other.address, 1) == libvmm.Rights.READ_WRITE
        assert driver.rights(block.address, 1) == libvmm.Rights.READ, "the block's own"
        pool.set_peers({1: libvmm.Rights.READ_WRITE})
        later = pool.allocate(MIB)
        assert driver.rights(later.address, 1) == libvmm.Rights.READ_WRITE
        later.free()
        for wrong in ({}, {0: libvmm.Rights.READ}, {99: libvmm.Rights.READ}):
            with pytest.raises(libvmm.InvalidArgument):
                manager.set_peers(wrong)
        for wrong in (1, [1], {1: "read"}, {"1": libvmm.Rights.READ}):
            with pytest.raises(TypeError):
                pool.set_peers(wrong)
        block.free()
        with pytest.raises(libvmm.UnknownAddress):
            block.set_access({1: libvmm.Rights.READ})


def test_rights_of_a_block_of_a_pool(two_devices):
    """A block that shares no mapping has rights of its own; others are refused in words of
    vmm.h."""
    driver = two_devices
    with libvmm.Pool(driver) as pool:
        small, whole = pool.allocate(4096), pool.allocate_dedicated(MIB)
        whole.set_access({1: libvmm.Rights.READ})
        assert driver.rights(whole.address, 1) == libvmm.Rights.READ
        assert driver.rights(small.address, 1) == libvmm.Rights.NONE
        with pytest.raises(libvmm.NotSupported, match=r"Pool\.allocate_dedicated\(\)"):
            small.set_access({1: libvmm.Rights.READ})
        for wrong in ({}, {0: libvmm.Rights.READ}, {99: libvmm.Rights.READ}):
            with pytest.raises(libvmm.InvalidArgument):
                whole.set_access(wrong)
        assert driver.rights(whole.address, 1) == libvmm.Rights.READ
        whole.free()
        with pytest.raises(libvmm.UnknownAddress):
            whole.set_access({1: libvmm.Rights.READ})
        with pytest.raises(libvmm.InvalidArgument):
            pool.allocate_dedicated(0)
        again = pool.allocate_dedicated(MIB)
        assert driver.rights(again.address, 1) == libvmm.Rights.NONE
        again.free()
        small.free()
        pool.validate()


def test_devices_that_are_not_there():
    with libvmm.Driver("fake") as driver:
        with pytest.raises(libvmm.InvalidArgument, match="no such device.*; not '0 and 63'"):
            driver.link(0, 63)
    with libvmm.Driver("host") as driver:
        with pytest.raises(libvmm.NotSupported):
            driver.link(0, 0)
        with pytest.raises(libvmm.NotSupported):
            driver.topology()


def test_the_module_is_imported_on_its_own():
    """`import libvmm` does not load it, and a child needs no more than its import."""
    words = "import sys, libvmm; print('libvmm.share' in sys.modules); import libvmm.share"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_handle_larger_than_the_memory():
    """The one handle is the last one, which is smaller."""
    with (
        libvmm.Driver("host") as driver,
        share.export(driver, 4 * MIB, handle_bytes=1 << 63) as lent,
    ):
        assert lent.size == 4 * MIB and lent.info().parts == 1


def test_a_secret_leaves_no_copy_behind():
    secret = bytearray(share.make_secret())
    with share._options(secret, 10) as options:
        made = options._obj
        assert bytes(made.secret) == secret
    assert bytes(made.secret) == bytes(32)
    with pytest.raises(libvmm.InvalidArgument):
        with share._options(secret[:31], 10):
            pass


@pytest.mark.parametrize(("given", "shown"), [(64, "64"), (-1, "-1")])
def test_flags_that_there_are_not_are_named(given, shown):
    with libvmm.Driver("host") as driver:
        for name, call in (
            ("kind", lambda: share.export(driver, "2MiB", kind=given)),
            ("shareable", lambda: libvmm.Manager(driver, shareable=given)),
        ):
            with pytest.raises(libvmm.InvalidArgument) as raised:
                call()
            said = str(raised.value)
            assert said.startswith(f"{name}: flags of libvmm.share.Kind (") and "POSIX_FD" in said
            assert said.endswith(f" is wanted, and {shown} was given")


def test_a_wrong_path_is_named_with_the_reason(tmp_path):
    os.chmod(tmp_path, 0o700)
    (tmp_path / "open").mkdir(mode=0o755)
    os.chmod(tmp_path / "open", 0o755)
    os.symlink(tmp_path, tmp_path / "link")
    (tmp_path / "taken").touch()
    secret, long = share.make_secret(), "x" * 64
    for name, at, why in (
        ("none/socket", "none", "does not exist: create it with mode 0700"),
        ("open/socket", "open", "must have mode 0700, not 0755"),
        ("link/socket", "link", "is a symbolic link or another file"),
        ("taken/socket", "taken", "is a symbolic link or another file"),
        (long, long, "a name of at most 63 bytes, not 64"),
        ("", "", "ends in a name"),
    ):
        for call in (share.Listener, lambda path: share.connect(path, secret)):
            with pytest.raises(libvmm.Error, match=f"{why}.*: '{tmp_path}/{at}'$"):
                call(f"{tmp_path}/{name}")
    with pytest.raises(libvmm.InUse, match=f"exists: remove it .*: '{tmp_path}/taken'$"):
        share.Listener(tmp_path / "taken")
    with pytest.raises(libvmm.Error, match=f"does not exist: start .*: '{tmp_path}/absent'$"):
        share.connect(tmp_path / "absent", secret)
