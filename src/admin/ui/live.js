// Live: exchanges as they end, from the stream alone.

import { dollars, duration, h, hasFailed, keyed, outcomeName, setText, short, signedPercent, throttled, when } from "./dom.js";

const MOST = 200;
const DRAW_MS = 500;

// What came while another view was open is not known here.
const exchanges = [];
let seen = 0;
let missed = 0;
let wasHidden = false;

function changes(done) {
  const made = done?.new ?? {};
  return [
    made.cut && ["act", `${made.cut} cut`], made.put_back && ["act", `${made.put_back} put back`], made.compacted && ["act", "compacted"],
    made.injected && ["act", "message added"], made.repaired && ["act", "mended"], done?.overflow && [done.overflow.saved ? "act" : "bad", done.overflow.saved ? "overflow avoided" : "overflow"],
  ].filter(Boolean);
}

function makeRow(exchange) {
  // A call that became no turn is in no session.
  const id = exchange.saved && exchange.tenant && exchange.session ? `${exchange.tenant}.${exchange.session}` : "";
  const failed = hasFailed(exchange.outcome);
  const status = exchange.status ? String(exchange.status) : outcomeName(exchange.outcome);
  const name = exchange.agent?.name ?? exchange.session ?? exchange.path;
  const { usage } = exchange;
  return h("tr", {},
    h("td", { "data-label": "Time" }, when(exchange.at)),
    h("td", { class: "wide" }, id ? h("a", { class: "name", href: `#/session/${encodeURIComponent(id)}/${encodeURIComponent(exchange.id)}` }, name) : name,
      h("small", {}, [exchange.purpose && exchange.purpose !== "turn" ? exchange.purpose : "", exchange.agent ? exchange.session : ""].filter(Boolean).join(" · "))),
    h("td", { class: "wide" }, exchange.model ?? "–", h("small", {}, exchange.upstream ?? "")),
    h("td", { "data-label": "Status", class: failed || exchange.status >= 400 ? "bad" : "" }, status),
    h("td", { class: "number", "data-label": "Input" }, short(usage.input)),
    h("td", { class: "number", "data-label": "Output" }, short(usage.output)),
    h("td", { class: "number", "data-label": "Spend" }, dollars(exchange.dollars)),
    h("td", { class: "number", "data-label": "Estimate" }, signedPercent(exchange.error_ratio)),
    h("td", { class: "number", "data-label": "Took" }, duration(exchange.duration_us / 1000)),
    h("td", { class: "wide" }, changes(exchange.done).map(([kind, text]) => [h("span", { class: `tag ${kind}` }, text), " "]).flat()));
}

export function live(place) {
  const body = h("tbody");
  const count = h("span", { class: "soft" });
  const empty = h("p", { class: "empty" }, "Nothing has ended since this view was opened. Exchanges appear here as they end.");
  let isPaused = false;
  const pause = h("button", { type: "button", class: "button", "aria-pressed": "false", onclick: () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    setText(pause, isPaused ? "Continue" : "Pause");
    if (!isPaused) draw();
  } }, "Pause");
  const heads = [["Time"], ["Session"], ["Model"], ["Status"], ["Input", 1], ["Output", 1], ["Spend", 1], ["Estimate", 1], ["Took", 1], ["Changed"]];
  place.append(h("div", { class: "top" }, h("h1", {}, "Live"), h("div", { class: "row" }, count, pause)), h("section", { class: "card" },
    h("div", { class: "scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, heads.map(([title, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, title)))), body)), empty));

  function draw() {
    empty.hidden = exchanges.length > 0;
    setText(count, `${seen.toLocaleString("en-US")} ended${missed ? `, ${missed.toLocaleString("en-US")} not shown` : ""}${wasHidden ? "; those while this tab was hidden are not here" : ""}`);
    if (!isPaused) keyed(body, exchanges, (exchange) => exchange.id, makeRow, () => {});
  }
  const drawSoon = throttled(draw, DRAW_MS);
  draw();
  return {
    isStream: true,
    refresh: async () => draw(),
    event(kind, data) {
      if (kind === "missed") missed += data.missed;
      if (kind === "hidden") wasHidden = true;
      if (kind !== "exchange") return;
      seen += 1;
      exchanges.unshift(data);
      exchanges.length = Math.min(exchanges.length, MOST);
      drawSoon();
    },
  };
}
