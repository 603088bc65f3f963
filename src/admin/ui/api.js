// The admin API, as the page uses it: requests with the token, and one stream of events.
//
// Addresses are relative to the page, so that it works below any path. The token stays with the tabs of this page.

const root = new URL("../", import.meta.url);
let token = "";

// A link carries the token behind its #, which no server is told. It does not stay in the address bar.
export function carryToken() {
  const found = /^#token=([\w.~-]+)$/.exec(location.hash);
  token = found ? found[1] : sessionStorage.getItem("token") || "";
  if (!found) return false;
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

export function setToken(text) {
  token = text;
  sessionStorage.setItem("token", token);
}

// A link that is opened in a new tab has no token: another tab of this page passes its own on.
const tabs = new BroadcastChannel("plimsoll-token");
tabs.addEventListener("message", ({ data }) => {
  if (data === "?" && token) tabs.postMessage(token);
  else if (data !== "?" && !token) setToken(data);
});
export async function askTabs() {
  if (token) return;
  tabs.postMessage("?");
  for (let tries = 0; !token && tries < 10; tries += 1) await new Promise((done) => setTimeout(done, 20));
}

// Thrown if the token is missing or wrong.
export class Refused extends Error {
  constructor(sent) {
    super(sent ? "the token is wrong" : "needs a token");
    this.sent = sent;
  }
  // A late answer to a token that was replaced since says nothing of the new one.
  get isLate() { return this.sent !== token; }
}

async function request(path, signal) {
  const sent = token;
  const headers = sent ? { authorization: `Bearer ${sent}` } : {};
  const response = await fetch(new URL(path, root), { headers, signal }).catch((error) => {
    // What browsers say of it differs, and tells nobody anything.
    throw signal?.aborted ? error : new Error("the proxy does not answer");
  });
  if (response.status === 429) throw new Error("too many wrong tokens came from here: try again in a minute");
  if (response.status === 401) throw new Refused(sent);
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new Error(answer?.error?.message || `${path}: ${response.status}`);
  }
  return response;
}

export const getJson = async (path) => (await request(`api/v1/${path}`)).json();
export const getText = async (path) => (await request(`api/v1/${path}`)).text();

// Calls `begun` once the stream is open, and `event(kind, data)` for each event, until it ends or `signal` ends it.
// EventSource cannot send a token, so the stream is read by hand.
export async function listen(begun, event, signal) {
  const response = await request("api/v1/events", signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  begun();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const kind = /^event: ?(.+)$/m.exec(block)?.[1];
      const data = /^data: ?(.*)$/m.exec(block)?.[1];
      if (kind && data) event(kind, JSON.parse(data));
    }
  }
}
