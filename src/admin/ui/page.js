// The page: which view is shown, the stream of events, theme and connection.
//
// A view is `open(place, argument, page)`, and returns `{ refresh, event, close }`. Whatever the load, a view is refreshed
// at most every two seconds, with one or two requests; between them only the stream is read.

import { Refused, askTabs, carryToken, getJson, listen, setToken } from "./api.js";
import { destroyIn, redrawAll } from "./charts.js";
import { setClass, setText, throttled } from "./dom.js";
import { live } from "./live.js";
import { models } from "./models.js";
import { overview } from "./overview.js";
import { session } from "./session.js";
import { sessions } from "./sessions.js";

const REFRESH_MS = 2_500;
const IDLE_MS = 30_000;
const RETRY_MS = 2_000;
const VIEWS = { overview, sessions, session, live, models };

const at = (id) => document.getElementById(id);
let view = null;
let hasRefused = false;
// Whether the view that is shown has had its numbers; what has none is not drawn beside an error.
let hasNumbers = false;
let hasRouted = false;

function state(kind, text) {
  at("state").className = kind;
  setText(at("state"), text);
}

// What is wrong with the view that is shown, and with the store.
let viewFailure = "";
let storeFailure = "";
function showFailure() {
  const text = viewFailure || storeFailure;
  setText(at("failure"), text);
  at("failure").hidden = !text;
}

function fail(error) {
  if (error instanceof Refused) {
    if (error.isLate) return;
    hasRefused = true;
    at("ask").hidden = false;
    at("view").hidden = true;
    state("lost", error.message);
    viewFailure = error.sent ? "This token is wrong." : "";
    showFailure();
    at("token").focus();
    return;
  }
  setClass(at("view"), "unread", !hasNumbers);
  viewFailure = error.message;
  showFailure();
}

async function refresh() {
  if (document.hidden || hasRefused) return;
  const shown = view;
  try {
    const hasMore = await shown?.refresh();
    // The answer to another view's question says nothing of this one.
    if (shown !== view) return;
    hasNumbers = true;
    setClass(at("view"), "unread", false);
    viewFailure = "";
    showFailure();
    if (hasMore) refreshSoon();
  } catch (error) {
    if (shown === view) fail(error);
  }
}
const refreshSoon = throttled(refresh, REFRESH_MS);

async function showAbout() {
  const about = await getJson("about");
  setText(at("about"), `v${about.version} · ${about.mode}`);
  storeFailure = about.store_failure ? `Nothing is stored for now, traffic continues: ${about.store_failure}` : "";
  showFailure();
  return about;
}

function route() {
  // The link was opened in a tab that shows the page already.
  if (carryToken()) return location.reload();
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").replace(/\?.*/, "").split("/");
  const open = VIEWS[name] ?? overview;
  view?.close?.();
  destroyIn(at("view"));
  at("view").replaceChildren();
  hasNumbers = false;
  setClass(at("view"), "unread", false);
  viewFailure = "";
  showFailure();
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.getAttribute("href").slice(2);
    const isHere = target === (VIEWS[name] ? name.replace(/^session$/, "sessions") : "overview");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view = open(at("view"), rest.map(decodeURIComponent));
  const heading = at("view").querySelector("h1");
  document.title = `${heading.textContent} · Plimsoll`;
  // Who hears or steps through the page continues with the new view. The first one opens where the page does.
  heading.tabIndex = -1;
  if (hasRouted) heading.focus({ preventScroll: true });
  hasRouted = true;
  scrollTo(0, 0);
  refresh();
}

// A browser has six connections to a server, for all tabs: a hidden tab must not keep one.
let stream = new AbortController();
const isVisible = () => new Promise((done) => {
  const check = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", check);
    done();
  };
  document.addEventListener("visibilitychange", check);
  check();
});

async function follow() {
  for (;;) {
    await isVisible();
    stream = new AbortController();
    const { signal } = stream;
    try {
      await showAbout();
      await listen(() => {
        state("live", "live");
        // What happened before the stream was open is told by nobody else.
        refreshSoon();
      }, (kind, data) => {
        view?.event?.(kind, data);
        if (!view?.isStream) refreshSoon();
      }, signal);
      state("lost", "the proxy stopped; waiting");
    } catch (error) {
      if (error instanceof Refused) return fail(error);
      if (signal.aborted) {
        view?.event?.("hidden", {});
        continue;
      }
      state("lost", "no connection; trying again");
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

function start() {
  hasRefused = false;
  at("ask").hidden = true;
  at("view").hidden = false;
  route();
  follow();
}

const THEMES = ["system", "light", "dark"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = localStorage.getItem("theme") ?? "system";
  const isDark = chosen === "system" ? systemDark.matches : chosen === "dark";
  document.documentElement.classList.toggle("dark", isDark);
  setText(at("theme"), `Theme: ${chosen}`);
  redrawAll();
}
at("theme").addEventListener("click", () => {
  const chosen = localStorage.getItem("theme") ?? "system";
  localStorage.setItem("theme", THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  applyTheme();
});
systemDark.addEventListener("change", applyTheme);

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(at("token").value.trim());
  start();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("main").focus();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.abort();
  else refreshSoon();
});
setInterval(() => {
  refresh();
  if (!document.hidden && !hasRefused) showAbout().catch(() => {});
}, IDLE_MS);

carryToken();
applyTheme();
askTabs().then(start);
