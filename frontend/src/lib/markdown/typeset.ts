// The one way from a transcript's text to markup on the page.

import { createSanitiser } from './sanitise';
import { BlockRenderer, type Block } from './blocks';
import { blockStarts, render } from './render';

const sanitise = createSanitiser(window);

const renderer = { render: (source: string) => sanitise(render(source)), blockStarts };

export function newBlocks(): BlockRenderer {
  return new BlockRenderer(renderer);
}

/** Puts a block's markup on the page and applies the styles that the content policy forbids in markup. */
export function typeset(node: HTMLElement, block: Block): { update(next: Block): void } {
  let shown = '';
  const update = (next: Block) => {
    if (next.html === shown) return;
    shown = next.html;
    node.innerHTML = next.html;
    for (const styled of node.querySelectorAll<HTMLElement>('[data-style]')) {
      styled.style.cssText = styled.dataset.style ?? '';
    }
  };
  update(block);
  return { update };
}
