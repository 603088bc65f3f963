// The range of time that overview and models show. Until somebody chooses one, it is the shortest that has all calls of
// the last day, so that the first calls are not one bar at the right.

import { getJson } from "./api.js";
import { h } from "./dom.js";

const MINUTES = { "15m": 15, "1h": 60, "6h": 360, "24h": 1440, "7d": 10_080, "30d": 43_200 };
const RANGES = Object.keys(MINUTES);
const WIDEST = "24h";

const stored = localStorage.getItem("range");
let chosen = RANGES.includes(stored) ? stored : null;
let began = null;

export function shownRange() {
  if (chosen) return chosen;
  const minutes = (Date.now() - (began ?? 0)) / 60_000;
  return RANGES.slice(0, RANGES.indexOf(WIDEST)).find((range) => minutes <= MINUTES[range]) ?? WIDEST;
}

// The history of the shown range.
export async function getHistory() {
  const page = await getJson(`history?range=${shownRange()}`);
  if (chosen || began !== null) return page;
  began = page.steps.find((step) => step.calls > 0)?.at ?? null;
  return shownRange() === WIDEST ? page : getJson(`history?range=${shownRange()}`);
}

// A switch of a few choices.
export function segments(label, choices, choose) {
  const buttons = choices.map((choice) => h("button", { type: "button", onclick: () => { element.show(choice); choose(choice); } }, choice));
  const element = h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
  element.show = (shown) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === shown));
  };
  return element;
}

export function rangeSwitch(changed) {
  const element = segments("Range", RANGES, (choice) => {
    chosen = choice;
    localStorage.setItem("range", choice);
    changed();
  });
  element.show(shownRange());
  return element;
}
