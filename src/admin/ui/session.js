// Session: its context over its turns up to the line, what was changed, what each turn cost, and its threads in time.

import { getJson, getText } from "./api.js";
import { MARKS, contextChart, errorDots, stacked, turnBars } from "./charts.js";
import { copyable, calls, cost as costText, dateTime, dollars, duration, grouped, h, hasFailed, keyed, outcomeName, percent, sessionName, setClass, setText, short, signedPercent, unpricedNote, when } from "./dom.js";
import { chartCard } from "./overview.js";
import { segments } from "./range.js";
import { words } from "./words.js";

const PARTS = ["system", "tools", "messages", "reasoning"];
const CACHE = [["read", "read from cache"], ["write", "written to cache"], ["fresh", "new input"], ["output", "output"]];
const SVG_WIDTH = 1000;
// Rows of the table, until all are wanted.
const MOST_ROWS = 50;

function marksOf(turn) {
  const kinds = [];
  if (turn.overflow_avoided !== undefined) kinds.push("overflow");
  if (turn.sent) for (const kind of ["compacted", "cut", "put_back", "repaired"]) if (turn.new[kind]) kinds.push(kind);
  return kinds;
}

// The softer limits below the window.
function softLines(turn) {
  const limits = turn?.context.limits ?? {};
  return [{ tokens: limits.compacting, name: "compact" }, { tokens: limits.preparing, name: "prepare" }, { tokens: limits.pruning, name: "prune" }].filter((line) => line.tokens).sort((one, other) => other.tokens - one.tokens);
}

// Threads as a tree: a sub-agent below the one that started it. Returns them in order, with their depth.
function treeOf(turns, main) {
  const threads = new Map();
  for (const turn of turns) {
    const thread = threads.get(turn.thread) ?? { id: turn.thread, turns: [], agent: undefined, parent: undefined };
    thread.turns.push(turn);
    thread.agent ??= turn.agent;
    thread.agentId ??= turn.agent_id;
    thread.parentAgent ??= turn.parent_agent;
    threads.set(turn.thread, thread);
  }
  const all = [...threads.values()];
  const byAgent = new Map();
  for (const thread of all) if (thread.agentId && !byAgent.has(thread.agentId)) byAgent.set(thread.agentId, thread);
  const children = new Map();
  for (const thread of all) {
    if (thread.id === main) continue;
    const starter = byAgent.get(thread.parentAgent);
    const parent = starter && starter !== thread ? starter.id : main;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(thread);
  }
  const ordered = [];
  const added = new Set();
  const add = (thread, depth) => {
    if (added.has(thread)) return;
    added.add(thread);
    ordered.push({ thread, depth });
    for (const child of children.get(thread.id) ?? []) add(child, Math.min(3, depth + 1));
  };
  const first = threads.get(main);
  if (first) add(first, 0);
  for (const thread of all) add(thread, 0);
  return ordered;
}

function threadName(thread, main) {
  if (thread.id === main) return "Conversation";
  const kind = thread.turns.at(-1).purpose;
  const agent = thread.agent?.replace("_", " ");
  if (thread.agentId) return `${agent && agent !== "other" ? `${agent} agent` : "Sub-agent"} ${thread.agentId.slice(0, 12)}`;
  return agent ? `Sub-agent ${agent.slice(0, 12)}` : kind === "turn" ? "Branch" : kind;
}

function waterfall(choose) {
  const place = h("div", { class: "tree" });
  place.show = (turns, main, chosenThread, chosenTurn) => {
    const begin = Math.min(...turns.map((turn) => turn.at));
    const end = Math.max(...turns.map((turn) => turn.ended), begin + 1);
    const x = (at) => ((at - begin) / (end - begin)) * SVG_WIDTH;
    keyed(place, treeOf(turns, main), (line) => line.thread.id, ({ thread }) => {
      const picture = h("svg:svg", { viewBox: `0 0 ${SVG_WIDTH} 16`, preserveAspectRatio: "none", "aria-hidden": "true" });
      return h("button", { type: "button", onclick: () => choose(thread.id) }, h("span", { class: "label" }), picture, h("span", { class: "number" }));
    }, (button, { thread, depth }) => {
      const [label, picture, count] = button.children;
      label.className = `label d${depth}${thread.turns.at(-1).purpose === "turn" ? "" : " side"}`;
      setText(label, threadName(thread, main));
      label.title = thread.id;
      setText(count, calls(thread.turns.length));
      button.setAttribute("aria-pressed", String(thread.id === chosenThread));
      keyed(picture, thread.turns, (turn) => turn.request, () => h("svg:g", {}, h("svg:rect", { y: 2, height: 12, rx: 2, class: "wait" }), h("svg:rect", { y: 2, height: 12, rx: 2 }), h("svg:title")), (group, turn) => {
        const [wait, body, title] = group.children;
        const first = turn.first_byte_ms === undefined ? turn.at : turn.at + turn.first_byte_ms;
        wait.setAttribute("x", x(turn.at));
        wait.setAttribute("width", Math.max(0, x(first) - x(turn.at)));
        body.setAttribute("x", x(first));
        body.setAttribute("width", Math.max(3, x(turn.ended) - x(first)));
        for (const rect of [wait, body]) {
          setClass(rect, "side", turn.purpose !== "turn");
          setClass(rect, "failed", hasFailed(turn.outcome));
        }
        setClass(body, "chosen", turn.request === chosenTurn);
        setText(title, `${when(turn.at)}, ${duration(turn.ended - turn.at)}${turn.first_byte_ms === undefined ? "" : `, first byte after ${duration(turn.first_byte_ms)}`}`);
      });
    });
  };
  return place;
}

