// Overview: what was spent, sent and saved over a range, and how good estimates were.

import { getJson } from "./api.js";
import { spark, stackedBars, stacked } from "./charts.js";
import { age, cost, dateTime, dollars, grouped, h, keyed, percent, sessionName, setClass, setText, short, gauge, unpricedNote, when } from "./dom.js";
import { getHistory, rangeSwitch, shownRange } from "./range.js";

const MODEL_COLOURS = 5;
const RECENT = 6;
// A space at which no line breaks: a note of several phrases breaks between them.
const NO_BREAK = "\u00a0";

function stat(title, name) {
  const value = h("p", { class: "value" }, "–");
  const note = h("p", { class: "note" });
  const line = spark(`${title} over the range`, name);
  const element = h("section", { class: "card stat" }, h("h2", {}, title), value, note, h("div", { class: "spark" }, line));
  element.show = (text, words, points, times) => {
    setText(value, text);
    setText(note, words.split(" · ").map((phrase, at, all) => (all.length > 1 ? phrase.replaceAll(" ", NO_BREAK) : phrase)).join(`${NO_BREAK}· `));
    line.update([times, points]);
  };
  return element;
}

// A card with a chart and its legend.
export function chartCard(title, place) {
  const legend = h("ul", { class: "legend" });
  const element = h("section", { class: "card" }, h("header", {}, h("h2", {}, title), legend), h("div", { class: "chart" }, place));
  element.legend = (entries) => keyed(legend, entries, (entry) => entry.name, (entry) => {
    const dot = h("i");
    dot.style.background = `var(--${entry.colour})`;
    return h("li", {}, dot, h("span", {}, entry.name), h("b"));
  }, (item, entry) => {
    item.firstChild.style.background = `var(--${entry.colour})`;
    setText(item.lastChild, entry.value);
  });
  return element;
}

const TOKEN_KINDS = [
  { name: "from cache", colour: "read", of: (sums) => sums.cache_read },
  { name: "written to cache", colour: "write", of: (sums) => sums.cache_write },
  { name: "new input", colour: "fresh", of: (sums) => Math.max(0, sums.input - sums.cache_read - sums.cache_write) },
  { name: "output", colour: "output", of: (sums) => sums.output },
];

// A model may be used through several upstreams.
function dearest(models) {
  const sums = new Map();
  for (const { model, dollars: amount } of models) sums.set(model, (sums.get(model) ?? 0) + amount);
  return [...sums].filter(([, amount]) => amount > 0).sort(([, one], [, other]) => other - one).map(([model]) => model);
}

function countModels(models) {
  const { size } = new Set(models.map(({ model }) => model));
  return `${size} ${size === 1 ? "model" : "models"}`;
}

function recentRows() {
  const body = h("tbody");
  body.show = (list) => keyed(body, list, (session) => session.id, (session) => {
    const link = h("a", { class: "name", href: `#/session/${encodeURIComponent(session.id)}` });
    const bar = gauge();
    return Object.assign(h("tr", { class: "link", onclick: () => { location.hash = link.getAttribute("href"); } },
      h("td", { class: "wide" }, link, h("small")),
      h("td", { class: "wide" }, h("span", { class: "fill" }, bar, h("span"))),
      h("td", { class: "number", "data-label": "Spend" }), h("td", { class: "number soft", "data-label": "Last used" })), { bar });
  }, (row, session) => {
    const [name, fill, spend, used] = row.children;
    setText(name.firstChild, sessionName(session));
    setText(name.lastChild, session.model ?? "");
    row.bar.set((session.percent ?? 0) / 100);
    setText(fill.firstChild.lastChild, session.percent === undefined ? "–" : `${Math.round(session.percent)}%`);
    setText(spend, cost(session.dollars, session.unpriced));
    setText(used, age(session.newest));
  });
  return body;
}

function emptyNote(about) {
  return h("div", { class: "card empty" }, h("p", {}, "No session yet. Point a client at the proxy, for instance ",
    h("code", {}, `ANTHROPIC_BASE_URL=${about.clients}`), ", or try ", h("code", {}, "plimsoll demo"), "."));
}

