# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what the viewer's page computes and paints is what the history says, also where there is no
browser that a test can use. Method: the page's script runs in Node.js, or in Chromium where that is
not here, with next to nothing in place of a document; its sums, words and pixels are compared with
the history's facts. page_test.py sees the rest of it.

usage: page_script_test.py VMM_HISTORY WRITE_SAMPLE
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser import BROWSER, WHY_NONE, Browser

TOOL, SAMPLE = sys.argv[1:3]
NODE = shutil.which("node")
if not NODE and not BROWSER:
    print("skipped: there is no node (Node.js) here, and " + WHY_NONE)
    sys.exit(0)
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="vmm_script_"))
HARNESS = r"""
const from = text.indexOf("<script>") + 8, to = text.lastIndexOf("begin().catch");
class ImageData {
  constructor(w, h) { this.data = new Uint8ClampedArray(4 * w * h); }
}
const page = new Function("matchMedia", "ImageData", text.slice(from, to) +
  "; return {FILES, K, Pane, inflate, parse, prepare, colours, sentence};")(
  () => ({matches: false, addEventListener() {}}), ImageData);

function look(h) {
  const {K, Pane, colours, sentence} = page, pane = Object.create(Pane.prototype), c = colours();
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
  for (const name of ["live", "live2", "free", "stranded", "stale", "suspended", "ground"])
    pixels[name] = whole.reduce((sum, each) => sum + (each === c[name]), 0);
  const gone = [];
  for (let i = 0; i < h.n; ++i) if (h.kind[i] === K.suspended || h.kind[i] === K.resumed)
    gone.push([pane.totals(i - 1).gone, pane.totals(i).gone]);
  return {events: h.n, leftOut: h.leftOut, lost: h.lost, peak: h.peak, wrong, pixels, turns, gone,
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
        done = subprocess.run(
            [NODE, "-e", IN_NODE, page], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    if not TABS:
        TABS.append(Browser())
    text = json.dumps(page.read_text())
    return TABS[0].ask("(async () => { const text = " + text + ";" + HARNESS + "})()")


def setUpModule():
    subprocess.run([SAMPLE, FOLDER], check=True)


def tearDownModule():
    shutil.rmtree(FOLDER)
    if TABS:
        TABS.pop().close()


def facts(name):
    text = subprocess.run(
        [TOOL, "summary", FOLDER / name], check=True, capture_output=True, text=True
    ).stdout
    return dict(line.strip().rsplit(": ", 1) for line in text.splitlines())


def look(*names):
    out = FOLDER / "page.html"
    subprocess.run(
        [TOOL, "page", *(FOLDER / name for name in names), "--out", out],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(run_script(out))


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
        self.assertEqual(self.pool["held"], int(self.said["footprint_bytes"]))
        managed = facts("manager.history")
        self.assertEqual(self.manager["end"]["live"], int(managed["live_bytes"]))
        self.assertEqual(self.manager["held"], int(managed["footprint_bytes"]))

    def test_sums_at_every_event_are_those_of_the_rectangles(self):
        for each in (self.pool, self.manager, *look("lost.history"), *look("manager_lost.history")):
            self.assertEqual((each["wrong"], each["leftOut"]), ([], 0))

    def test_every_kind_is_painted(self):
        for name in ("live", "live2", "free", "stranded", "stale", "suspended"):
            self.assertGreater(self.pool["pixels"][name], 50, name)
        self.assertGreater(
            self.pool["pixels"]["live"] + self.pool["pixels"]["live2"], 800 * 380 / 20
        )

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
            out = FOLDER / "trace.json"
            subprocess.run(
                [TOOL, "perfetto", FOLDER / name, "--out", out],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            counts = [
                each["args"]["live"] for each in json.loads(out.read_text()) if each["ph"] == "C"
            ]
            self.assertEqual(counts[-1], pane["live"][-1])
            self.assertLessEqual(set(counts[1:]), set(pane["live"]))
            self.assertLessEqual(set(pane["live"]), set(counts), "the first is before all events")

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
        theirs = FOLDER / "torch.pickle"
        subprocess.run(
            [TOOL, "memory_viz", FOLDER / "pool.history", "--out", theirs],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        ours, other = look("pool.history", "torch.pickle")
        self.assertEqual(ours["end"]["live"], other["end"]["live"])
        self.assertEqual(ours["end"]["mapped"], other["end"]["mapped"])
        self.assertEqual(other["leftOut"], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
