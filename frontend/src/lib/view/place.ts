// Holds the reader's place when something above it changes its height, which Chromium does by itself and WebKit does not.

export class Place {
  private readonly heights = new WeakMap<Element, number>();
  private readonly observer: ResizeObserver | null;

  /** scroller is what scrolls; held says whether there is a place to hold. */
  constructor(scroller: () => HTMLElement | undefined, held: () => boolean) {
    this.observer = CSS.supports('overflow-anchor', 'auto')
      ? null
      : new ResizeObserver((entries) => {
          const node = scroller();
          const shift = this.measure(entries, node?.getBoundingClientRect().top ?? 0);
          if (node && held() && shift !== 0) node.scrollTop += shift;
        });
  }

  /** Watches an element of the text. Elements may lie in each other; a change counts for the outermost that lies above the view. */
  watch(node: Element): () => void {
    this.observer?.observe(node);
    return () => this.observer?.unobserve(node);
  }

  private measure(entries: readonly ResizeObserverEntry[], top: number): number {
    const changed: { node: Element; by: number }[] = [];
    for (const e of entries) {
      const height = e.borderBoxSize[0]?.blockSize ?? 0;
      const old = this.heights.get(e.target);
      this.heights.set(e.target, height);
      if (old !== undefined && e.target.getBoundingClientRect().bottom - height + old < top)
        changed.push({ node: e.target, by: height - old });
    }
    const outermost = changed.filter((c) => !changed.some((o) => o !== c && o.node.contains(c.node)));
    return outermost.reduce((shift, c) => shift + c.by, 0);
  }
}
