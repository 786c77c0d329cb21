"use strict";
// ---- numbers as text ---------------------------------------------------------------------

const UNITS = {
  bytes: ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].map((name, i) => [1024 ** i, name]),
  time: [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]],
  count: [[1, ""]]};
const unitOf = (n, kind) => UNITS[kind].filter(([size]) => size <= n).pop() || UNITS[kind][0];
function bytes(n) {
  const [size, name] = unitOf(n, "bytes");
  return (size === 1 ? n : (n / size).toPrecision(4)) + " " + name;
}
function duration(ns) {
  const [size, name] = unitOf(ns, "time");
  return (ns / size).toFixed(size === 1 ? 0 : size === 1e3 ? 1 : 2) + " " + name;
}
const grouped = n => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

// Round values from lo to hi, at most `most` of them, each with its text.
function ticks(lo, hi, most, kind) {
  const isBytes = kind === "bytes", raw = Math.max((hi - lo) / most, kind === "count" ? 1 : 0) || 1;
  const tens = 10 ** Math.floor(Math.log10(raw)), [size, name] = unitOf(hi, kind), out = [];
  const step = isBytes ? 2 ** Math.ceil(Math.log2(raw)) : tens * [1, 2, 5, 10].find(each => each * tens >= raw * 0.999999);
  const digits = Math.min(Math.max(Math.ceil(isBytes ? Math.log2(size / step) : Math.log10(size / step)), 0), 6);
  for (let i = Math.ceil(lo / step); i * step <= hi && out.length <= most; ++i)
    out.push([i * step, kind === "count" ? grouped(i * step) : Number((i * step / size).toFixed(digits)) + (i ? " " + name : "")]);
  return out;
}

// ---- colours: strong for memory that is held and not live, pale for all other -------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const rgb = (r, g, b) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
const css = c => "rgb(" + (c & 255) + "," + (c >> 8 & 255) + "," + (c >> 16 & 255) + ")";
function colours() {
  const d = dark.matches;
  return {ground: d ? rgb(20, 24, 31) : rgb(255, 255, 255), line: d ? rgb(230, 234, 240) : rgb(28, 35, 48), grid: d ? rgb(52, 60, 72) : rgb(222, 226, 232),
    live: d ? rgb(44, 82, 130) : rgb(168, 204, 242), edge: d ? rgb(84, 130, 188) : rgb(108, 162, 220),
    free: d ? rgb(222, 150, 24) : rgb(245, 158, 11), stranded: d ? rgb(240, 68, 68) : rgb(214, 36, 36),
    stale: d ? rgb(44, 50, 62) : rgb(226, 229, 234), suspended: d ? rgb(66, 54, 96) : rgb(226, 216, 246),
    mark: d ? rgb(109, 177, 255) : rgb(11, 98, 214), none: d ? rgb(104, 112, 124) : rgb(176, 182, 190),
    some: d ? [rgb(77,148,255),rgb(255,159,64),rgb(90,200,140),rgb(232,108,160),rgb(170,140,240),rgb(90,200,220),rgb(220,200,90),rgb(200,130,100)]
            : [rgb(31,119,214),rgb(222,120,20),rgb(34,150,84),rgb(200,60,120),rgb(120,86,200),rgb(20,150,170),rgb(160,140,20),rgb(140,90,60)]};
}

// ---- elements ----------------------------------------------------------------------------

function make(name, text, parent) {
  const el = document.createElement(name);
  if (text !== undefined) el.textContent = text;
  if (parent) parent.append(el);
  return el;
}
function button(text, title, act, parent) {
  const el = make("button", text, parent);
  el.title = title; el.onclick = act;
  return el;
}
// A row is a name, a colour and, of one that can be hidden, what a click does and whether it is hidden.
function legend(box, rows) {
  const focused = [...box.children].indexOf(document.activeElement);
  box.replaceChildren(...rows.map(([name, colour, act, isHidden]) => {
    const el = act ? button("", isHidden ? "show" : "hide", act) : make("span");
    if (act) { el.setAttribute("aria-pressed", !isHidden); el.classList.toggle("hidden", isHidden); }
    make("i", undefined, el).style.background = css(colour);
    el.append(name);
    return el;
  }));
  if (focused >= 0) box.children[focused].focus();
}
// The labels of an axis. `share` is the place of a value, from 0 to 1 along the axis.
function axis(el, marks, share, isAcross) {
  el.replaceChildren(...marks.map(([value, text]) => {
    const mark = make("span", text), at = share(value);
    mark.style[isAcross ? "left" : "top"] = 100 * (isAcross ? at : 1 - at) + "%";
    if (isAcross && at > 0.93) mark.style.transform = "translateX(-100%)";
    return mark;
  }));
}
// The context of a canvas whose pixels are those of the device.
function sized(canvas) {
  const ratio = devicePixelRatio || 1, w = Math.max(Math.round(canvas.clientWidth * ratio), 1), h = Math.max(Math.round(canvas.clientHeight * ratio), 1);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  return canvas.getContext("2d");
}

