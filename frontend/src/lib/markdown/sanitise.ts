// The second wall: whatever the renderer made, only known elements and attributes reach the page.

import createPurifier from 'dompurify';

const TAGS = [
  'a', 'blockquote', 'br', 'button', 'code', 'del', 'div', 'em', 'figcaption', 'figure', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'li', 'ol', 'p', 'pre', 's', 'span', 'strong',
  'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul', 'svg', 'path', 'line',
  'math', 'semantics', 'annotation', 'mrow', 'mi', 'mn', 'mo', 'ms', 'mtext', 'mspace', 'msup', 'msub', 'msubsup', 'munder', 'mover', 'munderover', 'mfrac', 'msqrt', 'mroot', 'mtable', 'mtr', 'mtd', 'mstyle', 'mpadded', 'mphantom', 'menclose',
]; // prettier-ignore
const ATTRIBUTES = [
  'class', 'href', 'title', 'start', 'type', 'tabindex', 'role', 'aria-label', 'aria-hidden', 'data-action', 'data-style', 'width', 'height', 'viewBox', 'preserveAspectRatio', 'd', 'x1', 'x2', 'y1', 'y2', 'stroke-width',
  'xmlns', 'encoding', 'display', 'mathvariant', 'stretchy', 'fence', 'separator', 'lspace', 'rspace', 'minsize', 'maxsize', 'accent', 'accentunder', 'linethickness', 'rowspacing', 'columnspacing', 'columnalign', 'columnlines', 'rowlines', 'displaystyle', 'scriptlevel', 'notation', 'mathcolor', 'mathbackground', 'voffset', 'align',
]; // prettier-ignore

/** Inline styles that KaTeX's layout consists of. None of them can load anything. */
const STYLE = /^(?:(?:height|width|min-width|vertical-align|top|left|margin-left|margin-right|padding-left|padding-right|border-bottom-width|border-right-width|border-width|position|color|background-color|border-color):\s*[-#\w.%]+;?\s*)*$/; // prettier-ignore

type Purifier = ReturnType<typeof createPurifier>;

/** Makes elements of markup. They are parsed once, in a document where nothing loads or runs, and are safe to be put on the page as they are. */
export function createSanitiser(window: Window & typeof globalThis): (markup: string) => HTMLElement {
  const purifier: Purifier = createPurifier(window);
  const inert = window.document.implementation.createHTMLDocument('');
  purifier.addHook('uponSanitizeElement', (node) => {
    const element = node as Element;
    if (element.nodeType !== 1) return;
    const style = element.getAttribute?.('data-style');
    if (style && !STYLE.test(style)) element.removeAttribute('data-style');
    // Only buttons of our own making do anything, and only this.
    if (element.nodeName === 'BUTTON' && element.getAttribute('data-action') !== 'copy-code') element.remove();
  });
  purifier.addHook('afterSanitizeAttributes', (node) => {
    if (node.nodeName === 'A') {
      node.setAttribute('draggable', 'false'); // dragging a link out crashes Wails on macOS
      node.removeAttribute('target');
    }
  });
  // Once: with settings passed to each call, DOMPurify builds its tables anew each time, which took 3 ms a frame of a growing answer.
  purifier.setConfig({
    IN_PLACE: true,
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    // Every attribute is held against this, as if it were an address, but for those named safe.
    ALLOWED_URI_REGEXP: /^https?:\/\//i,
    ADD_URI_SAFE_ATTR: ATTRIBUTES.filter((name) => name !== 'href'),
  });
  return (markup) => {
    const root = inert.createElement('div');
    root.innerHTML = markup;
    purifier.sanitize(root);
    return root;
  };
}
