// The words of a thread beside its chart: what each call added and what was replied, some calls at a time.
//
// Whatever was said is untrusted: it goes into the page as text alone.

import { getJson } from "./api.js";
import { grouped, h, keyed, setText, short, when } from "./dom.js";

// Results and arguments with more lines are folded.
const MOST_LINES = 12;
const CALLS = 20;
const NO_TOKEN = "The words of this session need the admin token: open the link that plimsoll serve prints, or paste the token of admin.token in the data folder.";
const NOT_KEPT = "The words of this session were not kept. With content.keep = true in the configuration those of later calls are, and stand here beside the chart.";

const lines = (text) => text.trimEnd().split("\n").length;

// Arguments of calls are JSON.
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function tags(part, numberOf) {
  const { cut } = part;
  if (part.put_back) return [" ", h("span", { class: "tag act" }, "put back")];
  if (!cut) return [];
  const turn = numberOf(cut.request);
  return [" ", h("span", { class: "tag act" }, `cut ${turn ? `at turn ${turn}` : "in another thread"}: ${grouped(cut.tokens_before)} → ${grouped(cut.tokens_after)} tokens`)];
}

function folded(title, text, marks) {
  return h("details", {}, h("summary", {}, title, marks), h("pre", {}, text));
}

function block(title, text, marks) {
  const count = lines(text);
  if (count > MOST_LINES) return folded(`${title} · ${grouped(count)} lines`, text, marks);
  return h("div", {}, h("p", { class: "who" }, title, marks), h("pre", {}, text));
}

const WHO = { system: "System", user: "User", assistant: "Assistant" };

function shown(part, numberOf) {
  const marks = tags(part, numberOf);
  const title = { tool_use: `Calls ${part.name ?? "a tool"}`, tool_result: part.continues ? "Result, continued" : "Result", thinking: "Reasoning", tools: `Tool ${part.name ?? ""}`, image: "Picture", other: "Document or other part" }[part.kind] ?? WHO[part.role];
  if (!part.text) return h("p", { class: "who" }, `${title}: ${grouped(part.bytes)} bytes without text`, marks);
  if (part.kind === "thinking" || part.role === "system") return folded(`${title} · ${short(part.text.length)} characters`, part.text, marks);
  if (part.kind === "text") return h("div", {}, h("p", { class: "who" }, title, marks), h("p", { class: "said" }, part.text));
  return block(title, part.kind === "tool_use" ? indented(part.text) : part.text, marks);
}

function classOf(part) {
  return part.kind === "text" || part.kind === "image" ? part.role : part.kind;
}

function shownParts(parts, numberOf) {
  const tools = parts.filter((part) => part.kind === "tools");
  const others = parts.filter((part) => part.kind !== "tools").map((part) => h("div", { class: `part ${classOf(part)}` }, shown(part, numberOf)));
  if (!tools.length) return others;
  const names = `${grouped(tools.length)} ${tools.length === 1 ? "tool" : "tools"}`;
  return [h("details", { class: "part tools" }, h("summary", {}, names), tools.map((part) => shown(part, numberOf))), ...others];
}

function content(call, numberOf) {
  const { compacted } = call;
  const all = [];
  if (compacted) {
    const words = `History compacted here: ${grouped(compacted.tokens_before)} → ${grouped(compacted.tokens_after)} tokens`;
    all.push(h("div", { class: "part compacted" }, compacted.text ? folded(words, indented(compacted.text), []) : h("p", { class: "who" }, words)));
  }
  if (!call.stored) all.push(h("p", { class: "soft" }, "No words of this call were kept."));
  const parts = shownParts(call.parts, numberOf);
  if (call.whole) all.push(h("details", { class: "part" }, h("summary", {}, `The client sent another history: ${grouped(call.parts.length)} parts`), parts));
  else all.push(...parts);
  all.push(...shownParts(call.reply, numberOf));
  if (call.left_out) all.push(h("p", { class: "soft" }, `${grouped(call.left_out)} more parts: too many to show here, plimsoll export --content has them.`));
  return all;
}

