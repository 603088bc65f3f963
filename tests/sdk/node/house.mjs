// What the SDK tests stand in: a scripted provider, a real model server, and Plimsoll before both.
// Everything is a child process on a free loopback port and ends with this one.

import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const BINARY = process.env.PLIMSOLL_BINARY ?? path.join(ROOT, 'target/debug/plimsoll');
// How long a turn may take to be told of.
const PATIENCE_MS = 60_000;

export class House {
  #children = [];

  // `strict`: the provider refuses what real ones refuse; `settings`: environment of the proxy.
  static async open({ model = true, strict = false, settings = {} } = {}) {
    const house = new House();
    house.data = await mkdtemp(path.join(tmpdir(), 'plimsoll-sdk-'));
    const scripted = [BINARY, 'demo', '--provider', '127.0.0.1:0', ...(strict ? ['--strict'] : [])];
    [house.provider] = await house.#start(scripted, /(http:\/\/\S+)/);
    const { provider, data } = house;
    const upstreams = [`anthropic=${provider}`, `openai=${provider}`, `gemini=${provider}`];
    if (model) {
      [house.model] = await house.#start([path.join(ROOT, '.tools/python/bin/python'), path.join(ROOT, 'tests/sdk/model_server.py')], /model (http:\/\/\S+)/);
      upstreams.push(`model=${house.model}`);
    }
    const serve = [BINARY, 'serve', '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--data', data];
    serve.push(...upstreams.flatMap((upstream) => ['--upstream', upstream]));
    // The link to the page carries the admin listener's token.
    const ready = /listening on (http:\/\/\S+) \(admin ((http:\/\/[^)\s\/]+)\/#token=([\w-]+))\)/;
    [house.proxy, house.link, house.admin, house.token] = await house.#start(serve, ready, settings);
    return house;
  }

  // Starts a process and answers what its ready line says.
  async #start([program, ...rest], ready, settings = {}) {
    // Nothing of this machine's settings reaches the processes.
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(PLIMSOLL_|http)/i.test(name)));
    const child = spawn(program, rest, { env: { ...env, ...settings }, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#children.push(child);
    let log = '';
    child.stderr.on('data', (data) => (log = (log + data).slice(-20_000)));
    for await (const line of createInterface({ input: child.stdout })) {
      const found = line.match(ready);
      if (found) return found.slice(1);
    }
    throw new Error(`${program} ended before it was ready:\n${log}`);
  }

  // The admin API's response to a path.
  async fetch(at, more = {}) {
    const response = await fetch(this.admin + at, { ...more, headers: { authorization: `Bearer ${this.token}` } });
    if (!response.ok) throw new Error(`${at}: ${response.status} ${await response.text()}`);
    return response;
  }

  // The admin API's answer to a path.
  async asked(at) {
    return (await this.fetch(at)).json();
  }

  async close() {
    const ended = this.#children.map((child) => new Promise((done) => (child.exitCode === null ? child.once('exit', done) : done())));
    for (const child of this.#children.toReversed()) {
      child.stdin.end();
      child.kill('SIGTERM');
    }
    await Promise.all(ended);
    await rm(this.data, { recursive: true });
  }
}

// The first true answer of `probe`; fails when that takes too long.
export async function until(what, probe) {
  for (const deadline = Date.now() + PATIENCE_MS; ; ) {
    const answer = await probe();
    if (answer) return answer;
    if (Date.now() > deadline) throw new Error(`still not there: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}
