// @qwen-code/sdk over /acp: the same session client on AcpHttpTransport or AcpWsTransport (TRANSPORT = http | ws), unchanged.
import WebSocket from 'ws';
import { DaemonClient, DaemonSessionClient, DaemonPendingPromptLimitError } from '@qwen-code/sdk/daemon';
import { AcpHttpTransport, AcpWsTransport } from '@qwen-code/sdk/daemon/transports';
import { assert, assertUnbroken, assertWords, baseUrl, check, cuttingProxy, equal, finish, newSession, rejects, say, shipped, sleep, textOf, token, until, within } from './lib.mjs';

const kind = process.env.TRANSPORT || 'http';
const overHttp = kind === 'http';
globalThis.WebSocket ??= WebSocket; // the SDK wants the global of Node 22

const transportTo = (url) => (overHttp
  ? new AcpHttpTransport(url, token, fetch)
  : new AcpWsTransport(`${url.replace(/^http/, 'ws')}/acp`, token));

/** A client on a transport of its own. */
function connect(url = baseUrl, options = {}) {
  const transport = transportTo(url);
  return { transport, client: new DaemonClient({ baseUrl: url, token, transport, ...options }) };
}

/** session/new; the shipped agent asks for permission only in its mode `default`. */
async function open(client) {
  const { sessionScope, approvalMode } = newSession();
  const session = await DaemonSessionClient.createOrAttach(client, { sessionScope });
  // The SDK maps this route to no ACP method: REST, on the same session.
  if (approvalMode) await new DaemonClient({ baseUrl, token }).setSessionApprovalMode(session.sessionId, approvalMode);
  return session;
}

function follow(session) {
  const abort = new AbortController();
  const events = [];
  const done = (async () => {
    for await (const event of session.events({ signal: abort.signal })) events.push(event);
  })();
  done.catch(() => {}); // looked at where it matters
  return { events, done, stop: () => { abort.abort(); return done.catch(() => {}); } };
}
const seen = (stream, type) => until(() => stream.events.find((event) => event.type === type), `event ${type}`);

/** Over these transports the SDK maps the success of a close to status 200 and raises, as it wants a 204. */
async function close(session) {
  await rejects(session.close(), (error) => error.status === 200, 'close');
}

check('create', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  assert(session.sessionId, 'a session id');
  equal(transport.supportsReplay, overHttp, 'supportsReplay');
  await close(session);
  transport.dispose();
});

check('prompt without a subscription', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  equal((await session.prompt(say('echo one'))).stopReason, 'end_turn', 'stopReason');
  equal((await session.prompt(say('echo two'))).stopReason, 'end_turn', 'stopReason of the second');
  transport.dispose();
});

check('prompt with a subscription', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  const stream = follow(session);
  equal((await session.prompt(say('long=12'))).stopReason, 'end_turn', 'stopReason');
  await seen(stream, 'turn_complete');
  assertWords(textOf(stream.events), 12);
  if (overHttp) assertUnbroken(stream.events);
  await stream.stop();
  transport.dispose();
});

check('quick calls one after the other', async () => {
  // The SDK registers who waits when it has read the 202; a reply that overtakes it is lost to it. The shipped daemon loses
  // some of these.
  const { client, transport } = connect();
  const session = await open(client);
  const stream = follow(session);
  await until(() => session.eventEpoch || !overHttp, 'the stream');
  for (let n = 0; n < (shipped ? 3 : 10); n += 1) {
    equal((await within(5000, session.heartbeat(), `heartbeat ${n}`)).sessionId, session.sessionId, 'heartbeat');
    equal((await within(5000, session.prompt(say('echo quick')), `prompt ${n}`)).stopReason, 'end_turn', 'stopReason');
  }
  await stream.stop();
  transport.dispose();
}, 60_000);

