# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""The time from the end of a tenant's processes to the last change of its memory by the device:
what `vmm-owner --quiet-ms` has to exceed (docs/market.md).

    python3 market_quiet.py [--device 0] [--rounds 30] [--mib 1024]

A process imports memory by its descriptor, as a tenant does, and queues seconds of work that writes
it; half of the rounds fork a child that holds the driver's descriptors and the witness. Then it is
killed with SIGKILL. Once its pidfd and its witness have ended, the memory is overwritten by this
process as fast as it can, and the last time at which the dead process's words were found is noted.
Prints a row a round, and the largest delay. Needs the CUDA driver and Python 3.9; no libvmm.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import os
import select
import signal
import socket
import time

FOREIGN, OWN = 0xDEAD, 0x600D
WATCH_S = 1.0  # after the ends


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Driver:
    """The CUDA driver with a context on the device. A fork before it is what a tenant's is."""

    def __init__(self, device: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.device = device
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name} returned {code}")

    def create(self, size: int) -> int:
        properties = Properties(type=1, handle_types=1, location=Location(1, self.device))
        handle, descriptor = ctypes.c_ulonglong(), ctypes.c_int()
        self.call(
            "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties),
            ctypes.c_ulonglong(0),
        )  # fmt: skip
        self.call(
            "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1,
            ctypes.c_ulonglong(0),
        )  # fmt: skip
        return descriptor.value

    def map(self, descriptor: int, size: int) -> ctypes.c_ulonglong:
        handle, address = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        self.call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), 1
        )
        nothing, bytes_ = ctypes.c_ulonglong(0), ctypes.c_size_t(size)
        self.call(
            "cuMemAddressReserve", ctypes.byref(address), bytes_, ctypes.c_size_t(0), nothing,
            nothing,
        )  # fmt: skip
        self.call("cuMemMap", address, bytes_, ctypes.c_size_t(0), handle, nothing)
        both = Access(Location(1, self.device), 3)
        self.call("cuMemSetAccess", address, bytes_, ctypes.byref(both), ctypes.c_size_t(1))
        return address

    def fill(self, address: ctypes.c_ulonglong, value: int, size: int) -> None:
        self.call("cuMemsetD32Async", address, value, ctypes.c_size_t(size // 4), None)

    def words(self, address: ctypes.c_ulonglong, size: int) -> set[int]:
        """A word of each of 64 parts."""
        found, word = set(), ctypes.c_uint()
        for part in range(64):
            at = ctypes.c_ulonglong(address.value + part * (size // 64))
            self.call("cuMemcpyDtoH_v2", ctypes.byref(word), at, ctypes.c_size_t(4))
            found.add(word.value)
        return found


def tenant(end: socket.socket, device: int, size: int, forks: bool) -> None:
    """Runs until it is killed. `end` is the witness, and carries the descriptor."""
    _, ancillary, _, _ = end.recvmsg(1, socket.CMSG_SPACE(4))
    descriptor = array.array("i", ancillary[0][2])[0]
    driver = Driver(device)
    address = driver.map(descriptor, size)
    driver.fill(address, FOREIGN, size)
    driver.call("cuCtxSynchronize")
    if forks and os.fork() == 0:
        time.sleep(0.5)  # the last holder of the descriptors
        os._exit(0)
    end.send(b"r")
    while True:  # the queue is always full
        driver.fill(address, FOREIGN, size)


def run_round(options: argparse.Namespace, forks: bool) -> tuple[float, float]:
    """Milliseconds from the kill to the ends, and from these to the last foreign word."""
    size = options.mib << 20
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()  # before the driver: this process's is opened below
    if child == 0:
        here.close()
        tenant(there, options.device, size, forks)
    there.close()
    pid_end = os.pidfd_open(child)
    result, writer = os.pipe()
    watcher = os.fork()  # a fresh process: the driver does not outlive a fork
    if watcher != 0:
        os.close(writer)
        with os.fdopen(result) as lines:
            row = lines.read().split(",")
        _, status = os.waitpid(watcher, 0)
        os.close(pid_end)
        here.close()
        os.waitpid(child, 0)
        if status != 0 or len(row) != 2:
            raise SystemExit("a round failed")
        return float(row[0]), float(row[1])
    driver = Driver(options.device)
    descriptor = driver.create(size)
    address = driver.map(descriptor, size)
    here.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    here.recv(1)
    time.sleep(0.2)
    killed = time.monotonic()
    os.kill(child, signal.SIGKILL)
    select.select([pid_end], [], [])
    while here.recv(1):
        pass  # until the last process has closed its witness
    ended = last = time.monotonic()
    while time.monotonic() < ended + WATCH_S:
        driver.fill(address, OWN, size)
        driver.call("cuCtxSynchronize")
        if FOREIGN in driver.words(address, size):
            last = time.monotonic()
    os.write(writer, f"{(ended - killed) * 1e3:.3f},{(last - ended) * 1e3:.3f}".encode())
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    print("forked child,ms to the ends,ms from the ends to the last foreign word", flush=True)
    delays = []
    for number in range(options.rounds):
        forks = number % 2 == 1
        ends, delay = run_round(options, forks)
        delays.append(delay)
        print(f"{int(forks)},{ends:.3f},{delay:.3f}", flush=True)
    print(f"# {options.rounds} rounds, the largest delay {max(delays):.3f} ms")


if __name__ == "__main__":
    main()
