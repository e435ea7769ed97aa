// The one way from a transcript's text to markup on the page.

import { createSanitiser } from './sanitise';
import { BlockRenderer, type Block } from './blocks';
import { blockStarts, render } from './render';

const sanitise = createSanitiser(window);

const renderer = { render: (source: string) => sanitise(render(source)), blockStarts };

export function newBlocks(): BlockRenderer {
  return new BlockRenderer(renderer);
}

interface ShownBlock {
  block: Block;
  element: HTMLElement;
}

/** More blocks than this are laid out only when they come near the view. */
const LONG = 40;

/**
 * Keeps the blocks of a text on the page. Only blocks that changed are touched: of a growing answer the last one, however many there
 * are before it.
 */
export function typeset(node: HTMLElement, blocks: readonly Block[]): { update(next: readonly Block[]): void } {
  const shown: ShownBlock[] = [];
  const update = (next: readonly Block[]) => {
    next.forEach((block, i) => {
      let old = shown[i];
      if (old?.block === block) return;
      if (!old) {
        old = { block: { source: '', html: '' }, element: document.createElement('div') };
        shown.push(old);
        node.append(old.element);
      }
      if (old.block.html !== block.html) fill(old.element, block.html);
      old.block = block;
    });
    while (shown.length > next.length) shown.pop()?.element.remove();
    node.classList.toggle('long', next.length > LONG);
  };
  update(blocks);
  return { update };
}

/** Puts markup on the page and applies the styles that the content policy forbids in markup. */
function fill(element: HTMLElement, html: string): void {
  element.className = /^<h[1-3]/.test(html) ? 'block heading' : 'block';
  element.innerHTML = html;
  for (const styled of element.querySelectorAll<HTMLElement>('[data-style]')) {
    styled.style.cssText = styled.dataset.style ?? '';
  }
}