check('three prompts of one connection all run', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  const stream = follow(session);
  const order = [];
  // The shipped daemon lets a second prompt abort the first (acp-http.md 13 #3): there one after the other.
  const texts = ['slow long=3', 'echo second', 'echo third'];
  const settled = texts.map((text, n) => () => session.prompt(say(text)).then((result) => order.push([n, result.stopReason])));
  if (shipped) for (const start of settled) await start();
  else await Promise.all(settled.map((start) => start()));
  if (overHttp) order.sort(); // each request has a socket of its own: which arrives first is nobody's promise
  equal(order, [[0, 'end_turn'], [1, 'end_turn'], [2, 'end_turn']], 'order and outcome');
  await stream.stop();
  transport.dispose();
});

if (overHttp) {
  check('resume in mid-turn', async () => {
    const proxy = await cuttingProxy();
    const { client, transport } = connect(proxy.url);
    const session = await open(client);
    const first = follow(session);
    const reply = session.prompt(say('slow long=16'));
    reply.catch(() => {}); // the SDK fails what waits on a stream that ends; the turn itself goes on
    await until(() => first.events.length >= 6, 'six events');
    equal(proxy.cut('acp-session-id:'), 1, 'streams cut');
    await first.done.then(() => {}, () => {});
    await sleep(400);
    const second = follow(session);
    await seen(second, 'turn_complete');
    const all = [...first.events, ...second.events];
    assertUnbroken(all);
    assertWords(textOf(all), 16);
    equal((await seen(second, 'turn_complete')).data.stopReason, 'end_turn', 'the turn was not cancelled');
    const replayed = second.events.findIndex((event) => event.type === 'replay_complete');
    assert(replayed > 0, 'the gap was replayed before replay_complete', second.events.map(({ type }) => type));
    equal((await session.prompt(say('echo after'))).stopReason, 'end_turn', 'the next prompt on the resumed stream');
    await second.stop();
    transport.dispose();
    proxy.close();
  }, 30_000);

  check('permission request survives a cut', async () => {
    const proxy = await cuttingProxy();
    const { client, transport } = connect(proxy.url);
    const session = await open(client);
    const first = follow(session);
    session.prompt(say('permission')).catch(() => {});
    const asked = await seen(first, 'permission_request');
    equal(proxy.cut('acp-session-id:'), 1, 'streams cut');
    await first.done.then(() => {}, () => {});
    session.setLastEventId(asked.id - 1);
    const second = follow(session);
    const again = await seen(second, 'permission_request');
    equal([again.id, again.data.requestId], [asked.id, asked.data.requestId], 'the replayed request');
    const { optionId } = again.data.options.find((option) => option.kind === 'allow_once');
    equal(await session.respondToSessionPermission(again.data.requestId, { outcome: { outcome: 'selected', optionId } }), true, 'the vote');
    equal((await seen(second, 'turn_complete')).data.stopReason, 'end_turn', 'stopReason');
    await second.stop();
    transport.dispose();
    proxy.close();
  });

  check('vote by request id', async () => {
    const { client, transport } = connect();
    const session = await open(client);
    const stream = follow(session);
    const running = session.prompt(say('permission'));
    const request = await seen(stream, 'permission_request');
    const { optionId } = request.data.options.find((option) => option.kind === 'allow_once');
    const vote = { outcome: { outcome: 'selected', optionId } };
    equal(await session.respondToSessionPermission(request.data.requestId, vote), true, 'the vote');
    equal((await running).stopReason, 'end_turn', 'stopReason');
    assert(await seen(stream, 'permission_resolved'), 'permission_resolved');
    await stream.stop();
    transport.dispose();
  });
} else {
  check('vote by request id', async () => {
    const { client, transport } = connect();
    const session = await open(client);
    const stream = follow(session);
    const running = session.prompt(say('permission'));
    // This transport shows the request as a generic event; its params carry the id a vote needs.
    const request = await seen(stream, 'request_permission');
    const params = request.data;
    const { optionId } = params.options.find((option) => option.kind === 'allow_once');
    const { requestId } = params._meta.qwen;
    equal(await session.respondToSessionPermission(requestId, { outcome: { outcome: 'selected', optionId } }), true, 'the vote');
    equal((await running).stopReason, 'end_turn', 'stopReason');
    await stream.stop();
    transport.dispose();
  });
}

