// What the admin API has to know after a conversation.

import assert from 'node:assert/strict';

import { until } from './house.mjs';

// How far an anchored estimate may be off, as a share of the input, by how what is new was counted: with the
// right vocabulary; with a ratio of it, for tokenizers that are not public; by length, before it is loaded.
const WITHIN = { exact: 0.01, ratio: 0.1, length: 0.5 };

// Listens to the live events from its making on.
export class Told {
  #events = [];

  static async from(house) {
    const told = new Told();
    told.house = house;
    const gone = new AbortController();
    told.leave = () => gone.abort();
    const { body } = await house.fetch('/api/v1/events', { signal: gone.signal });
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    // The first piece says that the listener is on.
    let rest = (await reader.read()).value;
    (async () => {
      for (let piece; (piece = await reader.read().catch(() => ({ done: true }))) && !piece.done; ) {
        const lines = (rest + piece.value).split('\n');
        rest = lines.pop();
        told.#events.push(...lines.filter((line) => line.startsWith('data:')).map((line) => JSON.parse(line.slice(5))));
      }
    })();
    return told;
  }

  // Compares what the SDK was told with what the proxy tells of the same calls.
  async check(calls, model) {
    await until(`${calls.length} exchanges told of`, () => this.#events.length >= calls.length);
    this.leave();
    // What a slow disk commits late is told after the next one.
    const told = this.#events.sort((one, other) => (one.id < other.id ? -1 : 1));
    assert.equal(told.length, calls.length);
    calls.forEach((call, at) => {
      const event = told[at];
      const where = `call ${at}: ${JSON.stringify(event)}`;
      assert.deepEqual([event.outcome, event.purpose, event.model], ['complete', 'turn', model], where);
      assert.deepEqual([event.usage.input, event.usage.output], [call.input, call.output], where);
      // A disk that is slow for a moment makes a commit late; that is told, and harms nobody.
      const stoodAside = event.fail_open.filter((why) => why !== 'commit_late');
      assert.deepEqual([stoodAside, event.notes], [[], []], where);
      assert.equal(event.estimate?.method, at ? 'anchored' : 'estimated', where);
      assert.equal(event.error, event.estimate.tokens - call.input, where);
      assert(at === 0 || Math.abs(event.error) <= Math.max(40, call.input * WITHIN[event.estimate.counting]), where);
    });
    assert.equal(new Set(told.map((event) => event.thread)).size, 1, `one conversation, one thread: ${JSON.stringify(told)}`);
    await this.#checkSession(`${told[0].tenant}.${told[0].session}`, calls);
  }

  // The same, from what is kept.
  async #checkSession(session, calls) {
    const kept = await this.house.asked(`/api/v1/sessions/${session}`);
    const where = JSON.stringify(kept);
    assert.equal(kept.threads.length, 1, where);
    const [thread] = kept.threads;
    assert.equal(thread.turns, calls.length, where);
    assert.equal(thread.measured.actual, calls.at(-1).input, where);
    assert.equal(kept.totals.input, calls.reduce((sum, call) => sum + call.input, 0), where);
    const context = await this.house.asked(`/api/v1/sessions/${session}/threads/${thread.id}/context`);
    assert(context.total + context.basis.gone >= calls.at(-1).input, JSON.stringify(context));
  }
}