// Wheel, dragging, two fingers and clicks on an element; places are shares of it, from left and top.
function gestures(el, {zoom, slide, click}) {
  const at = e => { const box = el.getBoundingClientRect(); return [(e.clientX - box.left) / box.width, (e.clientY - box.top) / box.height]; };
  const down = new Map();
  let isMoved = false;
  el.addEventListener("wheel", e => { e.preventDefault(); zoom(Math.exp((e.deltaY || e.deltaX) * 0.002), ...at(e), e.shiftKey, e.altKey); }, {passive: false});
  el.addEventListener("pointerdown", e => { if (!down.size) isMoved = false; down.set(e.pointerId, e); el.setPointerCapture(e.pointerId); el.focus({preventScroll: true}); });
  el.addEventListener("pointermove", e => {
    const from = down.get(e.pointerId);
    if (!from || !isMoved && Math.hypot(e.clientX - from.clientX, e.clientY - from.clientY) < 4) return;
    isMoved = true;
    const apart = () => { const [p, q] = [...down.values()]; return Math.max(Math.hypot(p.clientX - q.clientX, p.clientY - q.clientY), 1); };
    const before = down.size === 2 ? apart() : 0, [x, y] = at(e), [x0, y0] = at(from);
    down.set(e.pointerId, e);
    if (before) zoom(before / apart(), x, y, false, false); else slide(x0 - x, y - y0, x);
  });
  for (const name of ["pointerup", "pointercancel"]) el.addEventListener(name, e => {
    const isClick = down.delete(e.pointerId) && !isMoved && name === "pointerup";
    if (isClick) click(...at(e));
  });
}

// ---- curves over events or time -----------------------------------------------------------

// The largest value between two places, exact and without looking at each of many.
class Peaks {
  constructor(values) {
    this.values = values;
    this.blocks = new Float64Array(values.length + 255 >> 8);
    for (let i = 0; i < values.length; ++i) if (values[i] > this.blocks[i >> 8]) this.blocks[i >> 8] = values[i];
  }
  between(from, to) {
    let most = 0;
    for (let i = from; i < to;) {
      const isBlock = (i & 255) === 0 && i + 256 <= to, value = isBlock ? this.blocks[i >> 8] : this.values[i];
      if (value > most) most = value;
      i += isBlock ? 256 : 1;
    }
    return most;
  }
}

