// The agent behind both servers in the HTTP benchmarks: ACP over stdio, no library, as little work per event as can be.
//
// Words in a prompt: `emit=N` N message chunks as fast as stdout takes them, `size=B` bytes of text in each (default 32),
// `rate=R` R chunks a second instead, each beginning with the monotonic clock in nanoseconds; anything else answers at once.
// It runs under `node agent.mjs` (moorline) and as QWEN_CLI_ENTRY, the agent entry of `qwen serve`.
import { createInterface } from 'node:readline';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

const BATCH_BYTES = 64 * 1024;
const cancelled = new Set();
const drained = () => new Promise((resolve) => process.stdout.once('drain', resolve));
const number = (text, word, otherwise) => Number(new RegExp(`\\b${word}=(\\d+)`).exec(text)?.[1] ?? otherwise);
const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);

function frame(sessionId) {
  const head = `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"${sessionId}",`
    + '"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"';
  return (text) => `${head}${text}"}}}}\n`;
}

async function flood(sessionId, count, size) {
  const make = frame(sessionId);
  let batch = '';
  for (let n = 0; n < count; n += 1) {
    batch += make(String(n).padEnd(size, '.'));
    if (batch.length < BATCH_BYTES && n + 1 < count) continue;
    if (!process.stdout.write(batch)) await drained();
    else await sleep(0);
    batch = '';
    if (cancelled.delete(sessionId)) return 'cancelled';
  }
  return 'end_turn';
}

async function pace(sessionId, count, size, rate) {
  const make = frame(sessionId);
  const start = performance.now();
  for (let n = 0; n < count; n += 1) {
    const due = start + (n * 1000) / rate - performance.now();
    if (due > 0) await sleep(due);
    if (!process.stdout.write(make(`${process.hrtime.bigint()} `.padEnd(size, '.')))) await drained();
    if (cancelled.delete(sessionId)) return 'cancelled';
  }
  return 'end_turn';
}

async function prompt({ sessionId, prompt: blocks }) {
  const text = blocks.map((block) => block.text ?? '').join(' ');
  const count = number(text, 'emit', 0);
  const size = number(text, 'size', 32);
  const rate = number(text, 'rate', 0);
  if (!count) return 'end_turn';
  return rate ? pace(sessionId, count, size, rate) : flood(sessionId, count, size);
}

const answers = {
  initialize: () => ({
    protocolVersion: 1,
    agentCapabilities: { loadSession: false, promptCapabilities: {} },
    agentInfo: { name: 'bench-agent', version: '1' },
    authMethods: [],
    _meta: { 'qwen-code/external-tool-guard-ready': 'required-v1' }, // `qwen serve` takes no agent that does not say so
  }),
  'session/new': (params) => ({ sessionId: params._meta?.['qwen-code/sessionId'] ?? randomUUID() }),
  'session/prompt': async (params) => ({ stopReason: await prompt(params) }),
};

createInterface({ input: process.stdin, crlfDelay: Infinity }).on('line', async (line) => {
  const message = JSON.parse(line);
  if (message.method === 'session/cancel') cancelled.add(message.params.sessionId);
  if (message.id === undefined || !message.method) return;
  const answer = answers[message.method];
  if (answer) send({ id: message.id, result: await answer(message.params) });
  else send({ id: message.id, error: { code: -32601, message: `Method not found: ${message.method}` } });
}).on('close', () => process.exit(0));
