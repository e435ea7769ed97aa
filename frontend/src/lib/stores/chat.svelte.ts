// The conversation that is shown: its messages, the answer that grows, what is typed.

import { SvelteMap, SvelteSet } from 'svelte/reactivity';
import * as bridge from '../bridge/bridge';
import type { AppEvent, ContextUse, Conversation, Message, Sampling } from '../bridge/types';
import { shownBranch, type Shown } from '../policy/tree';
import { app } from './app.svelte';

/** How long typing pauses before the draft is kept and the context measured. */
const DRAFT_PAUSE_MILLIS = 400;

class ChatStore {
  id = $state('');
  conversation = $state<Conversation | null>(null);
  messages = new SvelteMap<string, Message>();
  draft = $state('');
  loading = $state(false);
  problem = $state('');
  context = $state<ContextUse | null>(null);
  /** The message whose text is being edited for a new version. */
  editing = $state('');

  branch: Shown[] = $derived(this.conversation ? shownBranch(this.messages, this.conversation.head) : []);
  /** Where a call that begins an answer is under way; '' is the chat that does not exist yet. */
  private readonly asking = new SvelteSet<string>();
  generation = $derived(app.generations[this.id]);
  /** The last message of the branch. */
  last: Message | undefined = $derived(this.branch.at(-1)?.message);
  /** An answer is being written. The call that began it may return before the first event about it, and the other way round. */
  answering = $derived(this.asking.has(this.id) || this.generation !== undefined || this.last?.state === 'streaming');

  private started = false;
  private begun: () => void = () => {};
  /** The first conversation is there: until then nothing is made for what is typed. */
  private readonly ready = new Promise<void>((done) => (this.begun = done));

  /** A message to bring into view once it is there. */
  target = $state('');

  /** Drafts that Go could not write down: they last as long as the page. */
  private readonly unsaved = new Map<string, string>();
  private asOf = 0;
  /** Events that came before the conversation was read, or before the call returned that told of their message. */
  private waiting: AppEvent[] = [];
  private opening = 0;
  private creating: ReturnType<typeof bridge.newConversation> | null = null;
  private pending: { message: string; text: string; thinking: string }[] = [];
  private frame = 0;
  private draftTimer: ReturnType<typeof setTimeout> | undefined;

  /** Shows the page's first conversation. What was typed before it was known stays typed. */
  async begin(id: string): Promise<void> {
    await this.open(id);
    this.started = true;
    this.begun();
    if (this.draft !== '') this.typed();
  }

  /** Shows a conversation; '' is a chat that does not exist yet. */
  async open(id: string): Promise<void> {
    await this.keepDraft();
    const attempt = ++this.opening;
    const again = id === this.id;
    this.id = id;
    this.editing = '';
    this.problem = '';
    this.context = null;
    this.waiting = [];
    this.pending = [];
    this.conversation = null;
    this.messages.clear();
    if (!again && this.started) this.draft = '';
    if (app.settings && app.settings.lastConversation !== id) void app.changeSettings({ lastConversation: id });
    if (id === '') {
      void this.measure();
      return;
    }
    this.loading = true;
    try {
      const t = await bridge.transcript(id);
      if (attempt !== this.opening) return;
      this.asOf = t.seq;
      this.conversation = t.conversation;
      if (!again) this.draft = joined(this.unsaved.get(id) ?? t.conversation.draft, this.draft); // typing does not wait
      if (this.draft !== t.conversation.draft) this.typed();
      for (const m of t.messages) this.put(m);
      this.loading = false;
      this.takeUp();
      void this.measure();
    } catch (error) {
      if (attempt !== this.opening) return;
      this.problem = bridge.sentence(error);
    } finally {
      if (attempt === this.opening) this.loading = false;
    }
  }

  /** Shows a conversation at a message, on the branch that leads to it. */
  async openAt(id: string, message: string): Promise<void> {
    if (this.id !== id) await this.open(id);
    if (message === '') return;
    if (!this.branch.some((s) => s.message.id === message)) await this.select(message);
    this.target = message;
  }

