# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""A tab of the distribution's Chromium, without a window and without a network."""

import json
import os
import shutil
import subprocess
import tempfile


def found_browser():
    """The browser's path, or why there is none. Ubuntu's is a snap, or a script that asks for one:
    a program in a snap has neither the files that a test makes nor the pipes that it opens."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if not path:
        return None, "there is no chromium here"
    with open(path, "rb") as file:
        is_snap = "/snap/" in os.path.realpath(path) or b"snap" in file.read(4096)
    if is_snap:
        return None, "chromium is a snap here, which sees neither a test's files nor its pipes"
    return path, ""


BROWSER, WHY_NONE = found_browser()
COMMAND = [
    *(BROWSER, "--host-resolver-rules=MAP * ~NOTFOUND", "--headless=new", "--no-sandbox"),
    *"--disable-gpu --disable-dev-shm-usage --no-first-run --disable-component-update".split(),
    "--disable-background-networking",
]

STATE = "document.getElementById('state').textContent"
READY = """new Promise(done => {
  const look = () => {
    const state = document.getElementById('state');
    if (document.body && document.body.dataset.ready) done(true);
    else if (state && state.textContent.includes('cannot')) done(false);
    else setTimeout(look, 20);
  };
  look();
})"""
# A picture may take several frames.
SETTLED = """new Promise(done => {
  const look = () => panes.every(p => !p.due && !p.job) ? done() : requestAnimationFrame(look);
  requestAnimationFrame(() => requestAnimationFrame(look));
})"""
# The page as it is when it has been opened.
RESET = """(() => {
  document.getElementById('keys').close();
  for (const id of ['colours', 'across']) {
    const list = document.getElementById(id);
    list.selectedIndex = 0;
    list.dispatchEvent(new Event('change'));
  }
  for (const pane of panes) { pane.choose(pane.h.mostLive, false); pane.showAll(); }
  active = panes[0];
})()"""
# How often each colour is in a PNG of this base64 text: [red, green, blue, count] each.
COLOURS = """(async text => {
  const png = new Blob([Uint8Array.from(atob(text), c => c.charCodeAt(0))], {type: 'image/png'});
  const image = await createImageBitmap(png);
  const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
  canvas.drawImage(image, 0, 0);
  const data = canvas.getImageData(0, 0, image.width, image.height).data, counts = {};
  for (let i = 0; i < data.length; i += 4) {
    const key = [data[i], data[i + 1], data[i + 2]];
    counts[key] = (counts[key] || 0) + 1;
  }
  return Object.entries(counts).map(([key, count]) => [...key.split(',').map(Number), count]);
})"""
BOXES = "panes.map(p => (r => [r.x, r.y, r.width, r.height])(p.map.getBoundingClientRect()))"


class Browser:
    """One tab, driven by the debugging protocol over two pipes (file descriptors 3 and 4)."""

    def __init__(self):
        to_read, self.to = os.pipe()
        self.of, from_write = os.pipe()
        self.folder = tempfile.mkdtemp(prefix="vmm_chromium_")

        def give_pipes():
            os.dup2(to_read, 100)
            os.dup2(from_write, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self.process = subprocess.Popen(
            [
                *COMMAND,
                "--window-size=1300,1000",
                "--remote-debugging-pipe",
                "--user-data-dir=" + self.folder,
                "about:blank",
            ],
            preexec_fn=give_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.number, self.complaints, self.session = b"", 0, [], None
        self.shown = None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each for each in targets if each["type"] == "page")
        self.session = self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.buffer:
            more = os.read(self.of, 1 << 16)
            if not more:
                raise RuntimeError("the browser has gone")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + str(answer["error"]))
                return answer["result"]
            self.hear(answer)

    def hear(self, event):
        what, said = event.get("method"), event.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:600])
        if what == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(said["args"])[:600])
        if what == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        if what == "Network.requestWillBeSent" and not said["request"]["url"].startswith("file:"):
            self.complaints.append("the page asks for " + said["request"]["url"])

    def ask(self, expression):
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:600])
        return answer["result"].get("value")

    def settle(self):
        self.ask(SETTLED)

    def open(self, path):
        self.complaints.clear()
        if self.shown == (path, os.stat(path).st_mtime_ns):
            self.ask(RESET)
            self.settle()
            return
        self.shown = (path, os.stat(path).st_mtime_ns)
        self.call("Page.navigate", url=path.as_uri())
        for _ in range(50):  # the old page may answer first
            try:
                if self.ask("location.href") == path.as_uri():
                    break
            except RuntimeError:
                pass
        if not self.ask(READY):
            raise RuntimeError("not shown: " + self.ask(STATE))
        self.settle()

    def boxes(self, where):
        """Text, left, right, top and bottom of each element."""
        return self.ask(
            f"[...document.querySelectorAll('{where}')].map(e => (r => [e.textContent, r.left, "
            "r.right, r.top, r.bottom])(e.getBoundingClientRect()))"
        )

    def colours(self, clip):
        """The colours of a part of the page with how often each is there."""
        png = self.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        return {tuple(of): count for *of, count in self.ask(f"{COLOURS}('{png}')")}

    def be_a_phone(self):
        size = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def be_wide(self):
        self.call("Emulation.clearDeviceMetricsOverride")

    def key(self, name, text=None):
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **extra)
        self.settle()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def close(self):
        self.call("Browser.close")
        self.process.wait(timeout=120)
        os.close(self.to)
        os.close(self.of)
        shutil.rmtree(self.folder, ignore_errors=True)
