// Sessions: a list that the server sorts, filters and pages, so that it stays quick with 100,000 of them.

import { getJson } from "./api.js";
import { age, calls, cost, gauge, grouped, h, keyed, sessionName, setClass, setText, short, signedPercent, unpricedNote } from "./dom.js";

const PAGE = 50;
const COLUMNS = [
  ["client", "Session", ""], ["model", "Model", ""], ["fill", "Context", ""], ["dollars", "Spend", "number"],
  ["error", "Last estimate", "number"], ["turns", "Turns", "number"], ["used", "Last used", "number"],
];
const FIRST_ASCENDING = ["client", "model"];

const DEFAULTS = { search: "", model: "", upstream: "", tenant: "", sort: "used", order: "desc", skip: 0 };
// What is looked at stays while other views are open, and in the address, so that a reload and a link show the same.
const wanted = { ...DEFAULTS };

function readAddress() {
  const query = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (!query.size) return;
  for (const [key, value] of Object.entries(DEFAULTS)) wanted[key] = query.get(key) ?? value;
  wanted.skip = Number(wanted.skip) || 0;
}

function writeAddress() {
  // An answer may come after another view was opened.
  if (!/^#\/sessions(\?|$)/.test(location.hash)) return;
  const changed = Object.entries(wanted).filter(([key, value]) => value !== DEFAULTS[key]);
  const query = new URLSearchParams(changed).toString();
  history.replaceState(null, "", `#/sessions${query && "?"}${query}`);
}

function makeRow(session) {
  const link = h("a", { class: "name", href: `#/session/${encodeURIComponent(session.id)}` });
  const bar = gauge();
  const row = h("tr", {
    class: "link",
    // A selection of text is no click.
    onclick: (event) => { if (!event.target.closest("a") && getSelection().isCollapsed) location.hash = link.getAttribute("href"); },
  },
  h("td", { class: "wide" }, link, h("small")),
  h("td", { class: "wide" }, h("span"), h("small")),
  h("td", { class: "wide" }, h("span", { class: "fill" }, bar, h("span")), h("small")),
  h("td", { class: "number", "data-label": "Spend" }),
  h("td", { class: "number", "data-label": "Last estimate" }),
  h("td", { class: "number", "data-label": "Turns" }),
  h("td", { class: "number soft", "data-label": "Last used" }));
  row.bar = bar;
  return row;
}

function updateRow(row, session) {
  const [name, model, context, spend, error, turns, used] = row.children;
  const title = sessionName(session);
  setText(name.firstChild, title);
  const agent = session.agent && [session.agent.name, session.agent.version].filter(Boolean).join(" ");
  const more = [session.title && agent, session.title && session.project, session.session === title ? "" : session.session, session.failed && `${calls(session.failed)} failed`].filter(Boolean);
  setText(name.lastChild, more.join(" · "));
  setText(model.firstChild, session.model ?? "–");
  setText(model.lastChild, session.upstream ?? "");
  row.bar.set((session.percent ?? 0) / 100);
  setText(context.firstChild.lastChild, session.percent === undefined ? "–" : `${Math.round(session.percent)}%`);
  setText(context.lastChild, session.context === undefined ? "" : `${short(session.context)} of ${short(session.window)}${session.window_guessed ? "?" : ""}`);
  context.title = session.window_guessed ? "Nobody knows the model: its window is a guess" : "";
  setText(spend, cost(session.dollars, session.unpriced));
  spend.title = unpricedNote(session.unpriced);
  setText(error, signedPercent(session.error_ratio));
  setClass(error, "warn", Math.abs(session.error_ratio ?? 0) > 0.05);
  setText(turns, grouped(session.turns));
  setText(used, age(session.newest));
}

function select(label, key, changed) {
  const element = h("select", { "aria-label": label, onchange: () => { wanted[key] = element.value; changed(); } });
  element.show = (names) => {
    const all = [...new Set([...names, wanted[key]].filter(Boolean))].sort();
    element.hidden = all.length < 2 && !wanted[key];
    keyed(element, ["", ...all], (name) => name, (name) => h("option", { value: name }, name || label), () => {});
    element.value = wanted[key];
  };
  element.show([]);
  return element;
}

export function sessions(place) {
  readAddress();
  const body = h("tbody");
  const count = h("span", { class: "soft" });
  const shown = h("span");
  const empty = h("p", { class: "empty", hidden: true }, "No session matches.");
  const changed = () => { wanted.skip = 0; refresh().catch(() => {}); };
  let typing = 0;
  const search = h("input", {
    type: "search", placeholder: "Search: agent, title, project, model, id", "aria-label": "Search sessions", value: wanted.search,
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => { wanted.search = search.value.trim(); changed(); }, 250);
    },
  });
  const filters = { model: select("All models", "model", changed), upstream: select("All upstreams", "upstream", changed), tenant: select("All credentials", "tenant", changed) };
  const heads = COLUMNS.map(([key, title, kind]) => h("th", { class: kind, scope: "col" }, h("button", {
    type: "button",
    onclick: () => {
      const isSame = wanted.sort === key;
      const first = FIRST_ASCENDING.includes(key) ? "asc" : "desc";
      wanted.order = isSame && wanted.order === first ? (first === "asc" ? "desc" : "asc") : first;
      wanted.sort = key;
      changed();
    },
  }, title)));
  const step = (by) => () => { wanted.skip = Math.max(0, wanted.skip + by); refresh().then(() => scrollTo(0, 0), () => {}); };
  const previous = h("button", { type: "button", class: "button", onclick: step(-PAGE) }, "Previous");
  const next = h("button", { type: "button", class: "button", onclick: step(PAGE) }, "Next");
  place.append(h("div", { class: "top" }, h("h1", {}, "Sessions"), count), h("section", { class: "card" },
    h("div", { class: "tools" }, search, Object.values(filters)),
    h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, heads)), body)), empty,
    h("div", { class: "pager" }, shown, previous, next)));

  let asked = 0;
  let hasNames = false;
  async function refresh() {
    asked += 1;
    const mine = asked;
    writeAddress();
    const query = new URLSearchParams({ details: "true", limit: PAGE, skip: wanted.skip, sort: wanted.sort, order: wanted.order });
    for (const key of ["search", "model", "upstream", "tenant"]) if (wanted[key]) query.set(key, wanted[key]);
    const list = await getJson(`sessions?${query}`);
    // A later answer is on its way.
    if (mine !== asked) return false;
    keyed(body, list.sessions, (session) => session.id, makeRow, updateRow);
    heads.forEach((head, at) => {
      if (COLUMNS[at][0] === wanted.sort) head.setAttribute("aria-sort", wanted.order === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    empty.hidden = list.sessions.length > 0;
    const isFiltered = ["search", "model", "upstream", "tenant"].some((key) => wanted[key]);
    setText(empty, isFiltered ? "No session matches." : "No session yet.");
    const first = list.sessions.length ? wanted.skip + 1 : 0;
    const most = list.found === undefined ? "" : ` of ${grouped(list.found)}`;
    setText(shown, list.sessions.length ? `${grouped(first)}–${grouped(wanted.skip + list.sessions.length)}${most}` : "");
    const searched = `searched and sorted: the newest ${grouped(list.indexed ?? 0)}`;
    setText(count, list.reading ? `${searched}; older ones are still being read` : list.incomplete ? `${searched}; older ones are left out` : "");
    previous.disabled = wanted.skip === 0;
    next.disabled = list.next === null;
    if (hasNames) return list.reading;
    hasNames = true;
    const names = await getJson("history?range=30d");
    filters.model.show(names.models.map((model) => model.model));
    filters.upstream.show(names.upstreams);
    filters.tenant.show(names.tenants);
    return list.reading;
  }
  return { refresh };
}