// A chart with its axes and an overview of all of it. `of` has n, x(i), width, kind (of x), v (x0 and
// x1: what is shown), cursor, top, layers [{peaks, low, colour, isArea, alpha}], limits [{value, text}],
// choose(i) and draw().
class Timeline {
  constructor(plot, of, name) {
    this.of = of;
    plot.innerHTML = "<div class='axis y'></div><canvas class=chart></canvas><div class=over></div><div class='axis x'></div><canvas class=overview></canvas>";
    [this.canvas, this.overview] = plot.querySelectorAll("canvas");
    [this.y, this.across] = plot.querySelectorAll(".axis");
    this.over = plot.querySelector(".over");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", name + "; press ? for the keys");
    this.overview.setAttribute("aria-label", "all of it; the frame is what is shown above");
    gestures(this.canvas, {zoom: (factor, x) => this.zoom(factor, x), slide: dx => this.slide(dx * this.shown), click: x => of.choose(this.index(x), false)});
    const to = x => this.slide(x * of.width - (of.v.x0 + of.v.x1) / 2);
    gestures(this.overview, {zoom: (factor, x) => { to(x); this.zoom(factor, 0.5); }, slide: (dx, dy, x) => to(x), click: to});
    new ResizeObserver(() => of.draw()).observe(plot);
  }
  get shown() { return this.of.v.x1 - this.of.v.x0; }
  zoom(factor, share) {
    const {v, width} = this.of, w = Math.min(Math.max(this.shown * factor, Math.min(width, this.of.kind === "count" ? 4 : 1000)), width);
    v.x0 += (this.shown - w) * share; v.x1 = v.x0 + w;
    this.slide(0);
  }
  slide(dx) {
    const {v, width} = this.of, w = this.shown;
    v.x0 = Math.min(Math.max(v.x0 + dx, 0), width - w); v.x1 = v.x0 + w;
    this.of.draw();
  }
  // The point at a share of the width that is shown: the last that is not behind it.
  index(share, v = this.of.v) {
    const x = v.x0 + share * (v.x1 - v.x0), of = this.of;
    let low = 0, high = of.n;
    while (low < high) { const mid = low + high + 1 >> 1; if (of.x(mid) <= x) low = mid; else high = mid - 1; }
    return low;
  }
  curves(canvas, v) {
    const context = sized(canvas), w = canvas.width, h = canvas.height, {layers, top} = this.of, index = new Int32Array(w + 1);
    context.clearRect(0, 0, w, h);
    for (let px = 0; px <= w; ++px) index[px] = this.index(px / w, v);
    const y = (peaks, px) => h - peaks.between(index[px], Math.max(index[px + 1], index[px] + 1)) / top * h;
    for (const {peaks, low, colour, isArea, alpha} of layers) {
      context.globalAlpha = alpha || 1;
      context.beginPath();
      for (let px = 0; px < w; ++px) context.lineTo(px, y(peaks, px));
      context.lineTo(w, y(peaks, w - 1));
      if (isArea) {
        if (low) for (let px = w; px-- > 0;) context.lineTo(px, y(low, px)); else { context.lineTo(w, h); context.lineTo(0, h); }
        context.fillStyle = css(colour); context.fill();
      } else { context.strokeStyle = css(colour); context.lineWidth = 1.5 * (devicePixelRatio || 1); context.lineJoin = "round"; context.stroke(); }
    }
    context.globalAlpha = 1;
    return context;
  }
  rule(context, c, x0, y0, x1, y1, dash) {
    context.strokeStyle = css(c); context.lineWidth = devicePixelRatio || 1; context.setLineDash(dash || []);
    context.beginPath(); context.moveTo(x0, y0); context.lineTo(x1, y1); context.stroke(); context.setLineDash([]);
  }
  paint(c) {
    const of = this.of, {v, top} = of, context = this.curves(this.canvas, v), w = this.canvas.width, h = this.canvas.height;
    const rows = ticks(0, top, Math.max(Math.floor(this.canvas.clientHeight / 26), 2), "bytes");
    context.globalAlpha = 0.35;
    for (const [value] of rows) this.rule(context, c.none, 0, h - value / top * h, w, h - value / top * h);
    context.globalAlpha = 1;
    for (const {value} of of.limits) this.rule(context, c.line, 0, h - value / top * h, w, h - value / top * h, [6, 4]);
    const x = (of.x(of.cursor) - v.x0) / this.shown * w;
    this.rule(context, c.mark, x + .5, 0, x + .5, h);
    axis(this.y, rows, value => value / top, false);
    axis(this.over, of.limits.map(each => [each.value, each.text]), value => value / top, false);
    // Texts of limits that nearly meet stand side by side.
    let right = 4, last;
    for (const mark of this.over.children) {
      right = last && Math.abs(mark.offsetTop - last.offsetTop) < 14 ? right + last.offsetWidth + 6 : 4;
      mark.style.right = right + "px"; last = mark;
    }
    axis(this.across, ticks(v.x0, v.x1, Math.max(Math.floor(this.canvas.clientWidth / 75), 2), of.kind), value => (value - v.x0) / this.shown, true);
    const small = this.curves(this.overview, {x0: 0, x1: of.width}), sx = this.overview.width / of.width, tall = this.overview.height;
    small.fillStyle = css(c.ground); small.globalAlpha = 0.65;
    small.fillRect(0, 0, v.x0 * sx, tall); small.fillRect(v.x1 * sx, 0, this.overview.width, tall);
    small.globalAlpha = 1;
    this.rule(small, c.mark, of.x(of.cursor) * sx + .5, 0, of.x(of.cursor) * sx + .5, tall);
    small.strokeStyle = css(c.mark); small.lineWidth = 2 * (devicePixelRatio || 1);
    small.strokeRect(v.x0 * sx + 1, 1, Math.max((v.x1 - v.x0) * sx - 2, 2), tall - 2);
  }
}

// The state's line, and what a page does where it cannot be shown.
const state = text => { document.getElementById("state").textContent = text; };
const failed = e => { state("this page cannot be shown: " + e.message); throw e; };
