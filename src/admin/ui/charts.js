// Charts, drawn by uPlot: in the page's colours, as wide as their place, updated without being made anew.
//
// Every chart is a picture for people who see it; the numbers are in the text beside it, and in tables.

import { clock, h } from "./dom.js";

const uPlot = window.uPlot;

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Charts that are shown, for a change of theme.
const shown = new Set();

export function redrawAll() {
  for (const chart of shown) chart.rebuild();
}

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const { plot } = target;
    const width = Math.floor(contentRect.width);
    if (plot && width > 0 && plot.width !== width) plot.setSize({ width, height: target.plotHeight });
  }
});

// A place for a chart. `options()` makes uPlot's options, anew for each theme; `update(data)` shows other data.
export function chart(height, label, options) {
  const place = h("div", { role: "img", "aria-label": label });
  place.plotHeight = height;
  place.style.height = `${height}px`;
  let data = null;
  place.rebuild = () => {
    if (!data) return;
    place.plot?.destroy();
    place.plot = new uPlot({ width: Math.max(40, place.clientWidth), height, ...options() }, data, place);
  };
  place.update = (next) => {
    data = next;
    if (!place.isConnected) return;
    if (!place.plot) place.rebuild();
    else place.plot.setData(next);
  };
  place.destroy = () => {
    sizes.unobserve(place);
    shown.delete(place);
    place.plot?.destroy();
    place.plot = null;
  };
  sizes.observe(place);
  shown.add(place);
  return place;
}

// Ends all charts inside an element that leaves the page.
export function destroyIn(element) {
  for (const place of shown) if (element.contains(place)) place.destroy();
}

const font = '11px ui-sans-serif, system-ui, -apple-system, "Segoe UI", sans-serif';

export function axis(values, more = {}) {
  const grid = colour("line");
  return {
    stroke: colour("soft"), font, values, gap: 4, size: 26,
    grid: { stroke: grid, width: 1 }, ticks: { show: false }, border: { show: false }, ...more,
  };
}

export const valueAxis = (format, more = {}) => axis((_, ticks) => ticks.map((tick) => format(tick)), { size: 46, space: 34, ...more });

// The time axis of a history.
export const timeAxis = (span) => axis((_, ticks) => ticks.map((tick) => (span > 2 * 86_400_000
  ? new Date(tick).toLocaleDateString(undefined, { month: "short", day: "numeric" })
  : clock(tick).slice(0, span > 1_800_000 ? 5 : 8))), { grid: { show: false }, space: 64, size: 22 });

const none = { legend: { show: false }, select: { show: false }, ms: 1 };

// A line needs two points; fewer are dots.
const hasFewPoints = (plot) => plot.data[1].filter((value) => value !== null).length < 3;

// The room at the right of a session's charts, for the names of lines.
const besides = () => (innerWidth < 760 ? 62 : 92);

// A small line without axes.
export function spark(label, name) {
  return chart(36, label, () => ({
    ...none, cursor: { show: false }, padding: [3, 2, 2, 2],
    scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high : 1] } },
    axes: [{ show: false }, { show: false }],
    series: [{}, { stroke: colour(name), width: 1.5, fill: `${colour(name)}22`, points: { show: hasFewPoints, size: 4, fill: colour(name) }, spanGaps: true }],
  }));
}

// The sums of the series from the first on, so that they stack.
export function stacked(series) {
  const sums = [];
  let below = null;
  for (const values of series) {
    below = values.map((value, at) => (value === null ? null : value + (below ? below[at] ?? 0 : 0)));
    sums.push(below);
  }
  return sums;
}

// The first and the last bar stand around their times, too.
function wholeBars(plot, low, high) {
  const [first, second] = plot.data[0];
  const half = second === undefined ? 0 : (second - first) / 2;
  return [low - half, high + half];
}

