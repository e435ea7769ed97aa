// Events arrive numbered, but not always in order, and some may never arrive. This puts them in order and says when one is missing.

export interface Numbered {
  seq: number;
}

/** What became of an event that arrived. */
export interface Ordered<E> {
  /** Events that are due now, in order. */
  ready: E[];
  /** True while later events wait for a missing one. */
  waiting: boolean;
}

/** More waiting events than this mean that the missing one is lost. */
const MAX_HELD = 2000;

export class EventOrder<E extends Numbered> {
  private next: number | null = null;
  private held = new Map<number, E>();

  /** Begins after a state that includes every event up to and including seq. Events that came too early are kept. */
  startAfter(seq: number): E[] {
    this.next = seq + 1;
    for (const held of this.held.keys()) if (held <= seq) this.held.delete(held);
    return this.drain();
  }

  /** Before the first startAfter every event is held. */
  push(event: E): Ordered<E> {
    if (this.next !== null && event.seq < this.next) return { ready: [], waiting: this.held.size > 0 };
    this.held.set(event.seq, event);
    const ready = this.next === null ? [] : this.drain();
    return { ready, waiting: this.next !== null && this.held.size > 0 };
  }

  get overflowing(): boolean {
    return this.held.size > MAX_HELD;
  }

  /** Forgets where it was; events are held until startAfter. */
  stop(): void {
    this.next = null;
  }

  private drain(): E[] {
    const ready: E[] = [];
    while (this.next !== null) {
      const event = this.held.get(this.next);
      if (event === undefined) break;
      this.held.delete(this.next);
      ready.push(event);
      this.next++;
    }
    return ready;
  }
}
