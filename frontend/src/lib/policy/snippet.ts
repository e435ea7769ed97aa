// Search results mark matches with U+0002 and U+0003, which no message contains.

export interface Part {
  text: string;
  match: boolean;
}

export function marked(snippet: string): Part[] {
  const parts: Part[] = [];
  snippet.split('\u0002').forEach((piece, i) => {
    const end = i === 0 ? -1 : piece.indexOf('\u0003');
    if (end >= 0) parts.push({ text: piece.slice(0, end), match: true });
    const rest = piece.slice(end + 1);
    if (rest !== '') parts.push({ text: rest, match: false });
  });
  return parts;
}