check('cancel', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  const stream = follow(session);
  const running = session.prompt(say('hold'));
  await until(() => textOf(stream.events), 'the first chunk');
  await session.cancel();
  equal((await within(5000, running, 'the end of the turn')).stopReason, 'cancelled', 'stopReason');
  equal((await session.prompt(say('echo after'))).stopReason, 'end_turn', 'the next prompt');
  await stream.stop();
  transport.dispose();
});

check('a failing turn', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  await rejects(session.prompt(say('fail')), (error) => error.status >= 500 || error._daemonTurnError, 'the failing turn');
  equal((await session.prompt(say('echo after'))).stopReason, 'end_turn', 'the next prompt');
  transport.dispose();
});

check('the local prompt limit', async () => {
  const { client, transport } = connect(baseUrl, { maxPendingPromptsPerSession: 1 });
  const session = await open(client);
  const stream = follow(session);
  const running = session.prompt(say('hold'));
  await until(() => textOf(stream.events), 'the first chunk');
  const refusal = await rejects(session.prompt(say('echo no')), (error) => error instanceof DaemonPendingPromptLimitError, 'the second prompt');
  equal([refusal.limit, refusal.pendingCount], [1, 1], 'limit, pendingCount');
  await session.cancel();
  await running;
  await stream.stop();
  transport.dispose();
});

if (!shipped) {
  // The shipped daemon aborts the earlier prompts of a connection instead (acp-http.md 13 #3).
  check('the server prompt limit', async () => {
    const { client, transport } = connect(baseUrl, { maxPendingPromptsPerSession: null });
    const session = await open(client);
    const stream = follow(session);
    const waiting = Array.from({ length: 5 }, () => session.prompt(say('hold')));
    const rest = new DaemonClient({ baseUrl, token });
    const pending = async () => (await rest.getPendingPrompts(session.sessionId)).pendingPrompts.length;
    await until(async () => (await pending()) === 5, 'five accepted prompts'); // they come on sockets of their own
    const refusal = await rejects(session.prompt(say('echo six')), (error) => error.status === 500 || error.status === 503, 'the sixth prompt');
    assert(JSON.stringify(refusal.body).includes('prompt_queue_full'), 'errorKind', refusal.body);
    const ends = waiting.map((prompt) => prompt.then(({ stopReason }) => stopReason));
    for (let left = 4; left >= 0; left -= 1) {
      await session.cancel();
      await until(async () => (await pending()) === left, `${left} prompts left`);
    }
    equal(await within(5000, Promise.all(ends), 'the ends'), Array(5).fill('cancelled'), 'stopReasons');
    await stream.stop();
    transport.dispose();
  });
}

check('list and load from a second connection', async () => {
  const one = connect();
  const session = await open(one.client);
  equal((await session.prompt(say('echo history'))).stopReason, 'end_turn', 'stopReason');
  const two = connect();
  const { workspaceCwd } = await two.client.capabilities();
  const listed = await two.client.listWorkspaceSessions(workspaceCwd);
  assert(listed.some(({ sessionId }) => sessionId === session.sessionId), 'the session is listed', listed.length);
  const answer = await two.client.loadSession(session.sessionId);
  // The shipped daemon's result lacks the id, and the SDK's own `DaemonSessionClient.load` then prompts session `undefined`.
  if (!shipped) equal(answer.sessionId, session.sessionId, 'the id in the result of session/load');
  const loaded = new DaemonSessionClient({ client: two.client, session: { ...answer, sessionId: session.sessionId } });
  equal((await loaded.prompt(say('echo shared'))).stopReason, 'end_turn', 'a prompt of the co-owner');
  one.transport.dispose();
  two.transport.dispose();
});

check('close', async () => {
  const { client, transport } = connect();
  const session = await open(client);
  await session.prompt(say('echo bye'));
  await close(session);
  const rest = new DaemonClient({ baseUrl, token });
  await rejects(rest.prompt(session.sessionId, say('late')), (error) => error.status === 404, 'a prompt after the close');
  transport.dispose();
});
await finish();
