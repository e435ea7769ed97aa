// Changes an element's content into another's by touching only what differs. Of a growing block that is the text at its end, which is then
// all that the browser lays out and paints anew; what is selected or has the focus in the rest stays so.

/** Afterwards old's content is fresh's. Fresh is used up. */
export function become(old: Element, fresh: Element): void {
  let at = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    if (at === null) {
      old.append(node);
      continue;
    }
    const next: ChildNode | null = at.nextSibling;
    if (!at.isEqualNode(node)) {
      if (isText(at) && isText(node)) lengthen(at, node.data);
      else if (isElement(at) && isElement(node) && sameTag(at, node)) become(at, node);
      else at.replaceWith(node);
    }
    at = next;
  }
  while (at !== null) {
    const next: ChildNode | null = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** An element with another attribute is replaced, so that none of the old ones stays. */
function sameTag(a: Element, b: Element): boolean {
  return (
    a.namespaceURI === b.namespaceURI &&
    a.localName === b.localName &&
    a.attributes.length === b.attributes.length &&
    [...a.attributes].every(({ name, value }) => b.getAttribute(name) === value)
  );
}

/** Text that only grew keeps what is selected in it. */
function lengthen(text: Text, data: string): void {
  if (data.startsWith(text.data)) text.appendData(data.slice(text.length));
  else text.data = data;
}

// By kind, not by class: fresh comes from another document.
const isText = (node: Node): node is Text => node.nodeType === Node.TEXT_NODE;
const isElement = (node: Node): node is Element => node.nodeType === Node.ELEMENT_NODE;
