// @qwen-code/sdk over REST + SSE: DaemonClient and DaemonSessionClient, unchanged.
import { DaemonClient, DaemonSessionClient, DaemonHttpError, DaemonPendingPromptLimitError, isDaemonTurnError } from '@qwen-code/sdk/daemon';
import { assert, assertUnbroken, assertWords, authorization, baseUrl, check, cuttingProxy, equal, finish, newSession, rejects, say, shipped, sleep, textOf, token, until, within } from './lib.mjs';

const client = new DaemonClient({ baseUrl, token });
const open = (over = client) => DaemonSessionClient.createOrAttach(over, newSession());

/** Reads the session's stream in the background; `events` grows, `done` resolves when the stream ended, `stop()` leaves it. */
function follow(session, onEvent = () => {}) {
  const abort = new AbortController();
  const events = [];
  const done = (async () => {
    for await (const event of session.events({ signal: abort.signal })) {
      events.push(event);
      await onEvent(event);
    }
  })();
  done.catch(() => {}); // looked at where it matters
  return { events, done, stop: () => { abort.abort(); return done.catch(() => {}); } };
}
const seen = (stream, type) => until(() => stream.events.find((event) => event.type === type), `event ${type}`);

check('health and capabilities', async () => {
  equal((await client.health()).status, 'ok', 'health');
  const capabilities = await client.capabilities();
  equal(capabilities.limits.maxPendingPromptsPerSession, 5, 'maxPendingPromptsPerSession');
  for (const feature of ['session_create', 'session_prompt', 'non_blocking_prompt', 'session_events', 'session_cancel', 'permission_vote']) {
    assert(capabilities.features.includes(feature), `feature ${feature}`);
  }
});

check('create', async () => {
  const session = await open();
  assert(/^[0-9a-f-]{36}$/.test(session.sessionId), 'a UUID', session.sessionId);
  assert(session.clientId?.startsWith('client_'), 'a client id', session.clientId);
  assert(session.workspaceCwd, 'a workspace');
  equal(session.attached, false, 'attached');
  await session.close();
});

check('create with the caller\'s id', async () => {
  const sessionId = crypto.randomUUID();
  const session = await DaemonSessionClient.createOrAttach(client, { ...newSession(), sessionId });
  equal(session.sessionId, sessionId, 'session id');
  await rejects(DaemonSessionClient.createOrAttach(client, { ...newSession(), sessionId }), (error) => error.status === 409, 'the id twice');
  await session.close();
});

check('prompt without a subscription', async () => {
  const session = await open();
  const result = await session.prompt(say('echo one two'));
  equal(result.stopReason, 'end_turn', 'stopReason');
  await session.close();
});

check('prompt with a subscription', async () => {
  const session = await open();
  const stream = follow(session);
  const result = await session.prompt(say('long=12'));
  equal(result.stopReason, 'end_turn', 'stopReason');
  await seen(stream, 'turn_complete');
  assertWords(textOf(stream.events), 12);
  equal(assertUnbroken(stream.events)[0], 1, 'first id');
  const echo = stream.events.find((event) => event.data?.update?.sessionUpdate === 'user_message_chunk');
  equal(echo?.data.update.content.text, 'long=12', 'echo of the prompt');
  await stream.stop();
  await session.close();
});

check('quick turns under a subscription', async () => {
  // The SDK registers a prompt when it has read the 202; an outcome that overtakes it on the stream is lost to it.
  const session = await open();
  const stream = follow(session);
  await until(() => session.eventEpoch, 'the stream');
  for (let n = 0; n < (shipped ? 5 : 12); n += 1) {
    equal((await within(5000, session.prompt(say('echo quick')), `outcome ${n}`)).stopReason, 'end_turn', 'stopReason');
  }
  await stream.stop();
  await session.close();
}, 60_000);

check('resume after a cut', async () => {
  const proxy = await cuttingProxy();
  const session = await open(new DaemonClient({ baseUrl: proxy.url, token }));
  const first = follow(session);
  const accepted = await session.submitPrompt(say('slow long=16'));
  await until(() => first.events.length >= 6, 'six events');
  equal(proxy.cut('/events'), 1, 'streams cut');
  await first.done.then(() => {}, () => {}); // an abrupt end is an error or an end: both are the SDK's business
  assert(!first.events.some((event) => event.type === 'turn_complete'), 'the cut came in mid-turn');
  await sleep(400);
  const second = follow(session);
  await seen(second, 'turn_complete');
  const all = [...first.events, ...second.events];
  assertUnbroken(all);
  assertWords(textOf(all), 16);
  equal(second.events.find((event) => event.type === 'turn_complete').data.promptId, accepted.promptId, 'promptId');
  const replayed = await seen(second, 'replay_complete');
  assert(replayed.data.replayedCount > 0, 'something was replayed', replayed.data);
  await second.stop();
  await session.close();
  proxy.close();
}, 30_000);

