// @vitest-environment jsdom
import { describe, expect, it, vi } from 'vitest';
import { Place } from './place';

describe('the reader’s place', () => {
  it('moves by what grew above it, once where elements lie in each other', () => {
    let report: (entries: unknown[]) => void = () => {};
    vi.stubGlobal('CSS', { supports: () => false }); // as WebKit
    vi.stubGlobal(
      'ResizeObserver',
      class {
        constructor(callback: typeof report) {
          report = callback;
        }
        observe() {}
      },
    );
    const element = (bottom: number) => {
      const node = document.createElement('div');
      node.getBoundingClientRect = () => ({ top: 0, bottom }) as DOMRect;
      return node;
    };
    const scroller = element(600);
    const [group, message, other, below] = [element(-500), element(-500), element(-100), element(900)];
    group.append(message);
    const place = new Place(
      () => scroller,
      () => true,
    );
    const sized = (target: Element, height: number) => ({ target, borderBoxSize: [{ blockSize: height }] });
    for (const node of [group, message, other, below]) place.watch(node);
    report([sized(message, 100), sized(other, 100), sized(group, 100), sized(below, 100)]);
    expect(scroller.scrollTop).toBe(0);
    report([sized(message, 130), sized(other, 107), sized(group, 130), sized(below, 400)]);
    expect(scroller.scrollTop).toBe(37);
    vi.unstubAllGlobals();
  });
});