export function overview(place) {
  const incomplete = h("p", { class: "notice", hidden: true });
  const empty = h("div", { hidden: true });
  const all = {
    spend: stat("Spend", "m0"), tokens: stat("Tokens", "m1"), sessions: stat("Sessions", "m2"), error: stat("Estimate error", "accent"),
    calls: stat("Calls", "m4"), failed: stat("Errors", "bad"), overflows: stat("Overflows avoided", "mark"), saved: stat("Saved by rewriting", "good"),
  };
  let modelNames = [];
  let span = 86_400_000;
  const spend = stackedBars(220, "US dollars over time, by model", () => modelNames.map((_, at) => `m${at}`), (value) => dollars(value), () => span);
  const tokens = stackedBars(220, "Tokens over time, by kind", () => TOKEN_KINDS.map((kind) => kind.colour), short, () => span);
  const spendCard = chartCard("Spend by model", spend);
  const tokenCard = chartCard("Tokens by kind", tokens);
  const recent = recentRows();
  const recentCard = h("section", { class: "card" }, h("header", {}, h("h2", {}, "Last used"), h("a", { href: "#/sessions" }, "All sessions")),
    h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, h("th", {}, "Session"), h("th", {}, "Context"), h("th", { class: "number" }, "Spend"), h("th", { class: "number" }, "Last used"))), recent)));
  const body = h("div", { class: "body" }, h("div", { class: "stats" }, Object.values(all)), h("div", { class: "pair" }, spendCard, tokenCard), recentCard);
  const ranges = rangeSwitch(() => refresh());
  place.append(h("div", { class: "top" }, h("h1", {}, "Overview"), ranges), incomplete, empty, body);

  function drawStats(page, times) {
    const { total } = page;
    const series = (of) => page.steps.map(of);
    const { estimates } = total;
    const perCall = `${dollars(total.calls ? total.dollars / total.calls : 0)} a call`;
    all.spend.show(cost(total.dollars, total.unpriced), `${dollars(page.today)} today, UTC · ${unpricedNote(total.unpriced) || perCall}`, series((step) => step.dollars), times);
    all.tokens.show(short(total.input + total.output), `${percent(total.input ? total.cache_read / total.input : 0)} of input from cache`, series((step) => step.input + step.output), times);
    all.sessions.show(grouped(total.sessions), countModels(page.models), series((step) => step.sessions), times);
    all.error.show(estimates.compared ? percent(estimates.median) : "–", estimates.compared ? `median · p95 ${percent(estimates.p95)} · ${percent(estimates.exact / estimates.compared)} exact` : "nothing to compare yet", series((step) => step.estimates.median), times);
    all.calls.show(grouped(total.calls), total.summaries ? `and ${grouped(total.summaries)} ${total.summaries === 1 ? "summary" : "summaries"} of our own` : "by clients", series((step) => step.calls), times);
    const known = page.failures_since > page.since ? `; refused ones since ${when(page.failures_since)}` : "";
    all.failed.show(grouped(total.failed), `${percent(total.calls ? total.failed / total.calls : 0)} of calls${known}`, series((step) => step.failed), times);
    setClass(all.failed.children[1], "bad", total.failed > 0);
    all.overflows.show(grouped(total.overflows_avoided), total.overflows ? `${grouped(total.overflows)} not avoided` : total.overflows_avoided ? "all of them" : "no request was too long", series((step) => step.overflows_avoided), times);
    const net = (sums) => sums.saved - sums.summary_dollars;
    const summaries = total.summary_dollars ? ` · ${dollars(total.summary_dollars)} for summaries` : "";
    all.saved.show(dollars(net(total)), `${short(total.removed)} tokens not sent${summaries}`, series(net), times);
  }

  function drawCharts(page, times) {
    const named = dearest(page.models).slice(0, MODEL_COLOURS);
    const hasOthers = page.steps.some((step) => Object.keys(step.dollars_by_model).some((model) => !named.includes(model)));
    const names = hasOthers ? [...named, "others"] : named;
    const values = names.map((name) => page.steps.map((step) => (name !== "others" ? step.dollars_by_model[name] ?? 0
      : Object.entries(step.dollars_by_model).reduce((sum, [model, amount]) => sum + (named.includes(model) ? 0 : amount), 0))));
    const hasOtherModels = names.join() !== modelNames.join();
    modelNames = names;
    const data = [times, ...stacked(values).toReversed()];
    if (hasOtherModels && spend.plot) {
      spend.plot.destroy();
      spend.plot = null;
    }
    if (names.length) spend.update(data);
    spendCard.legend(names.map((name, at) => ({ name, colour: `m${at}`, value: dollars(values[at].reduce((sum, value) => sum + value, 0)) })));
    tokens.update([times, ...stacked(TOKEN_KINDS.map((kind) => page.steps.map(kind.of))).toReversed()]);
    tokenCard.legend(TOKEN_KINDS.map((kind) => ({ name: kind.name, colour: kind.colour, value: short(kind.of(page.total)) })));
  }

  let asked = 0;
  async function refresh() {
    asked += 1;
    const mine = asked;
    const [page, list] = await Promise.all([getHistory(), getJson(`sessions?details=true&limit=${RECENT}`)]);
    // A later answer is on its way.
    if (mine !== asked) return false;
    ranges.show(shownRange());
    const isEmpty = list.sessions.length === 0;
    if (isEmpty && !empty.firstChild) empty.append(emptyNote(await getJson("about")));
    empty.hidden = !isEmpty;
    body.hidden = isEmpty;
    if (isEmpty) return false;
    span = page.until - page.since;
    const times = page.steps.map((step) => step.at + page.step_ms / 2);
    drawStats(page, times);
    drawCharts(page, times);
    recent.show(list.sessions);
    incomplete.hidden = page.complete_since <= page.since;
    setText(incomplete, `Older calls are ${page.reading ? "still being read" : "left out"}: complete since ${dateTime(page.complete_since)}.`);
    return page.reading;
  }
  return { refresh };
}
