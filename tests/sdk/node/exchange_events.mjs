// Compares what the admin API reports about a conversation with what the SDK received.

import assert from 'node:assert/strict';

import { waitFor } from './stack.mjs';

// The largest error of an anchored estimate, as a share of the input, by how the new text was counted: with the
// model's own vocabulary; with another one and a ratio, because the tokenizer is not public; by its length, because
// no vocabulary is loaded yet.
const MAX_ERROR = { exact: 0.01, ratio: 0.1, length: 0.5 };

// Collects the live events of the admin API, one for each exchange, from `listen` on.
export class ExchangeEvents {
  #events = [];

  static async listen(stack) {
    const listener = new ExchangeEvents();
    listener.stack = stack;
    const abort = new AbortController();
    listener.close = () => abort.abort();
    const { body } = await stack.fetch('/api/v1/events', { signal: abort.signal });
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    // Once the first chunk is here, no later event is missed.
    let rest = (await reader.read()).value;
    (async () => {
      for (let chunk; (chunk = await reader.read().catch(() => ({ done: true }))) && !chunk.done; ) {
        const lines = (rest + chunk.value).split('\n');
        rest = lines.pop();
        listener.#events.push(...lines.filter((line) => line.startsWith('data:')).map((line) => JSON.parse(line.slice(5))));
      }
    })();
    return listener;
  }

  // Compares each call as the SDK received it with its event. Stops listening.
  async check(calls, model) {
    await waitFor(`${calls.length} exchange events`, () => this.#events.length >= calls.length);
    this.close();
    // If the disk is slow and a turn is committed late, its event comes after the next one.
    const events = this.#events.sort((one, other) => (one.id < other.id ? -1 : 1));
    assert.equal(events.length, calls.length);
    calls.forEach((call, index) => {
      const event = events[index];
      const where = `call ${index}: ${JSON.stringify(event)}`;
      assert.deepEqual([event.outcome, event.purpose, event.model], ['complete', 'turn', model], where);
      assert.deepEqual([event.usage.input, event.usage.output], [call.input, call.output], where);
      // A slow disk makes a commit late. That is reported, and is no fault.
      const failures = event.fail_open.filter((reason) => reason !== 'commit_late');
      assert.deepEqual([failures, event.notes], [[], []], where);
      assert.equal(event.estimate?.method, index ? 'anchored' : 'estimated', where);
      assert.equal(event.error, event.estimate.tokens - call.input, where);
      assert(index === 0 || Math.abs(event.error) <= Math.max(40, call.input * MAX_ERROR[event.estimate.counting]), where);
    });
    assert.equal(new Set(events.map((event) => event.thread)).size, 1, `one conversation must be one thread: ${JSON.stringify(events)}`);
    await this.#checkSession(`${events[0].tenant}.${events[0].session}`, calls);
  }

  // Compares the calls with the stored session.
  async #checkSession(id, calls) {
    const session = await this.stack.getJson(`/api/v1/sessions/${id}`);
    const where = JSON.stringify(session);
    assert.equal(session.threads.length, 1, where);
    const [thread] = session.threads;
    assert.equal(thread.turns, calls.length, where);
    assert.equal(thread.measured.actual, calls.at(-1).input, where);
    assert.equal(session.totals.input, calls.reduce((sum, call) => sum + call.input, 0), where);
    const context = await this.stack.getJson(`/api/v1/sessions/${id}/threads/${thread.id}/context`);
    assert(context.total + context.basis.gone >= calls.at(-1).input, JSON.stringify(context));
  }
}
