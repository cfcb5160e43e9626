// The official @agentclientprotocol/sdk clients (TRANSPORT = http | ws), unchanged, against /acp.
import WebSocket from 'ws';
import * as acp from '@agentclientprotocol/sdk';
import { createHttpStream } from '@agentclientprotocol/sdk/experimental/http-client';
import { createWebSocketStream } from '@agentclientprotocol/sdk/experimental/ws-client';
import { DaemonClient } from '@qwen-code/sdk/daemon';
import { assert, assertWords, authorization, baseUrl, check, equal, finish, newSession, rejects, shipped, token, until, within } from './lib.mjs';

const overHttp = (process.env.TRANSPORT || 'http') === 'http';
const { methods } = acp;
const rest = new DaemonClient({ baseUrl, token });
const { workspaceCwd: cwd } = await rest.capabilities();

const stream = () => (overHttp
  ? createHttpStream(`${baseUrl}/acp`, { headers: authorization })
  : createWebSocketStream(`${baseUrl.replace(/^http/, 'ws')}/acp`, { headers: authorization, WebSocket }));

/** Runs `body(peer, updates)` on an initialized connection; `choose` answers permission requests. */
async function connected(body, choose = () => ({ outcome: 'cancelled' })) {
  const updates = [];
  await acp
    .client({ name: 'moorline-interop' })
    .onNotification(methods.client.session.update, ({ params }) => void updates.push(params))
    .onRequest(methods.client.session.requestPermission, ({ params }) => ({ outcome: choose(params) }))
    .connectWith(stream(), async (peer) => {
      await peer.request(methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
      await body(peer, updates);
    });
}

async function create(peer) {
  const session = await peer.request(methods.agent.session.new, { cwd, mcpServers: [] });
  // The shipped agent asks for permission only in its mode `default`.
  const { approvalMode } = newSession();
  if (approvalMode) await peer.request(methods.agent.session.setMode, { sessionId: session.sessionId, modeId: approvalMode });
  return session.sessionId;
}
const prompt = (peer, sessionId, text) => peer.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: 'text', text }] });
const textOf = (updates, sessionId) =>
  updates
    .filter((update) => update.sessionId === sessionId && update.update.sessionUpdate === 'agent_message_chunk')
    .map(({ update }) => update.content.text)
    .join('');

