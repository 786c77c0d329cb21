# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what the viewer's page computes and paints is what the history says, also where there is no
browser that a test can use. Method: the page's script runs in Node.js, or in Chromium where that is
not here, with next to nothing in place of a document; its sums, words and pixels are compared with
the history's facts. page_test.py sees the rest of it.

usage: page_script_test.py VMM_HISTORY WRITE_SAMPLE
"""

import json
import shutil
import subprocess
import sys
import unittest

import tool
from browser import BROWSER, WHY_NONE, Browser
from made import made_history
from tool import FOLDER, export, facts

NODE = shutil.which("node")
if not NODE and not BROWSER:
    print("skipped: there is no node (Node.js) here, and " + WHY_NONE)
    sys.exit(0)
HARNESS = r"""
const from = text.indexOf("<script>") + 8, to = text.lastIndexOf("begin().catch");
class ImageData {
  constructor(w, h) { this.data = new Uint8ClampedArray(4 * w * h); }
}
const page = new Function("matchMedia", "ImageData", text.slice(from, to) +
  "; return {FILES, K, Pane, Peaks, inflate, parse, prepare, colours, sentence, hex, ticks};")(
  () => ({matches: false, addEventListener() {}}), ImageData);

function look(h) {
  const {K, Pane, Peaks, colours, sentence, hex, ticks} = page;
  const pane = Object.create(Pane.prototype), c = colours();
  Object.assign(pane, {h, block: -1, cursor: h.n - 1, v: {x0: 0, x1: h.n, y0: 0, y1: h.height}});
  const wrong = [];
  for (let i = 0; i < h.n; i += 97) {
    const sums = pane.totals(i), each = pane.recount(i);
    for (const name in each) if (sums[name] !== each[name]) wrong.push(name + " at " + i);
  }
  const paint = slice => {
    const job = pane.start(c, 800, 380, "");
    let turns = 1;
    while (!pane.goOn(job, slice)) ++turns;
    return [turns, job.out];
  };
  const [, whole] = paint(Infinity), [turns, many] = paint(0), pixels = {};
  for (const name of ["live", "edge", "free", "stranded", "stale", "suspended", "ground"])
    pixels[name] = whole.reduce((sum, each) => sum + (each === c[name]), 0);
  const gone = [];
  for (let i = 0; i < h.n; ++i) if (h.kind[i] === K.suspended || h.kind[i] === K.resumed)
    gone.push([pane.totals(i - 1).gone, pane.totals(i).gone]);
  const curve = new Peaks(h.live);
  let off = 0;
  for (let from = 0; from < h.n; from += 37) for (const to of [from + 1, from + 200, h.n])
    off += curve.between(from, to) !== Math.max(...h.live.slice(from, to));
  return {off, mostLive: h.mostLive, mostHeld: h.mostHeld,
    sentences: h.n > 40 ? [] : [...h.kind].map((k, i) => sentence(h, i)),
    regions: h.regions.map(each => hex(h, each.at)),
    stretches: h.stretches.length, heldAt: [...h.held.slice(0, h.n)],
    ticks: [ticks(0, 9.5 * 2 ** 30, 5, "bytes"), ticks(0, 126473, 4, "count"),
      ticks(2e6, 9e6, 4, "time"),
      ticks(0, 2 ** 60, 4, "bytes"),
      ticks(3, 4, 4, "count")].map(row => row.map(each => each[1])),
    events: h.n, leftOut: h.leftOut, lost: h.lost, peak: h.peak, wrong, pixels, turns, gone,
    isSame: whole.every((each, i) => each === many[i]), end: pane.totals(h.n - 1),
    live: [...h.live.slice(0, h.n)], held: h.held[h.n - 1],
    requests: h.grows.map(i => pane.request(i)),
    shorts: h.shorts.map(i => sentence(h, i))};
}
const out = [];
for (const each of page.FILES)
  out.push(look(page.prepare(page.parse(await page.inflate(each.data)))));