function turnTable(choose) {
  const body = h("tbody");
  const heads = [["Turn"], ["Time"], ["Context", 1], ["Input", 1], ["From cache", 1], ["Output", 1], ["Spend", 1], ["Estimate", 1], ["Took", 1], ["Changed"]];
  const all = h("button", { type: "button", class: "button", onclick: () => { most = Infinity; all.parentElement.hidden = true; element.again(); } }, "Show all");
  let most = MOST_ROWS;
  const element = h("div", {}, h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, heads.map(([title, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, title)))), body)), h("div", { class: "pager" }, all));
  element.show = (turns, chosen) => {
    element.again = () => element.show(turns, chosen);
    all.parentElement.hidden = turns.length <= most;
    drawRows(turns.map((turn, at) => ({ turn, at })).slice(-most).toReversed(), chosen);
  };
  const drawRows = (rows, chosen) => keyed(body, rows, ({ turn }) => turn.request, ({ turn }) => h("tr", { class: "link", onclick: () => { if (getSelection().isCollapsed) choose(turn.request, true); } },
    h("td", { "data-label": "Turn" }, h("button", { type: "button", class: "quiet" })), h("td", { "data-label": "Time" }),
    ...["Context", "Input", "From cache", "Output", "Spend", "Estimate", "Took"].map((label) => h("td", { class: "number", "data-label": label })), h("td", { class: "wide" })),
  (row, { turn, at }) => {
    const [number, time, context, input, cached, output, spend, error, took, changed] = row.children;
    setText(number.firstChild, String(at + 1));
    setText(time, when(turn.at));
    setText(context, turn.context ? `${short(turn.context.total)} · ${percent(turn.context.total / turn.context.window)}` : "–");
    setText(input, turn.usage.input === undefined ? "–" : short(turn.usage.input));
    setText(cached, turn.usage.input ? percent((turn.usage.cache_read ?? 0) / turn.usage.input) : "–");
    setText(output, turn.usage.output === undefined ? "–" : short(turn.usage.output));
    setText(spend, dollars(turn.dollars));
    setText(error, signedPercent(turn.estimate?.error_ratio));
    setText(took, duration(turn.ended - turn.at));
    row.setAttribute("aria-selected", String(turn.request === chosen));
    const tags = [turn.outcome, ...marksOf(turn)].join();
    if (changed.dataset.tags !== tags) {
      changed.dataset.tags = tags;
      changed.replaceChildren(...(turn.outcome === "complete" ? [] : [h("span", { class: hasFailed(turn.outcome) ? "tag bad" : "tag" }, outcomeName(turn.outcome)), " "]), ...marksOf(turn).flatMap((kind) => [h("span", { class: "tag act" }, MARKS[kind].name), " "]));
    }
  });
  return element;
}

