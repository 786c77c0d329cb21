# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the page that vmm-fit writes shows the figures that vmm-fit prints, curves whose most are
these figures, each device at the height of its size and live memory at the peak by stack, wide and
on a phone. Method: headless Chromium without a network opens the pages of the shipped snapshot and
of a trace; texts and positions are compared with the JSON of the same program.

usage: page_test.py VMM_FIT TRACES SNAPSHOT
"""

import gzip
import itertools
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "history"))
import shapes
from browser import BROWSER, WHY_NONE, Browser

FIT, TRACES, SNAPSHOT = sys.argv[1:4]
if not BROWSER:
    print("skipped: " + WHY_NONE)
    sys.exit(0)
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="vmm_fit_page_"))
UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]
VERDICTS = {"yes": "fits", "no": "does not fit", "within_error": "within the error"}


def run(*arguments):
    return subprocess.run([FIT, *map(str, arguments)], capture_output=True, text=True, check=False)


def shown(count):
    """Bytes as the page has them: four digits, in the largest unit below."""
    power = 0
    while count >= 1024 and power < 4:
        count, power = count / 1024, power + 1
    if power == 0:
        return f"{count} B"
    whole = len(str(int(count)))
    return f"{count:.{max(4 - whole, 0)}f} {UNITS[power]}"


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(FOLDER)

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def open(self, *words, code=0):
        page = FOLDER / "page.html"
        done = run(*words, "--json", "--page", page)
        self.assertEqual(done.returncode, code, done.stderr)
        self.browser.shown = None
        self.browser.open(page)
        return json.loads(done.stdout)

    def rows(self):
        return self.browser.ask(
            "[...document.querySelectorAll('#verdicts tr')]"
            ".map(row => [...row.children].map(cell => cell.textContent))"
        )

    def test_figures_and_verdicts(self):
        said = self.open(SNAPSHOT)
        (_, *names), held, beside, *devices = self.rows()
        self.assertEqual(names, ["native", "expandable", "async", "vmm"])
        for name, cell, total in zip(names, held[1:], beside[1:]):
            of = said["allocators"][name]
            most = of.get("held_bytes", of.get("held_bytes_high"))
            self.assertTrue(cell.endswith(shown(most)), (name, cell, most))
            self.assertEqual(total, shown(most + said["beside"]["bytes"]))
        self.assertEqual([row[0] for row in devices], list(said["fits"]))
        for device, *cells in devices:
            for name, cell in zip(names, cells):
                verdict = VERDICTS[said["fits"][device][name]]
                self.assertTrue(cell.startswith(verdict), (device, cell))

    def test_curves_reach_the_figures(self):
        for recording in (SNAPSHOT, pathlib.Path(TRACES) / "maskrcnn_train.trace.gz"):
            said = self.open(recording)
            most = self.browser.ask(
                "Object.fromEntries(Object.entries(panes[0].data)"
                ".map(([k, v]) => [k, Math.max(...v)]))"
            )
            counts = self.browser.ask("Object.values(panes[0].data).map(each => each.length)")
            self.assertEqual(len(set(counts)), 1)
            self.assertEqual(most["live"], said["peak_live_bytes"])
            for name in ("native", "expandable", "vmm"):
                self.assertEqual(most[name], said["allocators"][name]["held_bytes"], name)
            band = said["allocators"]["async"]
            self.assertAlmostEqual(most["async_low"] / band["held_bytes_low"], 1, delta=1e-9)
            self.assertAlmostEqual(most["async_high"] / band["held_bytes_high"], 1, delta=1e-9)
            live = "live " + shown(said["peak_live_bytes"])
            self.assertIn(live, self.browser.boxes("#state")[0][0])

    def check_places(self):
        """Devices and numbers of the axis stand at the height of their value."""
        ((_, left, right, top, bottom),) = self.browser.boxes(".chart")
        most = self.browser.ask("panes[0].top")

        def place(value):
            return bottom - value / most * (bottom - top)

        rows = self.browser.boxes(".axis.y span")
        self.assertGreaterEqual(len(rows), 4)
        for text, _, end, above, below in rows[1:]:
            number, unit = text.split()
            value = float(number) * 1024 ** UNITS.index(unit)
            self.assertAlmostEqual((above + below) / 2, place(value), delta=3, msg=text)
            self.assertLess(end, left)
        devices = self.browser.boxes(".over span")
        self.assertGreaterEqual(len(devices), 1)
        for text, begin, end, _, below in devices:
            value = float(text.removesuffix("GiB")) * (1 << 30)
            self.assertAlmostEqual(below, place(value), delta=3, msg=text)
            self.assertGreater(begin, left)
            self.assertLess(end, right)

    def test_places(self):
        self.open(SNAPSHOT)
        self.check_places()

    def test_live_memory_by_stack(self):
        said = self.open(SNAPSHOT)
        rows = self.browser.boxes(".site")
        self.assertEqual(len(rows), len(said["live_at_peak"]))
        widths = self.browser.boxes(".site .track i")
        whole = self.browser.boxes(".site .track")
        for row, bar, track, of in zip(rows, widths, whole, said["live_at_peak"]):
            self.assertTrue(row[0].startswith(shown(of["bytes"])), row[0])
            self.assertIn(of["stack"][0], row[0])
            share = (bar[2] - bar[1]) / (track[2] - track[1])
            self.assertAlmostEqual(share, of["bytes"] / said["peak_live_bytes"], delta=0.01)

    def test_cost_of_fragmentation(self):
        said = self.open(SNAPSHOT)
        texts = [each[0] for each in self.browser.boxes("#costs > :nth-child(3n)")]
        for name, text in zip(("native", "expandable", "async", "vmm"), texts):
            of = said["allocators"][name]
            cost = of.get("held_bytes", of.get("held_bytes_high")) - said["peak_live_bytes"]
            self.assertIn(shown(cost) + " more than", text)

    def test_a_hidden_curve_takes_no_room(self):
        """Without the band of cudaMallocAsync the axis ends above the other allocators."""
        said = self.open(SNAPSHOT)
        whole = self.browser.ask("panes[0].top")
        click = "document.querySelectorAll('.legend button')[2].click()"
        self.browser.ask(click)
        self.browser.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        most = max(said["allocators"][name]["held_bytes"] for name in ("native", "expandable"))
        top = self.browser.ask("panes[0].top")
        self.assertLess(top, whole)
        self.assertGreater(top, most + said["beside"]["bytes"])
        self.check_places()
        self.browser.ask(click)
        self.assertEqual(self.browser.ask("panes[0].top"), whole)

    def test_a_recording_without_events(self):
        path = FOLDER / "listed.pickle"
        path.write_bytes(pickle.dumps(shapes.small_program(12).listed(), 4))
        self.open(path, "--device", "24GiB", code=2)
        self.assertIn("the peak is not known", self.browser.boxes("#name")[0][0])
        self.assertEqual(set(self.rows()[-1][1:]), {"not known"})

    def test_keys_and_zoom(self):
        self.open(SNAPSHOT)
        self.browser.ask("panes[0].timeline.canvas.focus()")
        peak = self.browser.boxes("#state")[0][0]
        self.browser.key("Home")
        self.assertTrue(self.browser.boxes("#state")[0][0].startswith("0 ns:"))
        labels = [each[0] for each in self.browser.boxes(".axis.x span")]
        self.browser.key("+", "+")
        self.browser.key("+", "+")
        self.assertNotEqual([each[0] for each in self.browser.boxes(".axis.x span")], labels)
        self.browser.key("0", "0")
        self.assertEqual([each[0] for each in self.browser.boxes(".axis.x span")], labels)
        self.browser.key("p", "p")
        self.assertEqual(self.browser.boxes("#state")[0][0], peak)

    def test_time_or_requests(self):
        """The axis has the times of the events, or their order; a trace has no times."""
        self.open(SNAPSHOT)
        with gzip.open(SNAPSHOT) as file:
            events = pickle.load(file)["device_traces"][0]
        width_ns = self.browser.ask("panes[0].width")
        most_ns = (events[-1]["time_us"] - events[0]["time_us"]) * 1000
        self.assertLessEqual(width_ns, most_ns)
        self.assertGreater(width_ns, 0.9 * most_ns)
        self.assertTrue(self.browser.boxes(".axis.x span")[-1][0].endswith("s"))
        self.browser.ask(
            "(box => { box.value = 'request'; box.onchange(); })(document.getElementById('across'))"
        )
        self.browser.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        width, last = map(self.browser.ask, ("panes[0].width", "panes[0].data.request.at(-1)"))
        self.assertEqual(width, last)
        self.assertTrue(self.browser.boxes("#state")[0][0].startswith("request "))
        self.open(pathlib.Path(TRACES) / "beam_kv.trace.gz")
        self.assertTrue(self.browser.ask("document.getElementById('scale').hidden"))
        self.assertTrue(self.browser.boxes("#state")[0][0].startswith("request "))

    def made(self, name, size):
        program = shapes.Recording(12)
        program.filled(shapes.BASE, size, line=7)
        path = FOLDER / name
        path.write_bytes(pickle.dumps(shapes.snapshot([program]), 4))
        return path

    def test_ranks(self):
        ranks = [self.made(f"rank{i}.pickle", (100 + 50 * i) * shapes.MIB) for i in range(2)]
        said = self.open(*ranks, "--device", "700MiB")["ranks"]
        rows = [each[0] for each in self.browser.boxes("#ranks tr")]
        self.assertEqual(len(rows), 3)
        for row, each in zip(rows[1:], said):
            self.assertIn(shown(each["allocators"]["native"]["held_bytes"]), row)
        self.assertIn("rank0.pickle", self.browser.boxes("#name")[0][0])
        self.browser.ask("document.querySelectorAll('#ranks button')[1].click()")
        self.assertIn("rank1.pickle", self.browser.boxes("#name")[0][0])
        self.assertEqual(self.rows()[1][1], shown(150 * shapes.MIB))
        self.assertEqual(len(self.browser.boxes("#verdicts tr")), 4)

    def test_the_largest_batch(self):
        files = [self.made(f"batch{n}.pickle", n * 16 * shapes.MIB) for n in (2, 4)]
        said = self.open(*files, "--batch", "2,4", "--device", "1GiB", "--beside", "0")
        best = said["largest_batch"]["1GiB"]["native"]["best"]
        self.assertEqual(best, 64)
        name = self.browser.boxes("#name")[0][0]
        self.assertIn("batch 64, the largest on 1GiB under native", name)
        _, held, batches, *_ = self.rows()
        self.assertEqual(held[1], shown(1 << 30))
        self.assertTrue(batches[1].startswith("64 (62 to 65)"), batches)

    def test_a_phones_width(self):
        self.browser.be_a_phone()
        # Names of ranks and of close devices, which stand side by side.
        snapshot = pathlib.Path(SNAPSHOT).read_bytes()
        ranks = [FOLDER / f"a_long_name_of_rank{i}.pickle.gz" for i in range(2)]
        for each in ranks:
            each.write_bytes(snapshot)
        try:
            self.open(*ranks, "--device", "20GiB", "--device", "20.4GiB")
            for where in ("#ranks tr > *, #ranks button", ".over span"):
                boxes = [(*each[1:], each[0]) for each in self.browser.boxes(where) if each[0]]
                for one, other in itertools.combinations(boxes, 2):
                    apart = one[0] >= other[1] or other[0] >= one[1]
                    apart = apart or one[2] >= other[3] or other[2] >= one[3]
                    self.assertTrue(apart or one[4] == other[4], (one, other))
            self.open(SNAPSHOT)
            self.assertEqual(self.browser.ask("document.documentElement.scrollWidth"), 390)
            where = "canvas, button, td, th, .site, .row > *"
            for text, left, right, *_ in self.browser.boxes(where):
                self.assertGreaterEqual(left, 0, text)
                self.assertLessEqual(right, 390, text)
            self.check_places()
        finally:
            self.browser.be_wide()

    def test_names_are_text(self):
        """A file name and a stack that end a script and begin another."""
        with gzip.open(SNAPSHOT) as file:
            snapshot = pickle.load(file)
        mark = "</script><script>document.title='taken'</script><b>"
        for each in snapshot["device_traces"][0]:
            if each.get("frames"):
                each["frames"][-1]["name"] = mark
        odd = FOLDER / "<b>odd.pickle"
        odd.write_bytes(pickle.dumps(snapshot, 4))
        self.open(odd)
        self.assertEqual(self.browser.ask("document.title"), "vmm: will it fit?")
        self.assertIn(mark, self.browser.boxes("#sites")[0][0])
        self.assertIn("<b>odd.pickle", self.browser.boxes("#name")[0][0])
        self.assertEqual(self.browser.ask("document.scripts.length"), 1)

    def test_wrong_uses(self):
        page = FOLDER / "none.html"
        for arguments, why in (
            ((SNAPSHOT, "--page", SNAPSHOT), "is the recording: --page takes another file"),
            ((SNAPSHOT, "--page", FOLDER / "no folder" / "x"), "No such file or directory"),
        ):
            done = run(*arguments)
            self.assertEqual(done.returncode, 3)
            self.assertIn(why, done.stderr)
        self.assertFalse(page.exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
