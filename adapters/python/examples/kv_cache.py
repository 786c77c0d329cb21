# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Two models serve requests in one process and share one budget of memory for their caches.

    python kv_cache.py [--driver host]

Each model has one growable range: a segment for the keys and one for the values of each layer, so
that one tensor [segment][page][token][channel] shows all of it at an address that never changes.
Pages of tokens are handed to requests; the range grows when a model needs more pages than it has,
and shrinks when its last pages are free. What one model gives up serves the other at once: no
memory goes back to the driver and comes again. A request that finds no memory waits in line.

Every page is written when it is handed out and checked when its request ends.
"""

import argparse
from collections import deque

import libvmm
import numpy
from libvmm.growable import Growable

TOKENS_PER_PAGE = 16
MIB = 1 << 20


class Model:
    """A model's cache: pages of all layers' keys and values, in one range."""

    def __init__(self, name, manager, layers, channels, pages_max):
        self.name = name
        self.page_bytes = TOKENS_PER_PAGE * channels * 2
        self.range = Growable(manager, pages_max * self.page_bytes, segments=2 * layers)
        # Over all the addresses, once: as a captured graph would have it.
        self.cache = numpy.asarray(
            self.range.full_view("uint16", (pages_max, TOKENS_PER_PAGE, channels))
        )
        self.pages = 0  # that there is memory for
        self.free = []  # of those
        self.requests = {}  # the pages of each

    def start(self, request, count):
        """Takes pages for a request, growing where there are too few. Raises OutOfMemory."""
        missing = count - len(self.free)
        if missing > 0:
            self.range.grow((self.pages + missing) * self.page_bytes)
            self.free += range(self.pages, self.pages + missing)
            self.pages += missing
        self.free.sort()
        taken, self.free = self.free[:count], self.free[count:]
        for page in taken:
            self.cache[:, page] = request
        self.requests[request] = taken

    def end(self, request):
        """Checks the request's pages, and gives the free ones at the end of the range up."""
        taken = self.requests.pop(request)
        for page in taken:
            assert (self.cache[:, page] == request).all(), "a page of another request"
        self.free = sorted(self.free + taken)
        while self.free and self.free[-1] == self.pages - 1:
            self.free.pop()
            self.pages -= 1
        self.range.shrink(self.pages * self.page_bytes)

    def close(self):
        del self.cache
        self.range.close()


def serve(manager, models, schedule):
    print(
        f"{'step':>4} {'event':<22}"
        + "".join(f"{model.name + ' pages':>12}{'MiB':>6}" for model in models)
        + f"{'held MiB':>10}{'made':>6}{'waiting':>9}"
    )
    waiting = deque()
    for step, (kind, model, request, count) in enumerate(schedule, 1):
        if kind == "start":
            event = f"{model.name} starts {request} ({count})"
            waiting.append((model, request, count))
        else:
            event = f"{model.name} ends {request}"
            model.end(request)
        for _ in range(len(waiting)):  # in order, but no request waits for a larger one before it
            one = waiting.popleft()
            try:
                one[0].start(*one[1:])
            except libvmm.OutOfMemory:
                waiting.append(one)
        now = manager.statistics()
        print(
            f"{step:>4} {event:<22}"
            + "".join(f"{each.pages:>12}{each.range.physical_bytes // MIB:>6}" for each in models)
            + f"{now.held_bytes // MIB:>10}{now.created_count:>6}{len(waiting):>9}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--driver", default="host", help="one whose memory numpy can show")
    arguments = parser.parse_args()
    with libvmm.Driver(arguments.driver) as driver:
        with libvmm.Manager(driver, budget=96 * MIB) as manager:
            large = Model("large", manager, layers=4, channels=1024, pages_max=4096)
            small = Model("small", manager, layers=2, channels=512, pages_max=4096)
            addresses = large.range.address, small.range.address
            serve(
                manager,
                (large, small),
                [
                    ("start", large, 1, 64),
                    ("start", small, 2, 128),
                    ("start", large, 3, 192),
                    ("start", small, 4, 512),
                    ("end", large, 3, 0),
                    ("start", small, 5, 256),
                    ("start", large, 6, 256),
                    ("end", small, 4, 0),
                    ("end", small, 5, 0),
                    ("end", large, 1, 0),
                    ("end", small, 2, 0),
                    ("end", large, 6, 0),
                ],
            )
            assert (large.range.address, small.range.address) == addresses
            now = manager.statistics()
            print(
                f"{now.created_count} handles were made and {now.reused_handle_count} times one "
                f"served again; at most {now.peak_held_bytes // MIB} MiB were held"
            )
            large.close()
            small.close()


if __name__ == "__main__":
    main()