function markLegend() {
  const place = h("ul", { class: "legend" });
  place.show = (kinds) => keyed(place, kinds, (kind) => kind, (kind) => {
    const path = h("svg:path", { d: MARKS[kind].path });
    path.style.fill = `var(--${MARKS[kind].colour})`;
    return h("li", {}, h("svg:svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, path), MARKS[kind].name);
  }, () => {});
  return place;
}

function tokenLegend() {
  return h("ul", { class: "legend" }, CACHE.map(([name, words]) => {
    const dot = h("i");
    dot.style.background = `var(--${name})`;
    return h("li", {}, dot, words);
  }));
}

export function session(place, [id, asked]) {
  let turns = [];
  let main = null;
  let thread = null;
  let chosen = asked ?? null;
  let explained = null;
  let isFitted = false;
  // The turns of the thread with a context: what the charts show.
  let line = [];
  const title = h("h1", {}, "Session");
  const crumbs = h("div", { class: "crumbs" });
  const loop = h("p", { class: "notice", hidden: true });
  const figures = h("dl", { class: "figures card" });
  const readout = h("p", { class: "readout" });
  const marks = markLegend();
  const sync = `session-${id}`;
  const pointed = { moved: (at) => read(line[at]), chosen: (at) => { const turn = line[at]; if (turn) choose(turn.request); }, sync };
  const context = contextChart({
    ...pointed, label: "The context of the conversation over its turns, as a stacked area below the model's window",
    lines: () => ({ window: line.at(-1)?.context.window ?? 0, softer: softLines(line.at(-1)) }),
    marks: (at) => marksOf(line[at] ?? { new: {} }), picked: () => line.findIndex(({ request }) => request === chosen), fits: () => isFitted,
  });
  const cache = turnBars(96, "Tokens of each turn: read from cache, written to cache, new, output", CACHE.map(([name]) => name), short, pointed);
  const cost = turnBars(76, "Cost of each turn, US dollars", ["accent"], dollars, pointed);
  const error = errorDots(84, "Error of the estimate of each turn", pointed);
  const contextCard = chartCard("Context over its turns", context);
  contextCard.insertBefore(readout, contextCard.lastChild);
  contextCard.append(h("div", { class: "row marks" }, marks));
  const scale = segments("Scale", ["window", "content"], (choice) => { isFitted = choice === "content"; context.rebuild(); });
  scale.show("window");
  contextCard.querySelector("header").append(scale);
  const below = h("section", { class: "card stack chart" }, h("header", {}, h("h2", {}, "Tokens"), tokenLegend()), cache, h("h2", {}, "Cost"), cost, h("h2", {}, "Error of the estimate"), error);
  const tree = waterfall((wanted) => {
    thread = wanted;
    chosen = null;
    show();
    conversation.refresh(thread, ownTurns().length).catch(() => {});
  });
  const table = turnTable((request, scrolls) => choose(request, scrolls));
  // A turn has one number, in the table and above its words.
  const ownTurns = () => turns.filter((turn) => turn.thread === thread);
  const numberOf = (request) => ownTurns().findIndex((turn) => turn.request === request) + 1;
  const conversation = words(id, { numberOf, choose: (request) => { choose(request); contextCard.scrollIntoView({ block: "nearest" }); } });
  const explanation = h("section", { class: "card", hidden: true });
  place.append(h("div", { class: "top" }, title, h("a", { href: "#/sessions" }, "All sessions")), crumbs, loop, figures,
    h("div", { class: "beside" }, h("div", { class: "body" }, contextCard, below), conversation.card), conversation.note,
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Threads in time")), tree), explanation,
    h("section", { class: "card" }, h("header", {}, h("h2", {}, "Calls")), table));

  function read(turn) {
    const shown = turn ?? line.find(({ request }) => request === chosen) ?? line.at(-1);
    if (!shown) return;
    const { context: parts } = shown;
    const free = Math.max(0, parts.window - parts.total);
    const texts = [[`turn ${line.indexOf(shown) + 1}`, when(shown.at)], ...PARTS.map((name) => [name, short(parts[name])]), ["free", short(free)], ["full", percent(parts.total / parts.window)], ["cost", dollars(shown.dollars)], ["estimate", signedPercent(shown.estimate?.error_ratio)]];
    texts.forEach(([name, value], at) => {
      const item = readout.children[at] ?? readout.appendChild(h("span", {}, h("span"), " ", h("b")));
      setText(item.firstChild, name);
      setText(item.lastChild, value);
    });
    while (readout.childElementCount > texts.length) readout.lastChild.remove();
  }

  async function choose(request, scrolls = false) {
    chosen = request;
    show();
    explained = request;
    conversation.show(request).catch(() => {});
    try {
      const [why, how] = await Promise.all([getText(`requests/${encodeURIComponent(request)}/explain?format=text`), getText(`sessions/${encodeURIComponent(id)}/threads/${encodeURIComponent(thread)}/context?format=text`)]);
      if (explained !== request) return;
      explanation.replaceChildren(h("header", {}, h("h2", {}, "What was done, and why"), copyable(request, "request id")), h("div", { class: "detail" }, h("pre", { tabindex: "0", "aria-label": "Explanation" }, why), h("pre", { tabindex: "0", "aria-label": "Context now" }, how)));
    } catch (wrong) {
      explanation.replaceChildren(h("p", { class: "empty" }, wrong.message));
    }
    explanation.hidden = false;
    if (scrolls) explanation.scrollIntoView({ block: "nearest" });
  }

  function show() {
    line = turns.filter((turn) => turn.thread === thread && turn.context);
    const own = line;
    const x = own.map((_, at) => at + 1);
    tree.show(turns, main, thread, chosen);
    table.show(ownTurns(), chosen);
    const hasChart = own.length > 0;
    contextCard.hidden = !hasChart;
    below.hidden = !hasChart;
    if (!hasChart) return;
    context.update([x, ...stacked(PARTS.map((name) => own.map((turn) => turn.context[name]))).toReversed()]);
    const fresh = ({ usage }) => Math.max(0, (usage.input ?? 0) - (usage.cache_read ?? 0) - (usage.cache_write ?? 0));
    cache.update([x, ...stacked([own.map((turn) => turn.usage.cache_read ?? 0), own.map((turn) => turn.usage.cache_write ?? 0), own.map(fresh), own.map((turn) => turn.usage.output ?? 0)]).toReversed()]);
    cost.update([x, own.map((turn) => turn.dollars ?? 0)]);
    error.update([x, own.map((turn) => turn.estimate?.error_ratio ?? null)]);
    const last = own.at(-1).context;
    contextCard.legend(PARTS.map((name) => ({ name, colour: name, value: short(last[name]) })));
    marks.show(Object.keys(MARKS).filter((kind) => own.some((turn) => marksOf(turn).includes(kind))));
    read();
  }

  function head(known) {
    setText(title, sessionName(known));
    document.title = `${sessionName(known)} · Plimsoll`;
    if (!crumbs.firstChild) {
      const agent = known.agent && [known.agent.name, known.agent.version].filter(Boolean).join(" ");
      crumbs.append(copyable(known.session, "session id"), ...[agent, known.project].filter(Boolean).map((text) => h("span", {}, text)), h("span", {}, `since ${dateTime(known.began)}`));
    }
    const repeated = Math.max(0, ...known.threads.map((line) => line.repeated_calls ?? 0));
    loop.hidden = repeated === 0;
    setText(loop, `A loop, probably: the same call had the same result in ${repeated} of the last 10 turns.`);
    const newest = line.at(-1);
    const isGuessed = known.threads.find((other) => other.id === thread)?.context?.window_guessed;
    const next = known.threads.find((other) => other.id === main)?.context?.next_input;
    const removed = turns.reduce((sum, turn) => sum + turn.removed, 0);
    const errors = turns.map((turn) => turn.estimate?.error_ratio).filter((ratio) => ratio !== null && ratio !== undefined).map(Math.abs).sort((one, other) => one - other);
    const entries = [
      ["Context", newest ? percent(newest.context.total / newest.context.window) : "–", newest ? `${short(newest.context.total)} of ${short(newest.context.window)}${isGuessed ? ", a guess" : ""}` : ""],
      ["Spend", costText(known.dollars, known.unpriced), unpricedNote(known.unpriced)],
      ["Next call", dollars(next?.dollars), next ? (next.dollars < next.cold ? `${dollars(next.cold)} once cold` : "its input, cold") : ""], ["Calls", grouped(known.turns), ""],
      ["Input", short(known.totals.input), `${percent(known.totals.input ? known.totals.cache_read / known.totals.input : 0)} cached`],
      ["Output", short(known.totals.output), known.totals.reasoning ? `${short(known.totals.reasoning)} reasoning` : ""],
      ["Estimate error", errors.length ? percent(errors[Math.floor((errors.length - 1) / 2)]) : "–", "median"], ["Not sent", short(removed), dollars(turns.reduce((sum, turn) => sum + turn.saved, 0))],
    ];
    keyed(figures, entries, ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("span"), " ", h("small"))), (item, [, value, more]) => {
      setText(item.lastChild.firstChild, value);
      setText(item.lastChild.lastChild, more);
    });
  }

  async function refresh() {
    // Turns that ended since are added; one may have been replaced by its whole reply.
    const since = turns.length ? Math.max(...turns.map((turn) => turn.ended)) - 60_000 : 0;
    const path = `sessions/${encodeURIComponent(id)}`;
    const [known, page] = await Promise.all([getJson(path), getJson(`${path}/turns?since=${Math.max(0, since)}`)]);
    const byRequest = new Map(turns.map((turn) => [turn.request, turn]));
    for (const turn of page.turns) byRequest.set(turn.request, turn);
    turns = [...byRequest.values()].sort((one, other) => one.at - other.at);
    main = page.main_thread ?? turns[0]?.thread;
    if (thread === null) {
      thread = turns.find((turn) => turn.request === chosen)?.thread ?? main;
      if (chosen) choose(chosen);
    }
    show();
    head(known);
    await conversation.refresh(thread, ownTurns().length, chosen);
  }

  const keys = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (!["ArrowLeft", "ArrowRight"].includes(event.key) || event.target.closest("input, select, pre, .segments")) return;
    const own = line;
    const here = own.findIndex((turn) => turn.request === chosen);
    const next = own[here < 0 ? own.length - 1 : Math.min(own.length - 1, Math.max(0, here + (event.key === "ArrowLeft" ? -1 : 1)))];
    if (next && next.request !== chosen) choose(next.request);
  };
  document.addEventListener("keydown", keys);
  return {
    refresh,
    close: () => document.removeEventListener("keydown", keys),
  };
}