check('five cuts in one turn', async () => {
  const proxy = await cuttingProxy();
  const session = await open(new DaemonClient({ baseUrl: proxy.url, token }));
  const all = [];
  let stream = follow(session);
  await session.submitPrompt(say('slow long=30'));
  for (let cuts = 0; cuts < 5; cuts += 1) {
    const before = stream.events.length;
    await until(() => stream.events.length >= before + 4, 'four events');
    proxy.cut('/events');
    await stream.done.then(() => {}, () => {});
    all.push(...stream.events);
    stream = follow(session);
  }
  await seen(stream, 'turn_complete');
  all.push(...stream.events);
  assertUnbroken(all);
  assertWords(textOf(all), 30);
  await stream.stop();
  await session.close();
  proxy.close();
}, 30_000);

check('cancel', async () => {
  const session = await open();
  const stream = follow(session);
  const running = session.prompt(say('hold'));
  await until(() => textOf(stream.events), 'the first chunk');
  await session.cancel();
  equal((await within(5000, running, 'the end of the turn')).stopReason, 'cancelled', 'stopReason');
  assert(stream.events.some((event) => event.type === 'prompt_cancelled'), 'prompt_cancelled');
  await session.cancel(); // idle: nothing happens
  equal((await session.prompt(say('echo after'))).stopReason, 'end_turn', 'the next prompt');
  await stream.stop();
  await session.close();
});

check('a caller that aborts cancels the turn', async () => {
  const session = await open();
  const stream = follow(session);
  const abort = new AbortController();
  const running = session.prompt(say('hold'), abort.signal);
  await until(() => textOf(stream.events), 'the first chunk');
  abort.abort();
  await rejects(running, (error) => error.name === 'AbortError', 'the aborted prompt');
  equal((await seen(stream, 'turn_complete')).data.stopReason, 'cancelled', 'stopReason');
  await stream.stop();
  await session.close();
});

check('a failing turn', async () => {
  const session = await open();
  await rejects(session.prompt(say('fail')), isDaemonTurnError, 'the failing turn');
  equal((await session.prompt(say('echo after'))).stopReason, 'end_turn', 'the next prompt');
  await session.close();
});

const allow = (request) => request.data.options.find((option) => option.kind === 'allow_once').optionId;

check('permission vote on the session route', async () => {
  const session = await open();
  const stream = follow(session);
  const running = session.prompt(say('permission'));
  const request = await seen(stream, 'permission_request');
  const response = { outcome: { outcome: 'selected', optionId: allow(request) } };
  equal(await session.respondToSessionPermission(request.data.requestId, response), true, 'the vote');
  const resolved = await seen(stream, 'permission_resolved');
  equal(resolved.data.requestId, request.data.requestId, 'requestId');
  equal((await running).stopReason, 'end_turn', 'stopReason');
  equal(await session.respondToSessionPermission(request.data.requestId, response), false, 'a second vote');
  await stream.stop();
  await session.close();
});

check('permission vote on the plain route, cancelled', async () => {
  const session = await open();
  const stream = follow(session);
  const running = session.prompt(say('permission'));
  const request = await seen(stream, 'permission_request');
  await rejects(session.respondToPermission(request.data.requestId, { outcome: { outcome: 'selected', optionId: 'never offered' } }),
    (error) => error instanceof DaemonHttpError && error.status === 400, 'an option that was not offered');
  equal(await session.respondToPermission(request.data.requestId, { outcome: { outcome: 'cancelled' } }), true, 'the vote');
  await running;
  equal(await client.respondToPermission(crypto.randomUUID(), { outcome: { outcome: 'cancelled' } }), false, 'an unknown request');
  await stream.stop();
  await session.close();
});

check('permission request survives a cut', async () => {
  const proxy = await cuttingProxy();
  const session = await open(new DaemonClient({ baseUrl: proxy.url, token }));
  const first = follow(session);
  await session.submitPrompt(say('permission'));
  await until(() => first.events.length >= 1, 'an event');
  const asked = await seen(first, 'permission_request');
  const cursor = asked.id - 1;
  proxy.cut('/events');
  await first.done.then(() => {}, () => {});
  session.setLastEventId(cursor);
  const second = follow(session);
  const again = await seen(second, 'permission_request');
  equal([again.id, again.data.requestId], [asked.id, asked.data.requestId], 'the replayed request');
  equal(await session.respondToPermission(again.data.requestId, { outcome: { outcome: 'selected', optionId: allow(again) } }), true, 'the vote');
  equal((await seen(second, 'turn_complete')).data.stopReason, 'end_turn', 'stopReason');
  await second.stop();
  await session.close();
  proxy.close();
});

check('the local prompt limit sends nothing', async () => {
  let prompts = 0;
  const counting = (url, init) => {
    if (String(url).endsWith('/prompt')) prompts += 1;
    return fetch(url, init);
  };
  const limited = new DaemonClient({ baseUrl, token, fetch: counting, maxPendingPromptsPerSession: 1 });
  const session = await open(limited);
  const stream = follow(session);
  const running = session.prompt(say('hold'));
  await until(() => textOf(stream.events), 'the first chunk');
  const refusal = await rejects(session.prompt(say('echo no')), (error) => error instanceof DaemonPendingPromptLimitError, 'the second prompt');
  equal([refusal.limit, refusal.pendingCount, prompts], [1, 1, 1], 'limit, pendingCount, requests');
  await session.cancel();
  await running;
  equal((await session.prompt(say('echo yes'))).stopReason, 'end_turn', 'after the slot was released');
  await stream.stop();
  await session.close();
});

