# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""How long the viewer's page takes to be ready and to paint a frame of one history, in headless
Chromium without a GPU: zoomed in and out by the wheel, dragged, and gone through by keys. Figures
are for docs/observe.md; nothing is tested.

usage: page_frames.py VMM_HISTORY HISTORY
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from browser import BOXES, BROWSER, Browser

TOOL, HISTORY = sys.argv[1:3]
# What the hand sees: an event in each frame, and from one frame to the next by the page's clock.
ANIMATE = """(async (act, count) => {
  const pane = panes[0], el = pane.map, box = el.getBoundingClientRect(), out = [];
  const x = box.left + box.width * 0.6, y = box.top + box.height * 0.4;
  const turn = deltaY => el.dispatchEvent(
    new WheelEvent("wheel", {deltaY, clientX: x, clientY: y, cancelable: true}));
  const acts = {
    "wheel in": () => turn(-40), "wheel out": () => turn(40),
    "drag": () => pane.timeline.slide((pane.v.x1 - pane.v.x0) / 100),
    "at rest": () => {}};
  const frame = () => new Promise(done => requestAnimationFrame(() => done(performance.now())));
  let last = await frame();
  for (let i = 0; i < count; ++i) {
    acts[act]();
    const now = await frame();
    out.push(now - last); last = now;
  }
  return out;
})"""
FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(panes[0].ms))))"


def figures(name, taken):
    taken.sort()
    print(
        f"{name:24s} {len(taken):4d} frames   median {statistics.median(taken):6.1f} ms   "
        f"95 of 100 within {taken[len(taken) * 95 // 100]:6.1f} ms   longest {taken[-1]:6.1f} ms"
    )


def main():
    if not BROWSER:
        sys.exit("page_frames.py: there is no chromium here")
    with tempfile.TemporaryDirectory(prefix="vmm_frames_") as folder:
        page = pathlib.Path(folder) / "page.html"
        subprocess.run([TOOL, "page", HISTORY, "--out", page], check=True)
        browser = Browser()
        try:
            began = time.monotonic()
            browser.open(page)
            ready = time.monotonic() - began
            events = browser.ask("panes[0].h.n")
            print(
                f"{events} events, a page of {page.stat().st_size / 1e6:.1f} MB, "
                f"ready in {ready:.1f} s"
            )
            x, y, width, height = browser.ask(BOXES)[0]
            for name, acts in (
                ("wheel in", [("wheel", -200)] * 60),
                ("dragged, zoomed in", [("drag", 40)] * 60),
                ("wheel out", [("wheel", 200)] * 60),
                ("dragged, all shown", [("drag", 40)] * 30),
                ("along the addresses", [("tall", -200)] * 20 + [("tall", 200)] * 20),
                ("keys", [("key", None)] * 60),
            ):
                taken = []
                for kind, amount in acts:
                    px, py = x + width * 0.6, y + height * 0.4
                    if kind in ("wheel", "tall"):
                        browser.mouse(
                            "mouseWheel",
                            px,
                            py,
                            deltaX=0,
                            deltaY=amount,
                            modifiers=8 if kind == "tall" else 0,
                        )
                    elif kind == "drag":
                        left = {"button": "left", "clickCount": 1}
                        browser.mouse("mousePressed", px, py, **left)
                        browser.mouse("mouseMoved", px - amount, py, button="left", buttons=1)
                        browser.mouse("mouseReleased", px - amount, py, **left)
                    else:
                        browser.ask("panes[0].map.focus()")
                        browser.key("ArrowLeft")
                    taken.append(browser.ask(FRAME))
                figures(name, taken)
            print("from one frame to the next:")
            for name, count in (
                ("at rest", 60),
                ("wheel in", 120),
                ("drag", 120),
                ("wheel out", 120),
                ("drag", 60),
            ):
                figures(name, browser.ask(f"{ANIMATE}({json.dumps(name)}, {count})"))
                browser.settle()
            if browser.complaints:
                sys.exit("page_frames.py: " + "\n".join(browser.complaints))
        finally:
            browser.close()


if __name__ == "__main__":
    main()