// Bars that stand on each other: the highest sum is drawn first. `names`: colours, the lowest first. `format`: of values.
export function stackedBars(height, label, names, format, span, more = {}) {
  const bars = () => uPlot.paths.bars({ size: [0.72, 28, 1], radius: 0.12 });
  return chart(height, label, () => ({
    ...none, padding: [10, more.right?.() ?? 8, more.x ? 7 : 0, 0],
    cursor: { points: { show: false }, drag: { x: false, y: false }, y: false, ...more.cursor },
    scales: { x: { time: !more.x, range: wholeBars, ...more.x }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [more.axis?.() ?? timeAxis(span()), valueAxis(format, more.x ? { space: 22 } : {})],
    series: [{}, ...names().toReversed().map((name) => ({ fill: colour(name), stroke: colour(name), width: 0, paths: bars(), points: { show: false } }))],
    hooks: more.hooks,
  }));
}

// The context over its turns: parts that stack up to the line. `marks(turn)`: names of what happened there. `picked()`: the
// turn that was chosen, if it is one of them.
export function contextChart({ label, sync, lines, marks, picked, moved, chosen, fits }) {
  const parts = ["system", "tools", "messages", "reasoning"];
  return chart(300, label, () => ({
    ...none, padding: [14, besides(), 0, 0],
    cursor: { sync: { key: sync }, drag: { x: false, y: false }, y: false, points: { show: false } },
    scales: {
      x: { time: false, range: (_, low, high) => [low - 0.5, Math.max(high, low + 4) + 0.5] },
      y: { range: (plot, low, high) => [0, fits() ? Math.max(high * 1.15, 1) : Math.max(lines().window * 1.07, high * 1.05, 1)] },
    },
    axes: [turnAxis(), valueAxis(shortTokens)],
    series: [{}, ...parts.toReversed().map((name) => ({
      stroke: colour(name), fill: `${colour(name)}${name === "reasoning" ? "dd" : "cc"}`, width: 1, points: { show: plotIsShort, size: 5, fill: colour(name) }, paths: uPlot.paths.linear(),
    }))],
    hooks: {
      draw: [(plot) => drawPicked(plot, picked()), (plot) => drawLines(plot, lines()), (plot) => drawMarks(plot, marks)],
      setCursor: [(plot) => moved(plot.cursor.idx)],
      ready: [(plot) => plot.over.addEventListener("click", () => chosen(plot.cursor.idx))],
    },
  }));
}

const plotIsShort = (plot) => plot.data[0].length < 2;
const turnAxis = () => axis((_, ticks) => ticks.map((tick) => (Number.isInteger(tick) && tick > 0 ? tick : "")), { grid: { show: false }, space: 48, size: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] });

function shortTokens(tokens) {
  if (tokens >= 1e6) return `${tokens / 1e6}M`;
  return tokens >= 1000 ? `${tokens / 1000}k` : String(tokens);
}

