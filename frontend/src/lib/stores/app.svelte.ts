// What the page knows of the program. All of it comes from Go: `state` replaces everything, events change parts.

import * as bridge from '../bridge/bridge';
import type {
  AppEvent, Container, Conversation, GenerationStatus, ModelStatus, Notice, Offer, Settings, State, Stats,
} from '../bridge/types'; // prettier-ignore

export interface ShownNotice extends Notice {
  id: number;
}

const NO_MODEL: ModelStatus = {
  phase: 'none', id: '', name: '', stage: '', progress: 0, error: '', backend: '', context: 0,
}; // prettier-ignore

/** Figures of the last two minutes at up to 10 Hz, for the curves. */
const HISTORY = 1200;

export interface Sample {
  time: number;
  tokensPerSecond: number;
  readBytesPerSecond: number;
  hitRate: number;
}

class AppStore {
  ready = $state(false);
  settings = $state<Settings | null>(null);
  containers = $state<Container[]>([]);
  model = $state<ModelStatus>(NO_MODEL);
  /** Replaced whole on every change: thousands of them are cheap to copy, not to watch one by one. */
  conversations = $state.raw<readonly Conversation[]>([]);
  generations = $state<Record<string, GenerationStatus>>({});
  offers = $state<Offer[]>([]);
  notices = $state<ShownNotice[]>([]);
  stats = $state.raw<Stats | null>(null);
  history = $state.raw<Sample[]>([]);

  /** The model that is loaded or being loaded, or would be next. */
  container = $derived(
    this.containers.find((c) => c.id === (this.model.id || this.settings?.lastModel)) ?? this.containers[0],
  );

  private lastNotice = 0;
  private previous: Stats | null = null;

  apply(state: State): void {
    this.settings = state.settings;
    this.containers = state.containers;
    this.model = state.model;
    this.conversations = state.conversations;
    this.generations = Object.fromEntries(state.generations.map((g) => [g.conversation, g]));
    this.offers = state.offers ?? [];
    this.takeStats(state.stats);
    this.ready = true;
  }

  event(event: AppEvent): void {
    switch (event.kind) {
      case 'conversation':
        this.upsert(event.data);
        break;
      case 'conversation-removed':
        this.conversations = this.conversations.filter((c) => c.id !== event.data);
        break;
      case 'generation':
        if (event.data.phase === 'done') delete this.generations[event.data.conversation];
        else this.generations[event.data.conversation] = event.data;
        break;
      case 'model':
        this.model = event.data;
        break;
      case 'stats':
        this.takeStats(event.data);
        break;
      case 'notice':
        this.notify(event.data);
        break;
      case 'offer':
        this.offers = [...this.offers.filter((o) => o.path !== event.data.path), event.data];
        break;
      case 'containers':
        void this.reload('containers');
        break;
      case 'settings':
        void this.reload('settings');
        break;
    }
  }

  notify(notice: Notice): void {
    this.lastNotice += 1;
    const others = this.notices.filter((n) => n.text !== notice.text || n.subject !== notice.subject);
    this.notices = [...others.slice(-3), { ...notice, id: this.lastNotice }];
  }

  dismiss(id: number): void {
    this.notices = this.notices.filter((n) => n.id !== id);
  }

  /** Runs a call and shows what went wrong, if anything did. */
  async attempt<T>(call: Promise<T>): Promise<T | undefined> {
    try {
      return await call;
    } catch (error) {
      this.notify({ level: 'error', text: capital(bridge.sentence(error)), action: '', subject: '' });
      return undefined;
    }
  }

  /** The same of a call without a result: whether it went well. */
  async succeeds(call: Promise<void>): Promise<boolean> {
    return (await this.attempt(call.then(() => true))) === true;
  }

  async changeSettings(change: Partial<Settings>): Promise<boolean> {
    if (!this.settings) return false;
    const next = { ...$state.snapshot(this.settings), ...change } as Settings;
    this.settings = next; // at once; a refusal brings the old values back
    const saved = await this.succeeds(bridge.saveSettings(next));
    if (!saved) await this.reload('settings');
    return saved;
  }

  /** The draft of a listed conversation, which no event tells about. */
  keepDraft(id: string, draft: string): void {
    this.conversations = this.conversations.map((c) => (c.id === id ? { ...c, draft } : c));
  }

  private async reload(what: 'containers' | 'settings'): Promise<void> {
    await this.attempt(
      what === 'containers'
        ? bridge.containers().then((l) => void (this.containers = l))
        : bridge.settings().then((s) => void (this.settings = s)),
    );
  }

  /** Takes over what is said of a conversation, but for its draft, which is kept here. */
  upsert(c: Conversation): void {
    const i = this.conversations.findIndex((old) => old.id === c.id);
    const old = this.conversations[i];
    this.conversations = old ? this.conversations.with(i, { ...c, draft: old.draft }) : [c, ...this.conversations];
  }

  private takeStats(stats: Stats): void {
    this.stats = stats;
    const before = this.previous;
    const used = stats.snapshot.hits + stats.snapshot.misses;
    const usedBefore = before ? before.snapshot.hits + before.snapshot.misses : 0;
    const recent =
      before && used > usedBefore ? (stats.snapshot.hits - before.snapshot.hits) / (used - usedBefore) : null;
    this.previous = stats;
    const last = this.history.at(-1);
    this.history = [
      ...this.history.slice(-HISTORY + 1),
      {
        time: Date.now() / 1000,
        tokensPerSecond: stats.tokensPerSecond,
        readBytesPerSecond: stats.readBytesPerSecond,
        hitRate: recent ?? last?.hitRate ?? 0,
      },
    ];
  }
}

export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export const app = new AppStore();
