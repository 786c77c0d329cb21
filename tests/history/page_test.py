# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the page that vmm-history writes loads in a browser without an error, opens at the peak,
draws the memory with axes whose numbers stand where they belong, has one selection at a time, and
obeys mouse and keys, in light and dark, wide and on a phone. Method: headless Chromium over a pipe
of its own, with no network; the page's pixels, texts and positions are read back and compared with
the history's facts.

usage: page_test.py VMM_HISTORY WRITE_SAMPLE
"""

import json
import shutil
import sys
import unittest

import tool
from browser import BOXES, BROWSER, WHY_NONE, Browser
from made import hostile, made_history
from tool import FOLDER, export, facts

if not BROWSER:
    print("skipped: " + WHY_NONE)
    sys.exit(0)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tool.begin()
        cls.facts = facts("pool.history")
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        tool.end()

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def data(self, pane=0):
        return self.browser.ask("({...panes[%d].el.dataset})" % pane)

    def shot(self):
        box = self.browser.ask(BOXES)[0]
        clip = dict(zip(("x", "y", "width", "height"), box), scale=1)
        return self.browser.colours(clip), box

    def colour(self, name):
        parts = "(c => [c & 255, c >> 8 & 255, c >> 16 & 255])(colours()." + name + ")"
        return tuple(self.browser.ask(parts))

    def text(self, where):
        return self.browser.ask("document.querySelector('%s').textContent" % where)

    def focus(self):
        self.browser.ask("panes[0].map.focus()")

    def test_it_says_what_the_allocator_said(self):
        self.browser.open(export("page", "pool.history"))
        self.focus()
        self.browser.key("End")
        data = self.data()
        self.assertEqual(int(data["cursor"]), int(self.facts["events"]) - 1)
        self.assertEqual(data["live"], self.facts["live_bytes"])
        self.assertEqual(data["held"], self.facts["held_bytes"])

    def test_it_draws_every_kind(self):
        self.browser.open(export("page", "pool.history"))
        counts, box = self.shot()
        for name in ("live", "free", "stranded", "stale", "suspended"):
            self.assertGreater(counts.get(self.colour(name), 0), 50, name)
        self.assertGreater(
            counts[self.colour("live")] + counts[self.colour("edge")], box[2] * box[3] / 20
        )
        self.assertGreater(len(counts), 4)

    def test_keys(self):
        self.browser.open(export("page", "pool.history"))
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
        self.assertEqual(self.text(".chosen"), "Selected event")
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
        self.browser.open(export("page", "pool.history"))
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

    def most_live(self, name):
        """The most live memory by the Perfetto file, which is made without the page."""
        events = json.loads(export("perfetto", name).read_text())
        counters = [each["args"] for each in events if each["ph"] == "C"]
        return max(each["live"] for each in counters)

    def test_it_opens_at_the_peak(self):
        self.browser.open(export("page", "pool.history"))
        self.assertEqual(int(self.data()["live"]), self.most_live("pool.history"))
        self.assertIn("event " + f"{int(self.data()['cursor']):,} of", self.text(".now"))
        self.assertIn("held", self.text(".now"))
        self.focus()
        self.browser.key("End")
        self.browser.ask("[...document.querySelectorAll('.bar button')][0].click()")
        self.browser.settle()
        self.assertEqual(int(self.data()["live"]), self.most_live("pool.history"))

    def check_axes(self):
        """Each label of the axis of events, and of memory, stands at the place of its number."""
        ((_, left, right, top, bottom),) = self.browser.boxes("section:first-of-type .chart")
        x0, x1 = float(self.data()["x0"]), float(self.data()["x1"])
        marks = self.browser.boxes("section:first-of-type .axis.x span")
        self.assertGreaterEqual(len(marks), 3)
        for text, begin, end, *_ in marks:
            share = (int(text.replace(",", "")) - x0) / (x1 - x0)
            # A label at the right edge ends at its place.
            place = (begin + end) / 2 if share <= 0.93 else end
            self.assertAlmostEqual(place, left + share * (right - left), delta=3, msg=text)
            self.assertLessEqual(end, right + 20)
        most = self.browser.ask("panes[0].top")
        rows = self.browser.boxes("section:first-of-type .time .axis.y span")
        self.assertGreaterEqual(len(rows), 3)
        for text, _, end, above, below in rows:
            number, unit = (text + " MiB").split()[:2]
            self.assertEqual(unit, "MiB")
            place = bottom - float(number) * (1 << 20) / most * (bottom - top)
            self.assertAlmostEqual((above + below) / 2, place, delta=3, msg=text)
            self.assertLess(end, left)

    def test_axes(self):
        self.browser.open(export("page", "pool.history"))
        self.check_axes()
        whole = [each[0] for each in self.browser.boxes(".axis.x span")]
        self.browser.ask("panes[0].zoom(0.1, 0.6, 0.5, false, true)")
        self.browser.settle()
        self.check_axes()
        self.assertNotEqual([each[0] for each in self.browser.boxes(".axis.x span")], whole)
        self.browser.ask("turn('across')")
        self.browser.settle()
        for text, *_ in self.browser.boxes(".axis.x span")[1:]:
            self.assertRegex(text, r"^[\d.]+ (ns|us|ms|s)$")

    def test_the_overview_moves_what_is_shown(self):
        self.browser.open(export("page", "pool.history"))
        self.browser.ask("panes[0].zoom(0.1, 0.1, 0.5, false, true)")
        self.browser.settle()
        before = self.data()
        ((_, left, right, top, bottom),) = self.browser.boxes(".overview")
        self.browser.click(left + (right - left) * 0.75, (top + bottom) / 2)
        after, events = self.data(), int(self.facts["events"])
        middle = (float(after["x0"]) + float(after["x1"])) / 2
        self.assertAlmostEqual(middle / events, 0.75, delta=0.01)
        self.assertLess((float(before["x0"]) + float(before["x1"])) / 2 / events, 0.5)
        self.assertEqual(after["cursor"], before["cursor"])

    def test_one_selection_at_a_time(self):
        """Head and card name the same thing: the block that was clicked, or the event."""
        self.browser.open(export("page", "pool.history"))
        _, (x, y, width, height) = self.shot()
        place = self.browser.ask(
            "(() => { const {h, cursor: i} = panes[0], b = h.blocks; "
            "for (let j = 0; j < b.count; ++j) "
            "if (b.x0[j] < i && b.x1[j] > i && b.size[j] > 1 << 21) "
            "return [(i + .5) / h.n, 1 - (b.y[j] + b.size[j] / 2) / h.height, hex(h, b.at[j])]; "
            "})()"
        )
        self.browser.click(x + width * place[0], y + height * place[1])
        self.assertEqual(self.text(".chosen"), "Selected block")
        self.assertTrue(self.text(".now").startswith(place[2]), self.text(".now"))
        self.assertTrue(self.text("#state").startswith(place[2]), self.text("#state"))
        counts, _ = self.shot()
        self.assertGreater(counts.get(self.colour("mark"), 0), height, "the block is marked")
        self.focus()
        self.browser.key("ArrowRight")
        self.assertEqual(self.text(".chosen"), "Selected event")
        self.assertTrue(self.text("#state").startswith("event "), self.text("#state"))
        self.assertNotIn("freed by event", self.text(".now"))

    def test_nothing_jumps_while_one_steps(self):
        self.browser.open(export("page", "pool.history"))
        self.focus()
        tops = set()
        for _ in range(12):
            self.browser.key("ArrowRight")
            tops.add(self.browser.boxes(".map")[0][3])
        self.assertEqual(len(tops), 1, "the pictures stay where they are")

    def test_a_phones_width(self):
        self.browser.be_a_phone()
        try:
            self.browser.open(export("page", "pool.history", "manager.history"))
            self.browser.settle()
            self.assertEqual(self.browser.ask("document.documentElement.scrollWidth"), 390)
            where = "canvas, button, select, .card, .axis.y span, h2"
            where = "main :is(%s), header :is(%s)" % (where, where)
            for text, left, right, *_ in self.browser.boxes(where):
                self.assertGreaterEqual(left, 0, text)
                self.assertLessEqual(right, 390, text)
            maps = self.browser.boxes(".map")
            self.assertGreater(maps[0][2] - maps[0][1], 290)
            self.assertLess(maps[0][4], maps[1][3], "one below the other")
            self.check_axes()
        finally:
            self.browser.be_wide()

    def touch(self, kind, *places):
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(places)]
        self.browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def test_fingers(self):
        """Two fingers zoom, one moves across; one that goes down scrolls the page."""
        self.browser.be_a_phone()
        self.browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
        try:
            self.browser.open(export("page", "pool.history"))
            ((_, left, right, top, _),) = self.browser.boxes(".map")
            x, y = (left + right) / 2, top + 100
            self.touch("touchStart", (x - 40, y), (x + 40, y))
            for step in range(1, 5):
                self.touch("touchMove", (x - 40 - 20 * step, y), (x + 40 + 20 * step, y))
            self.touch("touchEnd")
            self.browser.settle()
            data = self.data()
            wide = float(data["x1"]) - float(data["x0"])
            self.assertLess(wide, 0.6 * int(self.facts["events"]))
            self.touch("touchStart", (x, y))
            for step in range(1, 6):
                self.touch("touchMove", (x - 20 * step, y))
            self.touch("touchEnd")
            self.browser.settle()
            moved = (float(self.data()["x0"]) - float(data["x0"])) / wide * (right - left)
            self.assertGreater(moved, 50)
            self.assertEqual(self.data()["cursor"], data["cursor"], "a drag selects nothing")
            self.touch("touchStart", (x, y))
            for step in range(1, 6):
                self.touch("touchMove", (x, y - 15 * step))
            self.touch("touchEnd")
            self.browser.settle()
            self.assertGreater(self.browser.ask("window.scrollY"), 20)
        finally:
            self.browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
            self.browser.be_wide()

    def test_costs_are_strong_and_the_rest_is_pale(self):
        """Saturation of the colours, in light and dark: held and not live against all other."""
        self.browser.open(export("page", "pool.history"))
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            self.browser.call("Emulation.setEmulatedMedia", features=[feature])
            vivid = {
                name: max(self.colour(name)) - min(self.colour(name))
                for name in ("free", "stranded", "live", "stale", "suspended")
            }
            least = min(vivid["free"], vivid["stranded"])
            self.assertGreater(least, 150)
            for name in ("live", "stale", "suspended"):
                self.assertLess(vivid[name], 0.6 * least, name)
        self.browser.call("Emulation.setEmulatedMedia", features=[])

    def test_colours_and_dark(self):
        self.browser.open(export("page", "pool.history"))
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
        self.browser.open(export("page", "pool.history", "manager.history"))
        self.assertEqual(self.browser.ask("panes.length"), 2)
        boxes = self.browser.ask(BOXES)
        self.assertEqual(boxes[0][1], boxes[1][1])
        self.assertLess(boxes[0][0] + boxes[0][2], boxes[1][0])
        peak = self.browser.ask("Math.max(...panes.map(p => p.h.peak))")
        self.assertEqual(self.browser.ask("scale"), peak)
        self.assertGreater(float(self.data(1)["live"]), 0)

    def test_pytorchs_snapshot_beside_ours(self):
        theirs = export("memory_viz", "pool.history").name
        self.browser.open(export("page", "pool.history", theirs))
        ours, other = self.data(0), self.data(1)
        self.assertIn("PyTorch", self.browser.ask("panes[1].el.querySelector('h2').textContent"))
        self.assertEqual(ours["live"], other["live"])

    def test_what_was_lost_is_said(self):
        self.browser.open(export("page", "lost.history"))
        self.assertIn("older ones are lost", self.text(".now"))
        self.assertEqual(self.browser.ask("panes[0].h.leftOut"), 0)

    def test_whatever_a_file_says_is_shown_and_does_nothing(self):
        """Ready, drawn, and answering to keys; no name of it becomes a part of the page."""
        for name, parts in hostile().items():
            with self.subTest(name):
                made_history(FOLDER / "made.history", **parts)
                self.browser.open(export("page", "made.history"))
                self.focus()
                for key in ("Home", "g", "s", "ArrowRight", "t", "c", "c", "+", "0", "End"):
                    self.browser.key(key, key if len(key) == 1 else None)
                self.browser.ask("panes[0].pick(0.5, 0)")
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
        self.browser.open(export("page", odd.name))
        self.assertEqual(self.browser.ask("document.querySelectorAll('section b').length"), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
