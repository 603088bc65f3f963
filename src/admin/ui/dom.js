// Elements and numbers. Text goes into the page as text alone: session ids and model names are clients' words.

// An element: properties first (`class`, `on…`, attributes), then children.
export function h(name, properties = {}, ...children) {
  const element = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Changes a text only if it is another, so that a selection in it survives.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name, on) {
  if (element.classList.contains(name) !== Boolean(on)) element.classList.toggle(name, Boolean(on));
}

// Makes the children of `parent` those of `items`, by key: elements stay, move and go; they are never made anew.
export function keyed(parent, items, keyOf, make, update) {
  const present = parent.keyed ?? (parent.keyed = new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, element] of present) {
    if (!wanted.has(key)) {
      element.remove();
      present.delete(key);
    }
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = present.get(key);
    if (!element) {
      element = make(item);
      present.set(key, element);
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
}

// Runs `work` at most once in `every` ms, however often it is called; the last call is never lost.
export function throttled(work, every) {
  let last = -Infinity;
  let timer = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      last = performance.now();
      work();
    }, Math.max(0, last + every - performance.now()));
  };
}

export const grouped = (number) => Math.round(number).toLocaleString("en-US");

// 1,234 → 1.2k; 1,000,000 → 1M.
export function short(number) {
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  for (const [unit, name] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit * 0.9995) {
      const value = number / unit;
      return value.toFixed(Math.abs(value) < 9.95 ? 1 : 0).replace(/\.0$/, "") + name;
    }
  }
  return String(Math.round(number));
}

export function dollars(amount) {
  if (amount === null || amount === undefined) return "–";
  const size = Math.abs(amount);
  const digits = size === 0 || size >= 0.1 ? 2 : size >= 0.001 ? 3 : 4;
  return `${amount < 0 ? "−" : ""}$${size.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

// A share as percent, without sign.
export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const number = share * 100;
  if (number !== 0 && Math.abs(number) < 0.1) return "<0.1%";
  // Nearly all is not all.
  if (number > 99 && number < 100) return `${Math.floor(number * 10) / 10}%`;
  return `${number.toFixed(Math.abs(number) < 9.95 ? 1 : 0).replace(/\.0$/, "")}%`;
}

export function signedPercent(share) {
  if (share === null || share === undefined) return "–";
  if (share === 0) return "exact";
  const size = Math.abs(share * 100);
  return `${share < 0 ? "−" : "+"}${size < 0.1 ? Math.max(0.01, size).toFixed(2) : size.toFixed(1)}%`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor(ms / 1000) % 60} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.floor(ms / 60_000) % 60} min`;
}

export function age(then) {
  const seconds = Math.max(0, Math.round((Date.now() - then) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

export const clock = (at) => new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
export const dateTime = (at) => new Date(at).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

// The time of today, or the day and the time.
export const when = (at) => (new Date(at).toDateString() === new Date().toDateString() ? clock(at) : dateTime(at));

// What calls cost; `+ ?` if the price of some is not known.
export function cost(amount, unpriced) {
  if (!unpriced) return dollars(amount);
  return amount ? `${dollars(amount)} + ?` : "?";
}

export const calls = (number) => `${grouped(number)} ${number === 1 ? "call" : "calls"}`;
export const unpricedNote = (unpriced) => (unpriced ? `${calls(unpriced)} without a known price` : "");

const FAILURES = ["refused", "upstream_failed", "turned"];
const OUTCOMES = { turned: "ended by Plimsoll" };

// How an exchange ended. One that was interrupted did not fail: nobody knows its end.
export const hasFailed = (outcome) => FAILURES.includes(outcome);
export const outcomeName = (outcome) => OUTCOMES[outcome] ?? outcome.replace("_", " ");

// What a session is called: its title; else its agent, project and beginning; else as its client calls it. A project may be
// a hash, which tells nothing, and an id that the client did not choose neither.
export function sessionName({ title, agent, project, session, began }) {
  if (title) return title;
  const words = [agent && [agent.name, agent.version].filter(Boolean).join(" "), project?.startsWith("#") ? "" : project].filter(Boolean);
  if (words.length) return [...words, when(began)].join(" · ");
  return session.startsWith("line-") ? `Session of ${when(began)}` : session;
}

// An id with a button that copies it.
export function copyable(text, what) {
  const button = h("button", {
    type: "button",
    class: "copy",
    "aria-label": `Copy ${what}`,
    title: `Copy ${what}`,
    onclick: async (event) => {
      event.stopPropagation();
      await navigator.clipboard?.writeText(text).catch(() => {});
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1200);
    },
  });
  button.append(h("svg:svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, h("svg:path", { d: "M5.5 5.5h7v7h-7zM10.5 5.5v-2h-7v7h2" })));
  return h("span", { class: "id" }, h("code", {}, text), button);
}

// How full a context is, with the line that it must not cross.
export function gauge() {
  const fill = h("i");
  const element = h("span", { class: "gauge", "aria-hidden": "true" }, fill, h("b"));
  element.set = (share) => {
    const width = `${Math.min(100, share * 90).toFixed(1)}%`;
    if (fill.style.width !== width) fill.style.width = width;
    setClass(element, "high", share > 0.8 && share <= 1);
    setClass(element, "over", share > 1);
  };
  return element;
}
