import { describe, expect, it } from 'vitest';
import { EventOrder } from './order';

const seqs = (events: { seq: number }[]) => events.map((e) => e.seq);

describe('events', () => {
  it('come out in order however they arrive', () => {
    const order = new EventOrder<{ seq: number }>();
    order.startAfter(10);
    expect(order.push({ seq: 12 })).toEqual({ ready: [], waiting: true });
    expect(order.push({ seq: 13 }).waiting).toBe(true);
    expect(seqs(order.push({ seq: 11 }).ready)).toEqual([11, 12, 13]);
    expect(order.push({ seq: 12 })).toEqual({ ready: [], waiting: false }); // a duplicate
  });
  it('that came before the state was there are kept, those it includes are not', () => {
    const order = new EventOrder<{ seq: number }>();
    for (const seq of [5, 7, 6]) expect(order.push({ seq }).ready).toEqual([]);
    expect(seqs(order.startAfter(5))).toEqual([6, 7]);
  });
  it('are held while a new state is fetched', () => {
    const order = new EventOrder<{ seq: number }>();
    order.startAfter(0);
    order.push({ seq: 1 });
    order.stop();
    expect(order.push({ seq: 2 })).toEqual({ ready: [], waiting: false });
    expect(seqs(order.startAfter(1))).toEqual([2]);
  });
  it('of which one never comes are noticed', () => {
    const order = new EventOrder<{ seq: number }>();
    order.startAfter(0);
    for (let seq = 2; seq < 2010; seq++) order.push({ seq });
    expect(order.overflowing).toBe(true);
  });
  it('survive a random shuffle', () => {
    const order = new EventOrder<{ seq: number }>();
    order.startAfter(0);
    let random = 12345;
    const all = Array.from({ length: 500 }, (_, i) => ({ seq: i + 1 }));
    for (let i = all.length - 1; i > 0; i--) {
      random = (random * 1103515245 + 12345) % 2147483648;
      const j = random % (i + 1);
      [all[i], all[j]] = [all[j]!, all[i]!];
    }
    expect(seqs(all.flatMap((e) => order.push(e).ready))).toEqual(all.map((_, i) => i + 1));
  });
});