// `choose(request)`: somebody chose this call. `numberOf(request)`: which turn of the thread it is.
export function words(id, { choose, numberOf }) {
  let about = null;
  let thread = null;
  let calls = [];
  let skip = 0;
  let total = 0;
  let asked = 0;
  const body = h("div");
  const earlier = h("button", { type: "button", class: "button", onclick: () => load(`skip=${Math.max(0, skip - CALLS)}&limit=${Math.min(CALLS, skip)}`) }, "Earlier");
  const later = h("button", { type: "button", class: "button", onclick: () => load(`skip=${skip + calls.length}`) }, "Later");
  const list = h("div", { class: "talk", tabindex: "0", role: "region", "aria-label": "Conversation" }, earlier, body, later);
  const card = h("section", { class: "card words", hidden: true }, h("header", {}, h("h2", {}, "Conversation"), h("span", { class: "soft" }, "secrets masked")), list);
  const note = h("p", { class: "soft", hidden: true });

  function explain(text) {
    setText(note, text);
    note.hidden = text === "";
    card.hidden = text !== "";
  }

  function draw() {
    explain(about.keeps_content || calls.some((call) => call.stored) ? "" : NOT_KEPT);
    earlier.hidden = skip === 0;
    later.hidden = skip + calls.length >= total;
    keyed(body, calls, (call) => call.request, (call) => h("article", { class: "call" },
      h("header", {}, h("button", { type: "button", class: "quiet", onclick: () => choose(call.request) }), h("span", { class: "soft" }, when(call.at))), h("div")),
    (element, call) => {
      setText(element.firstChild.firstChild, `Turn ${numberOf(call.request)}`);
      // What is read or selected stays, unless it is another.
      const json = JSON.stringify(call);
      if (element.json === json) return;
      element.json = json;
      element.lastChild.replaceChildren(...content(call, numberOf));
    });
  }

  // Takes a page into what is shown; a page that does not adjoin it replaces it.
  function take(page) {
    const adjoins = page.skip <= skip + calls.length && page.skip + page.calls.length >= skip;
    if (!adjoins) calls = [];
    const first = calls.length ? Math.min(skip, page.skip) : page.skip;
    const all = [];
    calls.forEach((call, at) => { all[skip + at - first] = call; });
    page.calls.forEach((call, at) => { all[page.skip + at - first] = call; });
    [calls, skip, total] = [all, first, page.total];
  }

  async function load(query, place = "") {
    asked += 1;
    const mine = asked;
    const page = await getJson(`sessions/${encodeURIComponent(id)}/threads/${encodeURIComponent(thread)}/transcript?${query}`);
    // Another page or thread was asked for meanwhile.
    if (mine !== asked) return;
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    const fromEnd = list.scrollHeight - list.scrollTop;
    const isBefore = page.skip < skip;
    take(page);
    draw();
    if (place) scroll(place);
    else if (isBefore) list.scrollTop = list.scrollHeight - fromEnd;
    else if (isAtEnd && skip + calls.length >= total) list.scrollTop = list.scrollHeight;
  }

  function scroll(request) {
    const element = body.keyed?.get(request);
    if (element) list.scrollTop = element.offsetTop - list.offsetTop;
    for (const other of body.children) other.classList.toggle("chosen", other === element);
  }

  // Shows a call of the thread, if its words may be read.
  async function show(request) {
    if (thread === null || !about?.may_read_content) return;
    if (calls.some((call) => call.request === request)) scroll(request);
    else await load(`request=${encodeURIComponent(request)}`, request);
  }

  // `count`: how many turns the thread has.
  async function refresh(wanted, count, chosen) {
    about ??= await getJson("about");
    if (!about.may_read_content) return explain(NO_TOKEN);
    if (wanted !== thread) {
      thread = wanted;
      [calls, skip, total] = [[], 0, 0];
      return chosen ? load(`request=${encodeURIComponent(chosen)}`, chosen) : load(`limit=${CALLS}`);
    }
    // Text is stored a little after its turn; new cuts are marked at what they are about.
    const isNewest = skip + calls.length >= total;
    if (isNewest && (count > total || calls.at(-1)?.stored === false)) return load(`skip=${Math.max(0, count - CALLS)}&limit=${CALLS}`);
    total = Math.max(total, count);
    later.hidden = isNewest;
    return undefined;
  }
  return { card, note, show, refresh };
}
