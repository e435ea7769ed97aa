// When the transcript follows the text.

export interface View {
  scrollTop: number;
  scrollHeight: number;
  clientHeight: number;
}

/** Subpixel layout leaves a scrolled-down view up to a pixel or two short of its end. */
const END_TOLERANCE = 2;

export function atEnd(v: View): boolean {
  return v.scrollHeight - v.clientHeight - v.scrollTop <= END_TOLERANCE;
}

/**
 * Whether to follow after the reader scrolled: scrolling up lets go at once, arriving at the end takes hold again, and
 * anything else (the text grew under a still view) changes nothing.
 */
export function followAfterScroll(following: boolean, before: number, v: View): boolean {
  if (atEnd(v)) return true;
  if (v.scrollTop < before) return false;
  return following;
}
