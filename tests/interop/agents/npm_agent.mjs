// An ACP agent on npm's @agentclientprotocol/sdk, steered by words in the prompt; a program, started over stdio.
// The words are those of pypi_agent.py: permission, slow, hold, fail, crash, read PATH, write PATH, run COMMAND; else echo.
import { randomUUID } from 'node:crypto';
import { pathToFileURL } from 'node:url';
import { Readable, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import path from 'node:path';

// This file is a peer's agent, not a part of the package in ../node: it resolves the pinned library from there.
const entry = path.join(import.meta.dirname, '..', 'node', 'node_modules', '@agentclientprotocol', 'sdk', 'dist', 'v1', 'stable', 'acp.js');
const acp = await import(pathToFileURL(entry).href);
const { methods } = acp;
const cancelled = new Map();

const say = (client, sessionId, text) =>
  client.notify(methods.client.session.update, {
    sessionId,
    update: { sessionUpdate: 'agent_message_chunk', content: { type: 'text', text } },
  });

async function echo(client, sessionId, text) {
  const update = (value) => client.notify(methods.client.session.update, { sessionId, update: value });
  await update({ sessionUpdate: 'agent_thought_chunk', content: { type: 'text', text: 'about to echo' } });
  await update({ sessionUpdate: 'plan', entries: [{ content: 'echo the prompt', priority: 'medium', status: 'pending' }] });
  await say(client, sessionId, text);
}

async function ask(client, sessionId) {
  const toolCallId = 'call_1';
  await client.notify(methods.client.session.update, {
    sessionId,
    update: { sessionUpdate: 'tool_call', toolCallId, title: 'Scripted tool', kind: 'execute', status: 'pending' },
  });
  const { outcome } = await client.request(methods.client.session.requestPermission, {
    sessionId,
    toolCall: { toolCallId },
    options: [
      { optionId: 'yes', name: 'Allow', kind: 'allow_once' },
      { optionId: 'no', name: 'Reject', kind: 'reject_once' },
    ],
  });
  const chosen = outcome.outcome === 'selected' ? outcome.optionId : outcome.outcome;
  await client.notify(methods.client.session.update, {
    sessionId,
    update: { sessionUpdate: 'tool_call_update', toolCallId, status: chosen === 'yes' ? 'completed' : 'failed' },
  });
  await say(client, sessionId, `outcome ${chosen}`);
}

async function run(client, sessionId, command) {
  const terminal = await client.createTerminal({ sessionId, command: 'sh', args: ['-c', command] });
  const exit = await terminal.waitForExit();
  const { output } = await terminal.currentOutput();
  await terminal.release();
  await say(client, sessionId, `exit ${exit.exitCode}: ${output}`);
}

async function slowly(client, sessionId, signal) {
  for (let n = 0; n < 10; n += 1) {
    await say(client, sessionId, `w${n} `);
    try {
      await sleep(100, undefined, { signal });
    } catch (error) {
      if (error.name !== 'AbortError') throw error;
      return { stopReason: 'cancelled' };
    }
  }
  return { stopReason: 'end_turn' };
}

async function prompt({ params, client }) {
  const { sessionId } = params;
  const abort = new AbortController();
  cancelled.set(sessionId, abort);
  const text = params.prompt.filter((block) => block.type === 'text').map((block) => block.text).join('');
  const [word, ...others] = text.split(' ');
  const rest = others.join(' ');
  switch (word) {
    case 'fail':
      throw acp.RequestError.internalError({ details: 'scripted failure' });
    case 'crash':
      return process.exit(3);
    case 'hold':
      await say(client, sessionId, 'holding');
      await new Promise((resolve) => abort.signal.addEventListener('abort', resolve));
      return { stopReason: 'cancelled' };
    case 'slow':
      return slowly(client, sessionId, abort.signal);
    case 'permission':
      await ask(client, sessionId);
      break;
    case 'read':
      await say(client, sessionId, (await client.request(methods.client.fs.readTextFile, { sessionId, path: rest })).content);
      break;
    case 'write':
      await client.request(methods.client.fs.writeTextFile, { sessionId, path: rest, content: 'written by the agent' });
      await say(client, sessionId, 'written');
      break;
    case 'run':
      await run(client, sessionId, rest);
      break;
    default:
      await echo(client, sessionId, text);
  }
  return { stopReason: 'end_turn' };
}

const connection = acp
  .agent({ name: 'npm-agent' })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    agentCapabilities: { loadSession: false },
    agentInfo: { name: 'npm-agent', version: '1' },
  }))
  .onRequest(methods.agent.session.new, () => ({ sessionId: `npm-${randomUUID()}` }))
  .onRequest(methods.agent.session.prompt, prompt)
  .onNotification(methods.agent.session.cancel, ({ params }) => cancelled.get(params.sessionId)?.abort())
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
await connection.closed;
