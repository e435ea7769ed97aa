// The only place that talks to Go: bound methods, events, bulk data. Everything above it is given typed values.

import * as go from '../../../wailsjs/go/main/App';
import { EventsOn } from '../../../wailsjs/runtime/runtime';
import { EventOrder } from './order';
import type {
  AppEvent,
  Command,
  GenerateRequest,
  Generated,
  Licence,
  Sampling,
  Settings,
  State,
  Transcript,
} from './types';

/** How long a missing event may take to arrive before the page asks for the whole state. */
const GAP_PATIENCE_MILLIS = 400;

export interface Listener {
  state(state: State): void;
  event(event: AppEvent): void;
  /** The page lost touch with Go; text says what is being done. */
  trouble(text: string): void;
}

let session = '';
let number = 0;
const order = new EventOrder<AppEvent>();
let listener: Listener | null = null;
let gapTimer: ReturnType<typeof setTimeout> | undefined;
let refreshing: Promise<void> | null = null;

function command(): Command {
  number += 1;
  return { session, number };
}

/** fetchData reads bulk data, which bound methods would pass through the script engine twice. */
async function fetchData(path: string): Promise<Response> {
  // eslint-disable-next-line no-restricted-globals -- the one place; same origin only, see the content policy
  const response = await fetch(`/data/${path}`, { cache: 'no-store' });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response;
}

export async function start(to: Listener): Promise<void> {
  listener = to;
  EventsOn('colibri', (event: AppEvent) => receive(event));
  await refresh();
}

/** Reads the whole state and goes on from there. */
export function refresh(): Promise<void> {
  refreshing ??= (async () => {
    try {
      order.stop();
      const state = (await (await fetchData('state')).json()) as State;
      session = state.session;
      number = 0;
      clearTimeout(gapTimer);
      gapTimer = undefined;
      listener?.state(state);
      deliver(order.startAfter(state.seq));
    } finally {
      refreshing = null;
    }
  })();
  return refreshing;
}

function receive(event: AppEvent): void {
  const { ready, waiting } = order.push(event);
  deliver(ready);
  if (!waiting) {
    clearTimeout(gapTimer);
    gapTimer = undefined;
  } else if (order.overflowing) {
    void recover();
  } else {
    gapTimer ??= setTimeout(() => void recover(), GAP_PATIENCE_MILLIS);
  }
}

async function recover(): Promise<void> {
  try {
    await refresh();
  } catch (error) {
    listener?.trouble(`The window lost touch with the engine and is trying again (${sentence(error)}).`);
    setTimeout(() => void recover(), 1000);
  }
}

function deliver(events: AppEvent[]): void {
  for (const event of events) {
    if (event.kind === 'resync') void recover();
    else listener?.event(event);
  }
}

/** What a rejected call says, whatever it was rejected with. */
export function sentence(error: unknown): string {
  if (typeof error === 'string' && error !== '') return error;
  if (error instanceof Error && error.message !== '') return error.message;
  return 'something went wrong that has no description';
}

/** Runs a call that changes something. A page whose session Go no longer knows gets a new one and tries once more. */
async function change<T>(call: (c: Command) => Promise<T>): Promise<T> {
  if (refreshing) await refreshing;
  try {
    return await call(command());
  } catch (error) {
    if (!sentence(error).includes('out of date')) throw error;
    await refresh();
    return call(command());
  }
}

export const loadModel = (id: string) => change((c) => go.LoadModel(c, id));
export const unloadModel = () => change((c) => go.UnloadModel(c));
export const reloadModel = () => change((c) => go.ReloadModel(c));
export const generate = (r: GenerateRequest): Promise<Generated> =>
  change((c) => go.Generate(c, r as Parameters<typeof go.Generate>[1]));
export const stop = (conversation: string) => change((c) => go.Stop(c, conversation));
export const newConversation = () => change((c) => go.NewConversation(c));
export const rename = (id: string, title: string) => change((c) => go.Rename(c, id, title));
export const pin = (id: string, pinned: boolean) => change((c) => go.Pin(c, id, pinned));
export const remove = (id: string) => change((c) => go.Delete(c, id));
export const restore = (id: string) => change((c) => go.Restore(c, id));
export const saveDraft = (id: string, text: string) => change((c) => go.SaveDraft(c, id, text));
export const selectBranch = (id: string, message: string) => change((c) => go.SelectBranch(c, id, message));
export const configure = (id: string, systemPrompt: string, sampling: Sampling | null) =>
  // Wails types a nil pointer as if it could not be null.
  change((c) => go.Configure(c, id, systemPrompt, sampling as Sampling));
export const saveSettings = (s: Settings) => change((c) => go.SaveSettings(c, s));
export const acceptOffer = (id: string) => change((c) => go.AcceptOffer(c, id));
export const dismissOffer = (id: string) => change((c) => go.DismissOffer(c, id));
export const removeContainer = (id: string) => change((c) => go.RemoveContainer(c, id));

export const settings = () => go.Settings() as Promise<Settings>;
export const containers = () => go.Containers();
export const search = (query: string) => go.Search(query);
export const measureContext = (conversation: string, parent: string, text: string) =>
  go.MeasureContext(conversation, parent, text);
export const openContainer = () => go.OpenContainer();
export const locateContainer = (id: string) => go.LocateContainer(id);
export const revealContainer = (id: string) => go.RevealContainer(id);
export const revealData = () => go.RevealData();
export const exportChat = (id: string, format: 'markdown' | 'json') => go.Export(id, format);
export const importChats = () => go.Import();
export const openLink = (address: string) => go.OpenLink(address);
export const copyText = (text: string) => go.CopyText(text);
export const setVisible = (visible: boolean) => go.SetVisible(visible);
export const rememberWindow = () => go.RememberWindow();
export const reportError = (text: string) => go.ReportError(text);
export const about = () => go.About();

export async function transcript(id: string): Promise<Transcript> {
  return (await (await fetchData(`transcript?id=${encodeURIComponent(id)}`)).json()) as Transcript;
}

export async function licences(): Promise<Licence[]> {
  return (await (await fetchData('licences')).json()) as Licence[];
}
export async function atlas(): Promise<ArrayBuffer> {
  return (await fetchData('atlas')).arrayBuffer();
}
