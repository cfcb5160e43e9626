// What the driver scripts share: settings from the environment, one JSON line per check, a proxy that cuts sockets.
//
// Environment: BASE_URL (required), TOKEN, WORKSPACE, TARGET = moorline (default) | qwen. A check's line is
// {"check", "ok", "ms", "error"?}; the exit status is 1 when any check failed, and a check that does not finish fails.
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

export { sleep };
export const baseUrl = process.env.BASE_URL;
export const token = process.env.TOKEN || undefined;
export const target = process.env.TARGET || 'moorline';
export const workspace = process.env.WORKSPACE || undefined;
/** True when the peer is the shipped daemon: the places where moorline deliberately differs look at it. */
export const shipped = target === 'qwen';
if (!baseUrl) throw new Error('BASE_URL is not set');

/** What to ask a new session for. The shipped daemon's agent asks for permission only in its mode `default`. */
export const newSession = () => ({ sessionScope: 'thread', ...(shipped ? { approvalMode: 'default' } : {}) });
export const say = (text) => ({ prompt: [{ type: 'text', text }] });
export const authorization = token ? { Authorization: `Bearer ${token}` } : {};

export function assert(condition, message, detail) {
  if (!condition) throw new Error(detail === undefined ? message : `${message}: ${JSON.stringify(detail)}`);
}

export function equal(actual, expected, message) {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${message}: got ${a}, want ${b}`);
}

export async function rejects(promise, predicate, message) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    assert(predicate(error), `${message}: another error`, { name: error.name, message: error.message, status: error.status, body: error.body });
    return error;
  }
  throw new Error(`${message}: resolved to ${JSON.stringify(value)}`);
}

/** `promise`, or an error naming `what` after `ms`. */
export function within(ms, promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not happen within ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Polls `probe` until it returns something truthy; returns that. */
export async function until(probe, what, ms = 10_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > end) throw new Error(`${what} did not happen within ${ms} ms`);
    await sleep(20);
  }
}

const only = process.argv.slice(2);
const checks = [];
let failed = 0;

/** Declares a check; `finish` runs it. Names given on the command line select checks. */
export function check(name, body, timeout = 20_000) {
  if (!only.length || only.includes(name)) checks.push({ name, body, timeout });
}

async function runOne({ name, body, timeout }) {
  const start = Date.now();
  const line = { check: name, ok: true };
  try {
    await within(timeout, body(), name);
  } catch (error) {
    failed += 1;
    line.ok = false;
    line.error = String(error?.stack ?? error).slice(0, 1500);
  }
  line.ms = Date.now() - start;
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/**
 * Runs what was declared, `width` checks at a time, then ends the program: open streams of the peers under test must not keep
 * it alive. One at a time is the rule: these clients match what comes on two sockets, and lose their way when their own event
 * loop is crowded.
 */
export async function finish(width = 1) {
  const workers = Array.from({ length: shipped ? 1 : width }, async () => {
    for (let next = checks.shift(); next; next = checks.shift()) await runOne(next);
  });
  await Promise.all(workers);
  process.exit(failed ? 1 : 0);
}
process.on('unhandledRejection', (error) => {
  failed += 1;
  process.stdout.write(`${JSON.stringify({ check: 'unhandledRejection', ok: false, error: String(error?.stack ?? error) })}\n`);
});

/** The concatenated text of `agent_message_chunk` updates among REST-shaped events. */
export const textOf = (events) =>
  events
    .map((event) => event.data?.update ?? (event.type === 'agent_message_chunk' ? event.data?.update ?? event.data : undefined))
    .filter((update) => update?.sessionUpdate === 'agent_message_chunk')
    .map((update) => update.content.text)
    .join('');

/** The words `long=N` makes: every word once, in order. */
export function assertWords(text, count) {
  const found = text.match(/\d+/g)?.map(Number) ?? [];
  equal(found.slice(-count).length, count, 'number of words');
  for (let n = 1; n < count; n += 1) {
    assert(found[n] === found[n - 1] + 1, 'a word is missing, doubled or out of order', text.slice(0, 400));
  }
  equal(found.length, count, 'words');
}

/** Ids of published events: strictly +1, nothing twice. */
export function assertUnbroken(events) {
  const ids = events.map((event) => Number(event.id)).filter((id) => Number.isInteger(id) && id > 0);
  for (let n = 1; n < ids.length; n += 1) equal(ids[n], ids[n - 1] + 1, 'the id after '.concat(ids[n - 1]));
  return ids;
}

/** A TCP proxy in front of BASE_URL. `cut(mark)` resets every connection whose latest request line and headers contain `mark`. */
export async function cuttingProxy() {
  const upstream = new URL(baseUrl);
  const links = new Set();
  const server = net.createServer((near) => {
    const far = net.connect(Number(upstream.port), upstream.hostname);
    const link = { near, far, head: '' };
    links.add(link);
    near.on('data', (data) => {
      const text = data.toString('latin1');
      if (!/^(GET|POST|PATCH|DELETE|OPTIONS) /.test(text)) return far.write(data);
      // The Host check of a loopback bind knows its own port only: the proxy speaks in the server's name.
      link.head = text.slice(0, 2000).toLowerCase();
      return far.write(Buffer.from(text.replace(/^Host: .*$/im, `Host: ${upstream.host}`), 'latin1'));
    });
    far.on('data', (data) => near.write(data));
    for (const [from, to] of [[near, far], [far, near]]) {
      from.on('close', () => { to.destroy(); links.delete(link); });
      from.on('error', () => to.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    cut(mark) {
      let count = 0;
      for (const link of links) {
        if (!link.head.includes(mark.toLowerCase())) continue;
        count += 1;
        link.near.resetAndDestroy();
        link.far.resetAndDestroy();
      }
      return count;
    },
    close: () => server.close(),
  };
}
