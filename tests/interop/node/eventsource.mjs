// `eventsource`, the standard browser interface in Node, reconnecting by itself: only `retry:`, `id:` and Last-Event-ID count.
import { EventSource } from 'eventsource';
import { DaemonClient, DaemonSessionClient } from '@qwen-code/sdk/daemon';
import { assert, assertUnbroken, assertWords, authorization, baseUrl, check, cuttingProxy, equal, finish, newSession, say, shipped, textOf, token, until } from './lib.mjs';

const client = new DaemonClient({ baseUrl, token });
const SURVIVES = 6; // events seen before a cut

/** An EventSource that sends `headers` on every attempt and records what each attempt asked for. */
function listen(url, headers, types = []) {
  const cursors = [];
  const events = [];
  const source = new EventSource(url, {
    fetch: (input, init) => {
      cursors.push(new Headers(init.headers).get('last-event-id'));
      return fetch(input, { ...init, headers: { ...Object.fromEntries(new Headers(init.headers)), ...authorization, ...headers } });
    },
  });
  const record = (message) => events.push({ id: message.lastEventId, ...JSON.parse(message.data) });
  for (const type of ['message', ...types]) source.addEventListener(type, record);
  return { source, events, cursors };
}

check('REST stream: one cut, and it comes back by itself', async () => {
  const proxy = await cuttingProxy();
  const session = await DaemonSessionClient.createOrAttach(client, newSession());
  const types = ['session_update', 'turn_complete', 'turn_error', 'replay_complete'];
  const { source, events, cursors } = listen(`${proxy.url}/session/${session.sessionId}/events`, {}, types);
  await until(() => source.readyState === EventSource.OPEN, 'the stream');
  await session.submitPrompt(say('slow long=50'));
  await until(() => events.length >= SURVIVES, 'events');
  const cut = Date.now();
  assert(proxy.cut('/events') >= 1, 'a stream was cut');
  const before = events.at(-1).id;
  await until(() => cursors.length === 2, 'a second attempt');
  assert(Date.now() - cut >= 2500, 'the delay is what retry: says', Date.now() - cut);
  equal(cursors[1], String(before), 'Last-Event-ID');
  await until(() => events.some(({ type }) => type === 'turn_complete'), 'turn_complete', 20_000);
  source.close();
  const published = events.filter(({ type }) => type !== 'replay_complete');
  assertUnbroken(published);
  assertWords(textOf(published), 50);
  await session.close();
  proxy.close();
}, 40_000);

check('/acp session stream: one cut, and it comes back by itself', async () => {
  const proxy = await cuttingProxy();
  const post = (body, headers = {}) => fetch(`${baseUrl}/acp`, {
    method: 'POST', headers: { 'Content-Type': 'application/json', ...authorization, ...headers }, body: JSON.stringify({ jsonrpc: '2.0', ...body }),
  });
  const opened = await post({ id: 1, method: 'initialize', params: { protocolVersion: 1 } });
  const connection = { 'Acp-Connection-Id': opened.headers.get('acp-connection-id') };
  const replies = listen(`${baseUrl}/acp`, connection);
  await until(() => replies.source.readyState === EventSource.OPEN, 'the connection stream');
  await post({ id: 2, method: 'session/new', params: {} }, connection);
  const { sessionId } = (await until(() => replies.events.find(({ id, result }) => result && id === 2), 'the new session')).result;
  const { source, events, cursors } = listen(`${proxy.url}/acp`, { ...connection, 'Acp-Session-Id': sessionId });
  await until(() => source.readyState === EventSource.OPEN, 'the session stream');
  await post({ id: 3, method: 'session/prompt', params: { sessionId, ...say('slow long=50') } }, connection);
  await until(() => events.length >= SURVIVES, 'events');
  assert(proxy.cut('acp-session-id:') >= 1, 'a stream was cut');
  await until(() => cursors.length === 2, 'a second attempt');
  assert(Number(cursors[1]) > 0, 'Last-Event-ID', cursors);
  const reply = await until(() => events.find(({ id, result }) => result && id === 3), 'the reply to the prompt', 20_000);
  equal(reply.result.stopReason, 'end_turn', 'stopReason');
  const texts = events.filter(({ method }) => method === 'session/update').map(({ params }) => ({ data: params }));
  assertWords(textOf(texts), 50);
  if (!shipped) {
    const replay = events.findIndex(({ params }) => params?.kind === 'replay_complete');
    assert(replay > 0 && events.indexOf(reply) > replay, 'the reply comes after replay_complete');
  }
  source.close();
  replies.source.close();
  await fetch(`${baseUrl}/acp`, { method: 'DELETE', headers: { ...authorization, ...connection } });
  proxy.close();
}, 40_000);
await finish(2);