  /** After the page lost count: reads the conversation again, keeping what is typed. */
  refresh(): Promise<void> {
    return this.open(this.id);
  }

  event(event: AppEvent): void {
    if (this.id === '') return;
    if (this.loading) {
      this.waiting.push(event);
      return;
    }
    if (event.seq <= this.asOf) return;
    switch (event.kind) {
      case 'piece':
        if (event.data.conversation !== this.id) return;
        if (this.messages.has(event.data.message)) this.grow(event.data.message, event.data.text, event.data.thinking);
        else this.waiting.push(event);
        break;
      case 'message': {
        if (event.data.conversation !== this.id) return;
        this.applyPending();
        const m = this.messages.get(event.data.id);
        if (m) {
          Object.assign(m, { ...event.data, text: m.text, thinking: m.thinking });
          void this.measure();
        } else this.waiting.push(event);
        break;
      }
      case 'conversation':
        if (event.data.id === this.id && this.conversation) {
          const { systemPrompt, draft } = this.conversation;
          Object.assign(this.conversation, { ...event.data, systemPrompt, draft });
        }
        break;
      case 'conversation-removed':
        if (event.data === this.id) void this.open('');
        break;
      case 'model':
        void this.measure();
        break;
    }
  }

  private takeUp(): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const event of waiting) this.event(event);
  }

  async send(text: string, parent?: string): Promise<boolean> {
    const id = await this.whileAsking(
      this.id,
      this.ready.then(() => app.attempt(this.ensure())),
    );
    return id !== undefined && this.whileAsking(id, this.ask(id, text, parent));
  }

  /** Asking lasts as long as the call that begins an answer. */
  private async whileAsking<T>(conversation: string, call: Promise<T>): Promise<T> {
    this.asking.add(conversation);
    try {
      return await call;
    } finally {
      this.asking.delete(conversation);
    }
  }

  private async ask(id: string, text: string, parent?: string): Promise<boolean> {
    const last = this.id === id ? this.last?.id : undefined; // of another that was opened since, nothing is asked about
    const under = parent ?? last ?? '';
    const generated = await app.attempt(
      bridge.generate({ conversation: id, mode: 'send', parent: under, text, sampling: null }),
    );
    if (!generated) return false;
    if (this.id !== id) return true;
    const now = Date.now();
    this.addLocal({ id: generated.question, parent: under, role: 'user', text, state: 'done', created: now });
    this.addLocal({
      id: generated.answer,
      parent: generated.question,
      role: 'assistant',
      state: 'streaming',
      created: now,
    });
    if (this.conversation) this.conversation.head = generated.answer;
    this.editing = '';
    return true;
  }

  /** Another answer to the question of an answer; sampling repeats an earlier one's settings. */
  async regenerate(answer: Message, sampling: Sampling | null = null): Promise<void> {
    const { conversation } = answer;
    const generated = await this.whileAsking(
      conversation,
      app.attempt(bridge.generate({ conversation, mode: 'regenerate', parent: answer.parent, text: '', sampling })),
    );
    if (!generated || this.id !== conversation) return;
    this.addLocal({
      id: generated.answer,
      parent: answer.parent,
      role: 'assistant',
      state: 'streaming',
      created: Date.now(),
    });
    if (this.conversation) this.conversation.head = generated.answer;
  }

  async continueAnswer(answer: Message): Promise<void> {
    const { conversation } = answer;
    const generated = await this.whileAsking(
      conversation,
      app.attempt(bridge.generate({ conversation, mode: 'continue', parent: answer.id, text: '', sampling: null })),
    );
    if (generated) answer.state = 'streaming';
  }

  async stop(): Promise<void> {
    if (this.id === '' && !this.asking.has('')) return;
    await this.ready;
    // Go carries calls out in the order in which they are made: this one after the one that begins the answer.
    const id = await app.attempt(this.ensure());
    if (id !== undefined) await app.attempt(bridge.stop(id));
  }

  async select(message: string): Promise<void> {
    await app.attempt(bridge.selectBranch(this.id, message));
  }

  async configure(systemPrompt: string, sampling: Sampling | null): Promise<boolean> {
    const id = await app.attempt(this.ensure());
    if (id === undefined) return false;
    const saved = await app.succeeds(bridge.configure(id, systemPrompt, sampling));
    if (saved && this.conversation?.id === id) {
      this.conversation.systemPrompt = systemPrompt;
      this.conversation.sampling = sampling;
      void this.measure();
    }
    return saved;
  }

  /** Puts text that could not be sent before what has been typed since. */
  giveBack(text: string): void {
    this.draft = joined(text, this.draft);
  }

  /** Called on every change of the draft. */
  typed(): void {
    clearTimeout(this.draftTimer);
    this.draftTimer = setTimeout(() => {
      void this.keepDraft();
      void this.measure();
    }, DRAFT_PAUSE_MILLIS);
  }

  async keepDraft(): Promise<void> {
    clearTimeout(this.draftTimer);
    this.draftTimer = undefined;
    const draft = this.draft;
    if (!this.started || draft === (this.conversation?.draft ?? '')) return;
    if (this.id !== '' && !this.conversation) return; // not read yet: what is typed is joined to its draft, not put in its place
    const id = await app.attempt(this.ensure()); // what was typed into a new chat is kept too
    if (id === undefined) return;
    if (this.conversation?.id === id) this.conversation.draft = draft;
    app.keepDraft(id, draft);
    this.unsaved.set(id, draft);
    const saved = await app.succeeds(bridge.saveDraft(id, draft));
    if (saved && this.unsaved.get(id) === draft) this.unsaved.delete(id);
  }

  /** The conversation that is shown, made now if it does not exist yet. */
  private async ensure(): Promise<string> {
    if (this.id !== '') return this.id;
    const attempt = this.opening;
    this.creating ??= bridge.newConversation().finally(() => (this.creating = null));
    const made = await this.creating;
    app.upsert(made as Conversation); // its event may come later than this answer
    if (this.id === '' && attempt === this.opening) {
      this.id = made.id;
      this.conversation = made as Conversation;
      void app.changeSettings({ lastConversation: made.id });
    }
    return made.id;
  }

  private async measure(): Promise<void> {
    if (app.model.phase !== 'ready') {
      this.context = null;
      return;
    }
    const id = this.id;
    try {
      const use = await bridge.measureContext(id, this.last?.id ?? '', this.draft);
      if (id === this.id) this.context = use;
    } catch {
      this.context = null; // the meter is a convenience; sending says what is wrong
    }
  }

  private addLocal(m: Partial<Message> & Pick<Message, 'id' | 'parent' | 'role' | 'state' | 'created'>): void {
    if (this.messages.has(m.id)) return;
    this.put({ conversation: this.id, text: '', thinking: '', error: '', receipt: null, ...m });
    this.takeUp();
  }

  private put(m: Message): void {
    const reactive = $state(m);
    this.messages.set(m.id, reactive);
  }

  /** Text is put on the page once per frame, however often it arrives. */
  private grow(id: string, text: string, thinking: boolean): void {
    const last = this.pending.at(-1);
    if (last?.message === id) {
      if (thinking) last.thinking += text;
      else last.text += text;
    } else {
      this.pending.push({ message: id, text: thinking ? '' : text, thinking: thinking ? text : '' });
    }
    if (document.hidden) this.applyPending();
    else if (this.frame === 0) this.frame = requestAnimationFrame(() => this.applyPending());
  }

  private applyPending(): void {
    if (this.frame !== 0) cancelAnimationFrame(this.frame);
    this.frame = 0;
    for (const p of this.pending) {
      const m = this.messages.get(p.message);
      if (!m) continue;
      if (p.thinking) m.thinking += p.thinking;
      if (p.text) m.text += p.text;
    }
    this.pending = [];
  }
}

function joined(first: string, second: string): string {
  return first === '' || second === '' ? first + second : `${first}\n${second}`;
}

export const chat = new ChatStore();
