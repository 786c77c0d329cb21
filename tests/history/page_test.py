# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the page that vmm-history writes loads in a browser without an error, draws what lies
where, and answers to mouse and keys, in light and dark. Method: headless Chromium over a pipe of
its own, with no network; the page's pixels and what it says are read back and compared with the
history's facts.

usage: page_test.py VMM_HISTORY WRITE_SAMPLE
"""

import base64
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import BOXES, BROWSER, WHY_NONE, Browser, pixels
from made import hostile, made_history

TOOL, SAMPLE = sys.argv[1:3]
if not BROWSER:
    print("skipped: " + WHY_NONE)
    sys.exit(0)
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="vmm_page_"))


def page_of(*names):
    out = FOLDER / ("_".join(names) + ".html")
    subprocess.run(
        [TOOL, "page", *(FOLDER / name for name in names), "--out", out],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return out


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([SAMPLE, FOLDER], check=True)
        text = subprocess.run(
            [TOOL, "summary", FOLDER / "pool.history"], check=True, capture_output=True, text=True
        ).stdout
        cls.facts = dict(line.strip().rsplit(": ", 1) for line in text.splitlines())
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(FOLDER)

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def data(self, pane=0):
        return self.browser.ask("({...panes[%d].el.dataset})" % pane)

    def shot(self):
        box = self.browser.ask(BOXES)[0]
        clip = dict(zip(("x", "y", "width", "height"), box), scale=1)
        png = self.browser.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        return pixels(base64.b64decode(png)), box

    def colour(self, name):
        parts = "(c => [c & 255, c >> 8 & 255, c >> 16 & 255])(colours()." + name + ")"
        return tuple(self.browser.ask(parts))

    def text(self, where):
        return self.browser.ask("document.querySelector('%s').textContent" % where)

    def focus(self):
        self.browser.ask("panes[0].map.focus()")

    def test_it_says_what_the_allocator_said(self):
        self.browser.open(page_of("pool.history"))
        data = self.data()
        self.assertEqual(int(data["cursor"]), int(self.facts["events"]) - 1)
        self.assertEqual(data["live"], self.facts["live_bytes"])
        self.assertEqual(data["held"], self.facts["footprint_bytes"])
        self.assertEqual(self.browser.ask("panes[0].h.leftOut"), 0)
        wrong = self.browser.ask(
            "(() => { const p = panes[0]; for (let i = 0; i < p.h.n; i += 97) "
            "{ const sums = p.totals(i), each = p.recount(i); "
            "for (const name in each) if (sums[name] !== each[name]) return name + i; } "
            "return ''; })()"
        )
        self.assertEqual(wrong, "", "the sums are those of the rectangles at every event")
        totals = self.browser.ask("panes[0].totals(panes[0].h.n - 1)")
        self.assertEqual(totals["mapped"], int(self.facts["mapped_bytes"]))
        self.assertEqual(totals["stale"], int(self.facts["stale_bytes"]))

    def test_it_draws_every_kind(self):
        self.browser.open(page_of("pool.history"))
        counts, box = self.shot()
        for name in ("live", "free", "stranded", "stale", "suspended"):
            self.assertGreater(counts.get(self.colour(name), 0), 50, name)
        self.assertGreater(
            counts[self.colour("live")] + counts[self.colour("live2")], box[2] * box[3] / 20
        )
        self.assertGreater(len(counts), 4)

    def test_keys(self):
        self.browser.open(page_of("pool.history"))
        self.focus()
        self.browser.key("Home")
        self.assertEqual(self.data()["cursor"], "0")
        for _ in range(3):
            self.browser.key("ArrowRight")
        self.browser.key("ArrowLeft")
        self.assertEqual(self.data()["cursor"], "2")
        self.browser.key("g", "g")
        cursor = int(self.data()["cursor"])
        self.assertEqual(self.browser.ask("panes[0].h.kind[%d]" % cursor), 32)
        self.assertIn("for stream", self.text(".request"))
        self.browser.key("s", "s")
        cursor = int(self.data()["cursor"])
        self.assertEqual(self.browser.ask("panes[0].h.kind[%d]" % cursor), 37)
        self.assertIn("the budget would be exceeded", self.text(".now"))
        wide = float(self.data()["x1"]) - float(self.data()["x0"])
        self.browser.key("+", "+")
        self.assertLess(float(self.data()["x1"]) - float(self.data()["x0"]), wide * 0.6)
        self.browser.key("0", "0")
        self.assertEqual(float(self.data()["x1"]), int(self.facts["events"]))
        self.browser.key("c", "c")
        self.assertEqual(self.browser.ask("byWhat"), "stream")
        self.browser.key("t", "t")
        self.assertIs(self.browser.ask("byTime"), True)
        self.browser.key("?", "?")
        self.assertIs(self.browser.ask("document.getElementById('keys').open"), True)

    def test_mouse(self):
        self.browser.open(page_of("pool.history"))
        _, (x, y, width, height) = self.shot()
        self.browser.click(x + width / 2, y + height * 0.9)
        middle = int(self.facts["events"]) / 2
        self.assertAlmostEqual(int(self.data()["cursor"]), middle, delta=middle / 50)
        before = self.data()
        self.browser.mouse("mouseWheel", x + width / 2, y + height / 2, deltaX=0, deltaY=-600)
        self.browser.settle()
        zoomed = self.data()
        wide = float(zoomed["x1"]) - float(zoomed["x0"])
        self.assertLess(wide, 0.5 * (float(before["x1"]) - float(before["x0"])))
        left = {"button": "left", "clickCount": 1}
        self.browser.mouse("mousePressed", x + width / 2, y + height / 2, **left)
        self.browser.mouse("mouseMoved", x + width / 4, y + height / 2, button="left", buttons=1)
        self.browser.mouse("mouseReleased", x + width / 4, y + height / 2, **left)
        self.browser.settle()
        wanted = float(zoomed["x0"]) + wide / 4
        self.assertAlmostEqual(float(self.data()["x0"]), wanted, delta=wide / 20)
        self.assertEqual(self.data()["cursor"], zoomed["cursor"], "dragging chooses nothing")

    def test_colours_and_dark(self):
        self.browser.open(page_of("pool.history"))
        self.browser.ask("turn('colours'); turn('colours')")
        self.browser.settle()
        counts, _ = self.shot()
        for which in ("some[0]", "some[1]"):
            self.assertGreater(counts.get(self.colour(which), 0), 50, which)
        light = self.colour("ground")
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        self.browser.call("Emulation.setEmulatedMedia", features=[dark])
        self.browser.settle()
        counts, _ = self.shot()
        self.assertNotEqual(self.colour("ground"), light)
        self.assertGreater(counts.get(self.colour("ground"), 0), counts.get(light, 0))
        self.browser.call("Emulation.setEmulatedMedia", features=[])

    def test_two_side_by_side_on_one_scale(self):
        self.browser.open(page_of("pool.history", "manager.history"))
        self.assertEqual(self.browser.ask("panes.length"), 2)
        boxes = self.browser.ask(BOXES)
        self.assertEqual(boxes[0][1], boxes[1][1])
        self.assertLess(boxes[0][0] + boxes[0][2], boxes[1][0])
        peak = self.browser.ask("Math.max(...panes.map(p => p.h.peak))")
        self.assertEqual(self.browser.ask("scale"), peak)
        self.assertGreater(float(self.data(1)["live"]), 0)

    def test_pytorchs_snapshot_beside_ours(self):
        theirs = FOLDER / "torch.pickle"
        subprocess.run(
            [TOOL, "memory_viz", FOLDER / "pool.history", "--out", theirs],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        self.browser.open(page_of("pool.history", "torch.pickle"))
        ours, other = self.data(0), self.data(1)
        self.assertIn("PyTorch", self.browser.ask("panes[1].el.querySelector('h2').textContent"))
        self.assertEqual(ours["live"], other["live"])
        self.assertEqual(self.browser.ask("panes[1].h.leftOut"), 0)
        self.assertEqual(
            self.browser.ask("panes[1].totals(panes[1].h.n - 1).mapped"),
            int(self.facts["mapped_bytes"]),
        )

    def test_a_frame_is_short_and_the_picture_is_the_same(self):
        """However many slices a picture takes, its pixels are those of one that took one."""
        self.browser.open(page_of("pool.history"))
        whole = self.browser.ask("""(() => { const p = panes[0], w = p.map.width, h = p.map.height;
          const paint = slice => { const job = p.start(colours(), w, h, "");
            let turns = 1; while (!p.goOn(job, slice)) ++turns;
            return [turns, job.out.reduce((sum, x) => (sum * 31 + x) % 1000003, 0)]; };
          const one = paint(Infinity), many = paint(0);
          return {one, many}; })()""")
        self.assertEqual(whole["one"][0], 1)
        self.assertGreater(whole["many"][0], 1)
        self.assertEqual(whole["one"][1], whole["many"][1])

    def test_what_was_lost_is_said(self):
        self.browser.open(page_of("lost.history"))
        self.assertIn("older ones are lost", self.text(".now"))
        self.assertEqual(self.browser.ask("panes[0].h.leftOut"), 0)

    def test_whatever_a_file_says_is_shown_and_does_nothing(self):
        """Ready, drawn, and answering to keys; no name of it becomes a part of the page."""
        for name, parts in hostile().items():
            with self.subTest(name):
                made_history(FOLDER / "made.history", **parts)
                self.browser.open(page_of("made.history"))
                self.focus()
                for key in ("Home", "g", "s", "ArrowRight", "t", "c", "c", "+", "0", "End"):
                    self.browser.key(key, key if len(key) == 1 else None)
                self.browser.ask("panes[0].pick({y: 0})")
                self.assertEqual(self.browser.ask("document.title"), "vmm: memory over time")
                self.assertEqual(
                    self.browser.ask(
                        "[document.scripts.length, document.images.length, "
                        "document.querySelectorAll('section :is(script, img, a, iframe)').length]"
                    ),
                    [1, 0, 0],
                )
                self.assertEqual(self.browser.complaints, [])

    def test_a_name_is_text(self):
        odd = FOLDER / '<b>"x".history'
        shutil.copy(FOLDER / "manager.history", odd)
        self.browser.open(page_of(odd.name))
        self.assertEqual(self.browser.ask("document.querySelectorAll('section b').length"), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
