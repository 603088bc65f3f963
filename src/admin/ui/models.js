// Models: how good estimates are for each, and what it was used for.

import { cost, grouped, h, keyed, percent, setText, short, unpricedNote } from "./dom.js";
import { getHistory, rangeSwitch, shownRange } from "./range.js";

const BAND_GOAL = 0.9;

const cells = (labels) => labels.map((label) => h("td", { class: "number", "data-label": label }));
const ESTIMATES = ["Median", "p95", "Exact", "In band", "Band", "Corrected", "Estimates"];
const USE = ["Calls", "Tokens", "From cache", "Spend"];
const nameCell = () => h("td", { class: "wide" }, h("span"), h("small"));
const makeCalibration = () => h("tr", {}, nameCell(), h("td", { class: "wide" }, h("span", { class: "errors", role: "img" })), cells(ESTIMATES));
const makeUse = () => h("tr", {}, nameCell(), cells(USE));
const share = (part, whole) => (whole ? percent(part / whole) : "–");

function table(heads, labels, body) {
  const head = h("tr", {}, heads.map((title) => h("th", { scope: "col" }, title)), labels.map((title) => h("th", { scope: "col", class: "number" }, title)));
  return h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, head), body));
}

function setName(cell, { model, upstream }) {
  setText(cell.firstChild, model);
  setText(cell.lastChild, upstream);
}

function edgeName(edges, at) {
  const name = (edge) => `${edge > 0 ? "+" : ""}${+(edge * 100).toFixed(1)}%`;
  if (at === 0) return `below ${name(edges[0])}`;
  return at === edges.length ? `above ${name(edges.at(-1))}` : `${name(edges[at - 1])} to ${name(edges[at])}`;
}

function updateCalibration(row, model, edges) {
  const [name, errors, median, p95, exact, inBand, band, corrected, compared] = row.children;
  setName(name, model);
  const most = Math.max(1, ...model.errors);
  const bars = errors.firstChild;
  if (!bars.childElementCount) bars.append(...model.errors.map((_, at) => h("i", { class: at < edges.length && edges[at] > 0 && edges[at] <= 0.001 ? "zero" : "" })));
  model.errors.forEach((count, at) => {
    bars.children[at].style.height = `${count === 0 ? 1 : Math.max(3, 30 * Math.sqrt(count / most))}px`;
    bars.children[at].title = `${edgeName(edges, at)}: ${grouped(count)}`;
  });
  bars.setAttribute("aria-label", model.errors.map((count, at) => (count ? `${edgeName(edges, at)}: ${count}` : "")).filter(Boolean).join(", ") || "no estimate to compare");
  const { estimates } = model;
  setText(median, percent(estimates.median));
  setText(p95, percent(estimates.p95));
  setText(exact, share(estimates.exact, estimates.compared));
  setText(inBand, share(estimates.in_band, estimates.banded));
  inBand.classList.toggle("warn", estimates.banded > 20 && estimates.in_band / estimates.banded < BAND_GOAL - 0.05);
  setText(band, estimates.band === null ? "–" : `±${percent(estimates.band)}`);
  setText(corrected, share(estimates.corrected, estimates.compared));
  setText(compared, grouped(estimates.compared));
}

function updateUse(row, model) {
  const [name, calls, tokens, cached, spend] = row.children;
  setName(name, model);
  setText(calls, grouped(model.calls));
  setText(tokens, short(model.input + model.output));
  setText(cached, share(model.cache_read, model.input));
  setText(spend, cost(model.dollars, model.unpriced));
  spend.title = unpricedNote(model.unpriced);
}

export function models(place) {
  const calibration = h("tbody");
  const use = h("tbody");
  const empty = h("p", { class: "empty", hidden: true }, "No call in this range.");
  const ranges = rangeSwitch(() => refresh().catch(() => {}));
  place.append(h("div", { class: "top" }, h("h1", {}, "Models"), ranges),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Calibration")), table(["Model", "Error of estimates"], ESTIMATES, calibration)),
    h("p", { class: "soft" }, "An error is the estimate less what the provider reported, as a share of that: too low at the left, too high at the right, within 0.1% in green. The band is the range that an estimate promises; nine of ten reports should be in it. Corrected are estimates that were changed by what earlier replies of this model and upstream taught."),
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Use")), table(["Model"], USE, use), empty));

  async function refresh() {
    const page = await getHistory();
    ranges.show(shownRange());
    const keyOf = (model) => `${model.model} ${model.upstream}`;
    keyed(calibration, page.models, keyOf, makeCalibration, (row, model) => updateCalibration(row, model, page.error_edges));
    keyed(use, page.models, keyOf, makeUse, updateUse);
    empty.hidden = page.models.length > 0;
    return page.reading;
  }
  return { refresh };
}
