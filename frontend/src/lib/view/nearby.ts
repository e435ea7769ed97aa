// Which messages are rendered: those the reader has been near, a few milliseconds' worth in each frame.

import { flushSync } from 'svelte';
import { SvelteSet } from 'svelte/reactivity';

/** This much above and below the view is rendered before it is seen. */
const MARGIN = '1600px 0px';

/** Rendering goes on in the next frame after this long; the rest of a frame's 16 ms is for layout and paint. */
const BUDGET_MILLIS = 5;

export class Nearby {
  private readonly rendered = new SvelteSet<string>();
  private waiting: string[] = [];
  private frame = 0;
  private readonly groups = new Map<Element, () => readonly string[]>();
  private readonly close = new Set<Element>();
  private readonly observer = new IntersectionObserver(
    (entries) => {
      for (const e of entries) {
        if (e.isIntersecting) this.close.add(e.target);
        else this.close.delete(e.target);
      }
      this.refresh();
    },
    { rootMargin: MARGIN },
  );

  has(id: string): boolean {
    return this.rendered.has(id);
  }

  /** Renders a message now. */
  add(id: string): void {
    this.rendered.add(id);
  }

  /** Begins anew: a long conversation that was read is not rendered whole in one frame when it is opened again. */
  clear(): void {
    this.rendered.clear();
  }

  /** Watches an element that holds messages; ids says which, now. */
  watch(node: HTMLElement, ids: () => readonly string[]): () => void {
    this.groups.set(node, ids);
    this.observer.observe(node);
    return () => {
      this.groups.delete(node);
      this.close.delete(node);
      this.observer.unobserve(node);
    };
  }

  /** Looks again at what is near, because it holds other messages now. */
  refresh(): void {
    this.waiting = [...this.close]
      .flatMap((node) => this.groups.get(node)?.() ?? [])
      .filter((id) => !this.rendered.has(id));
    if (this.waiting.length > 0 && this.frame === 0) this.frame = requestAnimationFrame(() => this.work());
  }

  /** The newest first: a conversation is opened at its end and read upwards. */
  private work(): void {
    this.frame = 0;
    const until = performance.now() + BUDGET_MILLIS;
    while (this.waiting.length > 0 && performance.now() < until) {
      this.rendered.add(this.waiting.pop() as string);
      flushSync();
    }
    if (this.waiting.length > 0) this.frame = requestAnimationFrame(() => this.work());
  }
}