check('the server prompt limit: 503 prompt_queue_full', async () => {
  const session = await open(new DaemonClient({ baseUrl, token, maxPendingPromptsPerSession: null }));
  const stream = follow(session);
  const accepted = [];
  for (let n = 0; n < 5; n += 1) accepted.push(await session.submitPrompt(say('hold')));
  equal(new Set(accepted.map(({ promptId }) => promptId)).size, 5, 'distinct prompt ids');
  const refusal = await rejects(session.submitPrompt(say('echo six')), () => true, 'the sixth prompt');
  if (refusal instanceof DaemonPendingPromptLimitError) {
    equal([refusal.limit, refusal.pendingCount], [5, 5], 'limit, pendingCount');
  } else {
    equal(refusal.status, 503, 'status');
    equal(refusal.body.code, 'prompt_queue_full', 'code');
  }
  const raw = await fetch(`${baseUrl}/session/${session.sessionId}/prompt`, {
    method: 'POST', headers: { 'Content-Type': 'application/json', ...authorization }, body: JSON.stringify(say('six')),
  });
  equal([raw.status, raw.headers.get('retry-after')], [503, '5'], 'status, Retry-After');
  const body = await raw.json();
  equal([body.code, body.sessionId, body.limit, body.pendingCount, 'promptId' in body],
    ['prompt_queue_full', session.sessionId, 5, 5, false], 'the body of the refusal');
  const { pendingPrompts } = await session.getPendingPrompts();
  equal(pendingPrompts.map(({ state }) => state), ['running', 'queued', 'queued', 'queued', 'queued'], 'pending prompts');
  equal((await session.removePendingPrompt(accepted[4].promptId)).removed, true, 'removal of a queued prompt');
  for (let n = 0; n < 4; n += 1) {
    await until(() => textOf(stream.events.filter((event) => event.promptId === accepted[n].promptId)), `prompt ${n} running`);
    await session.cancel();
  }
  await until(() => stream.events.filter((event) => event.type === 'turn_complete' && event.data.stopReason === 'cancelled').length === 5, 'five outcomes');
  equal((await session.prompt(say('echo after'))).stopReason, 'end_turn', 'after the queue emptied');
  await stream.stop();
  await session.close();
});

check('heartbeat, list, status, metadata', async () => {
  const session = await open();
  const beat = await session.heartbeat();
  equal([beat.sessionId, beat.clientId], [session.sessionId, session.clientId], 'heartbeat');
  assert(beat.lastSeenAt, 'lastSeenAt');
  await session.prompt(say('echo listed'));
  const listed = await client.listWorkspaceSessions(session.workspaceCwd);
  const summary = listed.find(({ sessionId }) => sessionId === session.sessionId);
  assert(summary, 'the session is listed', listed.length);
  equal([summary.hasActivePrompt, summary.isWaitingForPermission], [false, false], 'idle');
  equal((await session.status()).sessionId, session.sessionId, 'status');
  equal((await session.updateMetadata({ displayName: 'named by a test' })).displayName, 'named by a test', 'displayName');
  assert((await session.context()).state, 'context');
  assert(Array.isArray((await session.supportedCommands()).availableCommands), 'supported commands');
  await session.close();
});

check('load and resume attach to a live session', async () => {
  const session = await open();
  await session.prompt(say('echo history'));
  const loaded = await DaemonSessionClient.load(client, session.sessionId);
  const replay = [...loaded.replaySnapshot.compactedReplay, ...loaded.replaySnapshot.liveJournal];
  assert(textOf(replay).includes('history'), 'the history', replay.length);
  const resumed = await DaemonSessionClient.resume(client, session.sessionId);
  assert(resumed.lastEventId > 0 && resumed.eventEpoch, 'cursor and epoch', [resumed.lastEventId, resumed.eventEpoch]);
  const stream = follow(resumed);
  equal((await session.prompt(say('echo more'))).stopReason, 'end_turn', 'a prompt by the first client');
  await seen(stream, 'turn_complete');
  assert(textOf(stream.events).includes('more') && !textOf(stream.events).includes('history'), 'only what came after the cursor');
  await stream.stop();
  await resumed.detach();
  await rejects(DaemonSessionClient.load(client, crypto.randomUUID()), (error) => error.status === 404, 'an unknown session');
  await session.close();
});

check('close ends the streams', async () => {
  const session = await open();
  const stream = follow(session);
  await session.prompt(say('echo bye'));
  await session.close();
  await within(5000, stream.done, 'the end of the stream');
  equal(stream.events.at(-1).type, 'session_closed', 'the last event');
  await rejects(session.prompt(say('echo late')), (error) => error.status === 404, 'a prompt after the close');
  await session.close(); // 404 counts as closed
});
await finish();