check('initialize', async () => {
  await acp.client({ name: 'moorline-interop' }).connectWith(stream(), async (peer) => {
    const result = await peer.request(methods.agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
    equal([result.protocolVersion, result.agentCapabilities.loadSession], [1, true], 'protocolVersion, loadSession');
  });
});

check('session/new and session/prompt', () => connected(async (peer, updates) => {
  const sessionId = await create(peer);
  const result = await prompt(peer, sessionId, 'long=12');
  equal(result.stopReason, 'end_turn', 'stopReason');
  assertWords(textOf(updates, sessionId), 12); // the reply comes after the content: nothing may be missing now
}));

check('a session built by the library', () => connected(async (peer) => {
  await peer.buildSession(cwd).withSession(async (session) => {
    const turn = session.prompt('echo built');
    equal((await session.readText()).trim(), 'built', 'text');
    equal((await turn).stopReason, 'end_turn', 'stopReason');
  });
}));

check('several prompts and sessions on one connection', () => connected(async (peer, updates) => {
  const sessions = [await create(peer), await create(peer), await create(peer)];
  const results = await Promise.all(sessions.map((sessionId) => prompt(peer, sessionId, 'slow long=5')));
  equal(results.map(({ stopReason }) => stopReason), ['end_turn', 'end_turn', 'end_turn'], 'stopReasons');
  for (const sessionId of sessions) assertWords(textOf(updates, sessionId), 5);
}));

for (const [name, outcome] of [['selected', 'allow_once'], ['rejected', 'reject_once']]) {
  check(`permission ${name}`, async () => {
    let asked;
    const choose = (params) => {
      asked = params;
      return { outcome: 'selected', optionId: params.options.find(({ kind }) => kind === outcome).optionId };
    };
    await connected(async (peer, updates) => {
      const sessionId = await create(peer);
      await prompt(peer, sessionId, 'permission');
      equal(asked?.sessionId, sessionId, 'the request names the session');
      const status = updates.findLast(({ update }) => update.sessionUpdate === 'tool_call_update').update.status;
      equal(status, outcome === 'allow_once' ? 'completed' : 'failed', 'status of the tool call');
    }, choose);
  });
}

check('cancel', () => connected(async (peer, updates) => {
  const sessionId = await create(peer);
  const running = prompt(peer, sessionId, 'hold');
  await until(() => textOf(updates, sessionId), 'the first chunk');
  await peer.notify(methods.agent.session.cancel, { sessionId });
  equal((await within(5000, running, 'the end of the turn')).stopReason, 'cancelled', 'stopReason');
  equal((await prompt(peer, sessionId, 'echo after')).stopReason, 'end_turn', 'the next prompt');
}));

check('a failing turn is an error of the request only', () => connected(async (peer) => {
  const sessionId = await create(peer);
  await rejects(prompt(peer, sessionId, 'fail'), (error) => error.code === -32603, 'the failing turn');
  equal((await prompt(peer, sessionId, 'echo after')).stopReason, 'end_turn', 'the next prompt');
}));

check('an unknown method, an unowned session', () => connected(async (peer) => {
  await rejects(peer.request('session/no_such_method', {}), (error) => error.code === -32601, 'the unknown method');
  const sessionId = await create(peer);
  equal((await prompt(peer, sessionId, 'echo still here')).stopReason, 'end_turn', 'the connection still works');
}));

check('session/list', () => connected(async (peer) => {
  const sessionId = await create(peer);
  await prompt(peer, sessionId, 'echo listed');
  const { sessions } = await peer.request(methods.agent.session.list, { cwd });
  assert(sessions.some((session) => session.sessionId === sessionId), 'the session is listed', sessions.length);
}));

check('session/close', () => connected(async (peer) => {
  const sessionId = await create(peer);
  await prompt(peer, sessionId, 'echo bye');
  const answer = within(5000, peer.request(methods.agent.session.close, { sessionId }), 'the reply');
  // The shipped daemon ends the session stream first; this client then fails what waits for that session.
  if (shipped && overHttp) return void await rejects(answer, (error) => /stream closed/.test(error.message), 'close');
  equal(await answer, {}, 'the result');
  await rejects(rest.prompt(sessionId, { prompt: [{ type: 'text', text: 'late' }] }), (error) => error.status === 404, 'a prompt after the close');
  const other = await create(peer);
  equal((await prompt(peer, other, 'echo on')).stopReason, 'end_turn', 'the connection outlives its session');
  return undefined;
}));

check('session/close with a running prompt', () => connected(async (peer, updates) => {
  const sessionId = await create(peer);
  const running = prompt(peer, sessionId, 'hold').then((result) => result.stopReason, (error) => error.message);
  await until(() => textOf(updates, sessionId), 'the first chunk');
  const answer = within(5000, peer.request(methods.agent.session.close, { sessionId }), 'the reply');
  if (shipped && overHttp) await rejects(answer, (error) => /stream closed/.test(error.message), 'close');
  else equal(await answer, {}, 'the result');
  await within(5000, running, 'the end of the prompt');
}));

if (!overHttp) {
  // Over HTTP this client opens the session stream before it sends session/load, which a server answers 403 (ACP-194).
  check('session/load from another connection', async () => {
    let sessionId;
    await connected(async (first) => {
      sessionId = await create(first);
      await prompt(first, sessionId, 'echo history');
      await connected(async (second, updates) => {
        await second.request(methods.agent.session.load, { sessionId, cwd, mcpServers: [] });
        equal((await prompt(second, sessionId, 'echo shared')).stopReason, 'end_turn', 'a prompt of the co-owner');
        const text = textOf(updates, sessionId);
        assert(text.includes('history') && text.includes('shared'), 'history and live content', text);
      });
    });
  });
}
await finish();
