// The one way from a transcript's text to markup on the page.

import { become } from '../view/become';
import { createSanitiser } from './sanitise';
import { BlockRenderer, type Block } from './blocks';
import { blockStarts, render } from './render';

const sanitise = createSanitiser(window);

export function newBlocks(): BlockRenderer {
  return new BlockRenderer({ render, blockStarts });
}

interface ShownBlock {
  block: Block;
  element: HTMLElement;
}

/**
 * Blocks are kept in sections of this many, and a section is laid out and painted only near the view. A frame then costs what a section
 * costs: with every block on its own, 600 of them cost 20 ms a frame in visibility checks and layout alone.
 */
const SECTION = 16;

/**
 * Keeps the blocks of a text on the page. Only blocks that changed are touched: of a growing answer the last one, however many there
 * are before it.
 */
export function typeset(node: HTMLElement, blocks: readonly Block[]): { update(next: readonly Block[]): void } {
  const shown: ShownBlock[] = [];
  const sections: HTMLElement[] = [];

  const append = (): ShownBlock => {
    if (shown.length % SECTION === 0) {
      const section = document.createElement('div');
      section.className = 'section';
      sections.push(section);
      node.append(section);
    }
    const element = document.createElement('div');
    sections.at(-1)?.append(element);
    const fresh = { block: { source: '', html: '' }, element };
    shown.push(fresh);
    return fresh;
  };
  const update = (next: readonly Block[]) => {
    next.forEach((block, i) => {
      const old = shown[i] ?? append();
      if (old.block === block) return;
      if (old.block.html !== block.html) fill(old.element, block.html);
      old.block = block;
    });
    while (shown.length > next.length) shown.pop()?.element.remove();
    while (sections.length > Math.ceil(shown.length / SECTION)) sections.pop()?.remove();
  };
  update(blocks);
  return { update };
}

/** Puts markup on the page and applies the styles that the content policy forbids in markup. */
function fill(element: HTMLElement, html: string): void {
  element.className = /^<h[1-3]/.test(html) ? 'block heading' : 'block';
  const fresh = sanitise(html);
  for (const styled of fresh.querySelectorAll<HTMLElement>('[data-style]')) {
    styled.style.cssText = styled.dataset.style ?? '';
  }
  become(element, fresh);
}
