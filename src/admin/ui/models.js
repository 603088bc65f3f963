// Models: how good estimates are for each, and what it was used for.

import { cost, grouped, h, keyed, percent, setText, short, unpricedNote } from "./dom.js";
import { getHistory, rangeSwitch, shownRange } from "./range.js";

const BAND_GOAL = 0.9;

function makeRow() {
  return h("tr", {},
    h("td", { class: "wide" }, h("span")),
    h("td", { class: "wide" }, h("span", { class: "errors", role: "img" })),
    ...["Median", "p95", "Exact", "In band", "Estimates", "Calls", "Tokens", "From cache", "Spend"].map((label) => h("td", { class: "number", "data-label": label })));
}

function edgeName(edges, at) {
  const name = (edge) => `${edge > 0 ? "+" : ""}${+(edge * 100).toFixed(1)}%`;
  if (at === 0) return `below ${name(edges[0])}`;
  return at === edges.length ? `above ${name(edges.at(-1))}` : `${name(edges[at - 1])} to ${name(edges[at])}`;
}

function updateRow(row, model, edges) {
  const [name, errors, median, p95, exact, band, compared, calls, tokens, cached, spend] = row.children;
  setText(name.firstChild, model.model);
  const most = Math.max(1, ...model.errors);
  const bars = errors.firstChild;
  if (!bars.childElementCount) bars.append(...model.errors.map((_, at) => h("i", { class: at < edges.length && edges[at] > 0 && edges[at] <= 0.001 ? "zero" : "" })));
  model.errors.forEach((count, at) => {
    bars.children[at].style.height = `${count === 0 ? 1 : Math.max(3, 30 * Math.sqrt(count / most))}px`;
    bars.children[at].title = `${edgeName(edges, at)}: ${grouped(count)}`;
  });
  bars.setAttribute("aria-label", model.errors.map((count, at) => (count ? `${edgeName(edges, at)}: ${count}` : "")).filter(Boolean).join(", ") || "no estimate to compare");
  const { estimates } = model;
  const share = (part, whole) => (whole ? percent(part / whole) : "–");
  setText(median, percent(estimates.median));
  setText(p95, percent(estimates.p95));
  setText(exact, share(estimates.exact, estimates.compared));
  setText(band, share(estimates.in_band, estimates.banded));
  band.classList.toggle("warn", estimates.banded > 20 && estimates.in_band / estimates.banded < BAND_GOAL - 0.05);
  setText(compared, grouped(estimates.compared));
  setText(calls, grouped(model.calls));
  setText(tokens, short(model.input + model.output));
  setText(cached, share(model.cache_read, model.input));
  setText(spend, cost(model.dollars, model.unpriced));
  spend.title = unpricedNote(model.unpriced);
}

export function models(place) {
  const body = h("tbody");
  const empty = h("p", { class: "empty", hidden: true }, "No call in this range.");
  const heads = [["Model"], ["Error of estimates"], ["Median", 1], ["p95", 1], ["Exact", 1], ["In band", 1], ["Estimates", 1], ["Calls", 1], ["Tokens", 1], ["From cache", 1], ["Spend", 1]];
  const ranges = rangeSwitch(() => refresh().catch(() => {}));
  place.append(h("div", { class: "top" }, h("h1", {}, "Models"), ranges),
    h("section", { class: "card" }, h("div", { class: "scroll" }, h("table", { class: "cards" },
      h("thead", {}, h("tr", {}, heads.map(([title, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, title)))), body)), empty),
    h("p", { class: "soft" }, "An error is the estimate less what the provider reported, as a share of that: too low at the left, too high at the right, within 0.1% in green. The band is the range that an estimate promises; nine of ten reports should be in it."));

  async function refresh() {
    const page = await getHistory();
    ranges.show(shownRange());
    keyed(body, page.models, (model) => model.model, makeRow, (row, model) => updateRow(row, model, page.error_edges));
    empty.hidden = page.models.length > 0;
    return page.reading;
  }
  return { refresh };
}
