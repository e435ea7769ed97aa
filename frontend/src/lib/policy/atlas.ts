// The expert atlas: one cell for each expert, a row for each layer that has experts.

export interface AtlasData {
  layers: number;
  experts: number;
  heat: Uint32Array;
  tiers: Uint8Array;
  /** The layers that have routed experts in use or in memory, ascending. */
  sparse: number[];
  hottest: number;
}

export interface Fit {
  width: number;
  height: number;
  cell: { width: number; height: number };
}

export interface Cell {
  layer: number;
  expert: number;
}

/** Reads what /data/atlas sends; null where there is nothing to show. */
export function parseAtlas(buffer: ArrayBuffer): AtlasData | null {
  if (buffer.byteLength < 8) return null;
  const view = new DataView(buffer);
  const layers = view.getUint32(0, true);
  const experts = view.getUint32(4, true);
  const n = layers * experts;
  if (n === 0 || buffer.byteLength !== 8 + 5 * n) return null;
  const heat = new Uint32Array(n);
  let hottest = 0;
  for (let i = 0; i < n; i++) {
    heat[i] = view.getUint32(8 + 4 * i, true);
    hottest = Math.max(hottest, heat[i] ?? 0);
  }
  const tiers = new Uint8Array(buffer, 8 + 4 * n, n);
  const sparse: number[] = [];
  for (let l = 0; l < layers; l++) {
    for (let e = 0; e < experts; e++) {
      if ((heat[l * experts + e] ?? 0) > 0 || (tiers[l * experts + e] ?? 0) > 0) {
        sparse.push(l);
        break;
      }
    }
  }
  return sparse.length === 0 ? null : { layers, experts, heat, tiers, sparse, hottest };
}

/** Cells fill the width; they are at most 12 pixels high and together at most maxHeight. */
export function fitAtlas(a: AtlasData, width: number, maxHeight: number): Fit {
  const cellHeight = Math.min(12, maxHeight / a.sparse.length);
  return {
    width,
    height: Math.round(cellHeight * a.sparse.length),
    cell: { width: width / a.experts, height: cellHeight },
  };
}

export function cellAt(a: AtlasData, fit: Fit, x: number, y: number): Cell | null {
  const expert = Math.floor(x / fit.cell.width);
  const layer = a.sparse[Math.floor(y / fit.cell.height)];
  if (layer === undefined || expert < 0 || expert >= a.experts) return null;
  return { layer, expert };
}

const STEPS: Record<string, readonly [number, number]> = {
  ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
}; // prettier-ignore

/** Where an arrow key leads; from nowhere to the first expert. Null for other keys. */
export function step(a: AtlasData, from: Cell | null, key: string): Cell | null {
  const by = STEPS[key];
  if (!by) return null;
  const within = (n: number, end: number) => Math.min(end - 1, Math.max(0, n));
  const row = from ? within(a.sparse.indexOf(from.layer) + by[0], a.sparse.length) : 0;
  return { layer: a.sparse[row] ?? 0, expert: from ? within(from.expert + by[1], a.experts) : 0 };
}

const TIERS = ['on disk', 'being read', 'cached', 'pinned'];

export function cellWords(a: AtlasData, c: Cell): string {
  const i = c.layer * a.experts + c.expert;
  const uses = a.heat[i] ?? 0;
  return `Layer ${c.layer}, expert ${c.expert}: ${TIERS[a.tiers[i] ?? 0] ?? ''}, used ${uses === 1 ? 'once' : `${uses} times`}.`;
}

/** Brightness on a logarithmic scale: a few experts are used a thousand times more than most. */
export function brightness(uses: number, hottest: number): number {
  if (uses <= 0) return 0.16;
  return 0.34 + (0.66 * Math.log1p(uses)) / Math.log1p(Math.max(hottest, 1));
}

export interface Colours {
  disk: string;
  loading: string;
  cached: string;
  pinned: string;
  ground: string;
}

export function paintCells(
  g: CanvasRenderingContext2D,
  a: AtlasData,
  fit: Fit,
  pixels: number,
  colours: Colours,
): void {
  g.canvas.width = Math.round(fit.width * pixels);
  g.canvas.height = Math.round(fit.height * pixels);
  g.scale(pixels, pixels);
  g.fillStyle = colours.ground;
  g.fillRect(0, 0, fit.width, fit.height);
  const fills = [colours.disk, colours.loading, colours.cached, colours.pinned];
  const gap = fit.cell.width >= 4 ? 1 : 0;
  a.sparse.forEach((layer, row) => {
    for (let e = 0; e < a.experts; e++) {
      const i = layer * a.experts + e;
      g.fillStyle = fills[a.tiers[i] ?? 0] ?? colours.disk;
      g.globalAlpha = brightness(a.heat[i] ?? 0, a.hottest);
      g.fillRect(e * fit.cell.width, row * fit.cell.height, fit.cell.width - gap, fit.cell.height - Math.min(gap, 1));
    }
  });
  g.globalAlpha = 1;
}