function drawPicked(plot, at) {
  const turn = plot.data[0][at];
  if (turn === undefined) return;
  const { ctx, bbox } = plot;
  const x = Math.round(plot.valToPos(turn, "x", true));
  ctx.save();
  ctx.strokeStyle = colour("ink");
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

// The window, drawn as ships carry it: a ring with a line through it. Softer limits are thinner lines.
function drawLines(plot, { window: limit, softer }) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const right = bbox.left + bbox.width;
  ctx.save();
  ctx.font = `${11 * scale}px ui-sans-serif, system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  let lowest = -Infinity;
  for (const { tokens, name, isWindow } of [{ tokens: limit, name: "window", isWindow: true }, ...softer]) {
    const y = Math.round(plot.valToPos(tokens, "y", true));
    if (!tokens || y < bbox.top - 2 * scale || y > bbox.top + bbox.height) continue;
    ctx.strokeStyle = colour(isWindow ? "mark" : "strong-line");
    ctx.lineWidth = (isWindow ? 2 : 1) * scale;
    ctx.setLineDash(isWindow ? [] : [4 * scale, 4 * scale]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(right + (isWindow ? 22 : 6) * scale, y);
    ctx.stroke();
    ctx.setLineDash([]);
    if (isWindow) {
      ctx.beginPath();
      ctx.arc(right + 12 * scale, y, 5.5 * scale, 0, 2 * Math.PI);
      ctx.stroke();
    }
    // The lines come from the top; where two are close, the lower one's name moves down.
    lowest = Math.max(y, lowest + 13 * scale);
    ctx.fillStyle = colour(isWindow ? "mark" : "soft");
    ctx.fillText(isWindow ? `${shortTokens(tokens)}` : name, right + (isWindow ? 26 : 10) * scale, lowest);
  }
  ctx.restore();
}

export const MARKS = {
  cut: { name: "results cut", colour: "bad", path: "M1 2h10l-5 9z" },
  put_back: { name: "reasoning put back", colour: "reasoning", path: "M1 10h10L6 1z", isSmall: true },
  compacted: { name: "history compacted", colour: "mark", path: "M6 0l6 6-6 6-6-6z" },
  repaired: { name: "refused part mended", colour: "good", path: "M1 1h10v10H1z" },
  overflow: { name: "overflow", colour: "bad", path: "M2 0l4 4 4-4 2 2-4 4 4 4-2 2-4-4-4 4-2-2 4-4-4-4z" },
};

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const [turns, tops] = plot.data;
  let lastSmall = -Infinity;
  turns.forEach((turn, at) => {
    const kinds = marks(at);
    if (!kinds.length) return;
    const x = plot.valToPos(turn, "x", true);
    let y = Math.max(bbox.top + 8 * scale, plot.valToPos(tops[at] ?? 0, "y", true) - 12 * scale);
    for (const kind of kinds) {
      // What happens on most turns stays small, at the bottom.
      const { isSmall } = MARKS[kind];
      if (isSmall && x - lastSmall < 9 * scale) continue;
      if (isSmall) lastSmall = x;
      const size = isSmall ? 0.6 * scale : scale;
      ctx.save();
      ctx.translate(x - 6 * size, isSmall ? bbox.top + bbox.height - 12 * scale : y - 6 * size);
      ctx.scale(size, size);
      const path = new Path2D(MARKS[kind].path);
      ctx.lineWidth = 2;
      ctx.strokeStyle = colour("card");
      ctx.stroke(path);
      ctx.fillStyle = colour(MARKS[kind].colour);
      ctx.fill(path);
      ctx.restore();
      if (!isSmall) y -= 15 * scale;
    }
  });
}

// Small charts below the context, with the same turns.
export function turnBars(height, label, names, format, { sync, moved, chosen }) {
  return stackedBars(height, label, () => names, format, () => 0, {
    x: { range: (_, low, high) => [low - 0.5, Math.max(high, low + 4) + 0.5] },
    right: besides,
    axis: () => ({ show: false }),
    cursor: { sync: { key: sync } },
    hooks: {
      setCursor: [(plot) => moved(plot.cursor.idx)],
      ready: [(plot) => plot.over.addEventListener("click", () => chosen(plot.cursor.idx))],
    },
  });
}

// The error of each estimate, around a line of none.
export function errorDots(height, label, { sync, moved, chosen }) {
  return chart(height, label, () => ({
    ...none, padding: [8, besides(), 4, 0],
    cursor: { sync: { key: sync }, drag: { x: false, y: false }, y: false, points: { show: false } },
    scales: {
      x: { time: false, range: (_, low, high) => [low - 0.5, Math.max(high, low + 4) + 0.5] },
      y: { range: (_, low, high) => { const most = Math.max(Math.abs(low ?? 0), Math.abs(high ?? 0), 0.01) * 1.25; return [-most, most]; } },
    },
    axes: [{ show: false }, valueAxis((share) => `${+(share * 100).toFixed(1)}%`, { splits: (_, __, low, high) => [low * 0.8, 0, high * 0.8] })],
    series: [{}, { stroke: colour("accent"), width: 1, spanGaps: true, points: { show: true, size: 5, width: 1, fill: colour("accent"), stroke: colour("card") } }],
    hooks: {
      setCursor: [(plot) => moved(plot.cursor.idx)],
      ready: [(plot) => plot.over.addEventListener("click", () => chosen(plot.cursor.idx))],
    },
  }));
}