return JSON.stringify(out);
"""
IN_NODE = (
    "const text = require('fs').readFileSync(process.argv[1], 'utf8');\n(async () => {"
    + HARNESS
    + "})().then(console.log);"
)


TABS = []


def run_script(page):
    if NODE:
        done = subprocess.run([NODE, "-e", IN_NODE, page], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
    if not TABS:
        TABS.append(Browser())
    text = json.dumps(page.read_text())
    return TABS[0].ask("(async () => { const text = " + text + ";" + HARNESS + "})()")


setUpModule = tool.begin


def tearDownModule():
    tool.end()
    if TABS:
        TABS.pop().close()


def look(*names):
    return json.loads(run_script(export("page", *names)))


class Script(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pool, cls.manager = look("pool.history", "manager.history")
        cls.said = facts("pool.history")

    def test_sums_are_the_allocators(self):
        self.assertEqual(self.pool["events"], int(self.said["events"]))
        self.assertEqual(self.pool["end"]["live"], int(self.said["live_bytes"]))
        self.assertEqual(self.pool["end"]["blocks"], int(self.said["live_count"]))
        self.assertEqual(self.pool["end"]["mapped"], int(self.said["mapped_bytes"]))
        self.assertEqual(self.pool["end"]["stale"], int(self.said["stale_bytes"]))
        self.assertEqual(self.pool["held"], int(self.said["held_bytes"]))
        managed = facts("manager.history")
        self.assertEqual(self.manager["end"]["live"], int(managed["live_bytes"]))
        self.assertEqual(self.manager["held"], int(managed["held_bytes"]))

    def test_sums_at_every_event_are_those_of_the_rectangles(self):
        for each in (self.pool, self.manager, *look("lost.history"), *look("manager_lost.history")):
            self.assertEqual((each["wrong"], each["leftOut"]), ([], 0))

    def test_every_kind_is_painted(self):
        for name in ("live", "edge", "free", "stranded", "stale", "suspended"):
            self.assertGreater(self.pool["pixels"][name], 50, name)
        pixels = self.pool["pixels"]
        self.assertGreater(pixels["live"] + pixels["edge"], 800 * 380 / 20)

    def test_a_suspension_ends_where_the_memory_is_back(self):
        size = 4 << 20
        self.assertEqual(self.pool["gone"], [[0, size], [size, 0], [0, size]])

    def test_slices_paint_the_same(self):
        self.assertGreater(self.pool["turns"], 1)
        self.assertTrue(self.pool["isSame"])

    def test_a_resize_changes_the_size_then_and_not_before(self):
        """Against the sums of the Perfetto file, which goes forward through the same events."""
        for name, pane in (
            ("manager.history", self.manager),
            ("manager_lost.history", look("manager_lost.history")[0]),
        ):
            events = json.loads(export("perfetto", name).read_text())
            counts = [each["args"]["live"] for each in events if each["ph"] == "C"]
            self.assertEqual(counts[-1], pane["live"][-1])
            self.assertLessEqual(set(counts[1:]), set(pane["live"]))
            self.assertLessEqual(set(pane["live"]), set(counts), "the first is before all events")

    def test_curves_have_each_peak(self):
        for each in (self.pool, self.manager):
            self.assertEqual(each["off"], 0, "a pixel shows the most of its events")
            live, held = each["live"], each["heldAt"]
            self.assertEqual(each["mostLive"], live.index(max(live)))
            self.assertEqual(each["mostHeld"], held.index(max(held)))

    def test_axes_have_round_numbers_with_units(self):
        size, count, time, large, one = self.pool["ticks"]
        self.assertEqual(size, ["0", "2 GiB", "4 GiB", "6 GiB", "8 GiB"])
        self.assertEqual(count, ["0", "50,000", "100,000"])
        self.assertEqual(time, ["2 ms", "4 ms", "6 ms", "8 ms"])
        self.assertEqual(large, ["0", "0.25 EiB", "0.5 EiB", "0.75 EiB", "1 EiB"])
        self.assertEqual(one, ["3", "4"])

    def test_values_of_two_to_53_and_above_are_exact(self):
        """An address of Intel's driver, three neighbours 512 bytes apart, and a stream as large."""
        base, stream = 18446720620317114368, 0xFFFFFFFFFFFFFFF1
        places = [base, base + 512, base + 1024, 1 << 46]
        made_history(
            FOLDER / "high.history",
            facts=[(b"allocator", b"stream_pool"), (b"page_bytes", b"512")],
            events=[
                (1764000000 * 10**9 + 1 + i, at, 512, stream, 500, 0, 0, 1)
                for i, at in enumerate(places)
            ],
            regions=[(at, 512, stream, 0) for at in sorted(places)],
            mappings=[(1 << 46, 512, 0), (base, 1536, 0)],
        )
        (high,) = look("high.history")
        for at, said in zip(places, high["sentences"]):
            self.assertEqual(said, f"allocated 512 B at {at:#x}, stream {stream:#x}")
        self.assertEqual(high["regions"], [hex(at) for at in sorted(places)])
        self.assertEqual(high["stretches"], 2, "neighbours stay neighbours")
        self.assertEqual((high["wrong"], high["leftOut"], high["end"]["blocks"]), ([], 0, 4))
        self.assertEqual(high["end"]["used"], 2048, "each block is in its mapping")

    def test_what_requests_had_to_do(self):
        self.assertGreater(len(self.pool["requests"]), 10)
        for each in self.pool["requests"]:
            self.assertRegex(each, r"for stream 0x\w+ in [\d.]+ [a-z]+:\nmoved .*, mapped anew ")
        self.assertTrue(any("moved 0 B" not in each for each in self.pool["requests"]))

    def test_why_memory_was_short(self):
        self.assertGreater(len(self.pool["shorts"]), 0)
        for each in self.pool["shorts"]:
            self.assertIn("the budget would be exceeded", each)

    def test_pytorchs_snapshot_beside_ours(self):
        ours, other = look("pool.history", export("memory_viz", "pool.history").name)
        self.assertEqual(ours["end"]["live"], other["end"]["live"])
        self.assertEqual(ours["end"]["mapped"], other["end"]["mapped"])
        self.assertEqual(other["leftOut"], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
