// Starts what the SDK tests need: a scripted provider, a real model server, and Plimsoll in front of both.
// Each is a child process on a free loopback port. `close` stops them.

import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
export const BINARY = process.env.PLIMSOLL_BINARY ?? path.join(ROOT, 'target/debug/plimsoll');
// Refuses what real providers refuse.
const STRICT_PROVIDER = path.join(ROOT, 'target/debug/examples/strict-provider');
// How long a condition may take to become true.
const TIMEOUT_MS = 60_000;

// `provider`, `model`, `proxy` and `admin` are base URLs; `pageUrl` opens the page with the admin token.
export class TestStack {
  #children = [];

  // `model`: whether to start the model server; `strict`: the provider refuses what real ones refuse;
  // `env`: environment variables of the proxy; `config`: its configuration.
  static async start({ model = true, strict = false, env = {}, config = '' } = {}) {
    const stack = new TestStack();
    stack.data = await mkdtemp(path.join(tmpdir(), 'plimsoll-sdk-'));
    const scripted = strict ? [STRICT_PROVIDER] : [BINARY, 'demo', '--provider'];
    [stack.provider] = await stack.#spawn([...scripted, '127.0.0.1:0'], /(http:\/\/\S+)/);
    const { provider, data } = stack;
    const upstreams = [`anthropic=${provider}`, `openai=${provider}`, `gemini=${provider}`];
    if (model) {
      [stack.model] = await stack.#spawn([path.join(ROOT, '.tools/python/bin/python'), path.join(ROOT, 'tests/sdk/model_server.py')], /model (http:\/\/\S+)/);
      upstreams.push(`model=${stack.model}`);
    }
    const file = path.join(data, 'plimsoll.toml');
    await writeFile(file, config);
    const serve = [BINARY, 'serve', '--config', file, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--data', data];
    serve.push(...upstreams.flatMap((upstream) => ['--upstream', upstream]));
    const ready = /listening on (http:\/\/\S+) \(admin (http:\/\/[^)\s\/]+)\)/;
    [stack.proxy, stack.admin] = await stack.#spawn(serve, ready, env);
    stack.token = (await readFile(path.join(data, 'admin.token'), 'utf8')).trim();
    stack.pageUrl = `${stack.admin}/#token=${stack.token}`;
    return stack;
  }

  // Starts a process, waits for a line that matches `ready`, and returns the groups of the match.
  async #spawn([program, ...args], ready, extraEnv = {}) {
    // Settings of this machine must not change the test.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(PLIMSOLL_|http)/i.test(name)));
    const child = spawn(program, args, { env: { ...env, ...extraEnv }, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#children.push(child);
    let log = '';
    child.stderr.on('data', (data) => (log = (log + data).slice(-20_000)));
    for await (const line of createInterface({ input: child.stdout })) {
      const match = line.match(ready);
      if (match) return match.slice(1);
    }
    throw new Error(`${program} exited before it was ready:\n${log}`);
  }

  // The admin API's response to a path. Throws if it is an error.
  async fetch(apiPath, options = {}) {
    const response = await fetch(this.admin + apiPath, { ...options, headers: { authorization: `Bearer ${this.token}` } });
    if (!response.ok) throw new Error(`${apiPath}: ${response.status} ${await response.text()}`);
    return response;
  }

  // The JSON of the admin API's response to a path.
  async getJson(apiPath) {
    return (await this.fetch(apiPath)).json();
  }

  async close() {
    const exits = this.#children.map((child) => new Promise((done) => (child.exitCode === null ? child.once('exit', done) : done())));
    for (const child of this.#children.toReversed()) {
      child.stdin.end();
      child.kill('SIGTERM');
    }
    await Promise.all(exits);
    await rm(this.data, { recursive: true });
  }
}

// Calls `condition` until it returns something true, and returns that. Throws after TIMEOUT_MS.
export async function waitFor(what, condition) {
  for (const deadline = Date.now() + TIMEOUT_MS; ; ) {
    const result = await condition();
    if (result) return result;
    if (Date.now() > deadline) throw new Error(`timed out waiting for ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}
