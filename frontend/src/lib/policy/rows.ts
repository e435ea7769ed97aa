// Which rows of the sidebar are worth having on the page: 2,000 conversations would take seconds to build and cost every frame.

/** Heights in pixels, which Sidebar.svelte and ConversationRow.svelte give to their elements. */
export const ROW_HEIGHT = 32;
export const HEADING_HEIGHT = 36;

/** Rows beyond the view on both sides, so that Tab and quick scrolling find the next ones there. */
const MARGIN = 480;

export interface View {
  top: number;
  height: number;
}

export interface Span {
  /** The first row to show and the one after the last. */
  from: number;
  to: number;
}

/** For each group, given how many rows it has, the rows near the view. Headings are always there. */
export function nearRows(counts: readonly number[], view: View): Span[] {
  const top = view.top - MARGIN;
  const bottom = view.top + view.height + MARGIN;
  let start = 0;
  return counts.map((count) => {
    start += HEADING_HEIGHT;
    const from = Math.min(count, Math.max(0, Math.floor((top - start) / ROW_HEIGHT)));
    const to = Math.max(from, Math.min(count, Math.ceil((bottom - start) / ROW_HEIGHT)));
    start += count * ROW_HEIGHT;
    return { from, to };
  });
}
