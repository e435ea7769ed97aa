// The types of what travels between Go and the page. Go's are in backend/app/types.go; a test there compares the field names.

export interface Command {
  session: string;
  number: number;
}

export interface State {
  session: string;
  seq: number;
  settings: Settings;
  containers: Container[];
  model: ModelStatus;
  conversations: Conversation[];
  generations: GenerationStatus[];
  offers: Offer[] | null;
  stats: Stats;
}

export interface Settings {
  memoryLimitBytes: number;
  backend: string;
  appearance: string;
  systemPrompt: string;
  sampling: Sampling;
  presets: Preset[];
  expertSampling: boolean;
  confirmLinks: boolean;
  lastConversation: string;
  lastModel: string;
  sidebarOpen: boolean;
  activityOpen: boolean;
  window: Window;
}

export interface Preset {
  name: string;
  sampling: Sampling;
}

export interface Window {
  x: number;
  y: number;
  width: number;
  height: number;
  maximised: boolean;
}

export interface Sampling {
  temperature: number;
  topP: number;
  topK: number;
  minP: number;
  repetitionPenalty: number;
  presencePenalty: number;
  seed: number;
  maxTokens: number;
}

export interface Conversation {
  id: string;
  title: string;
  pinned: boolean;
  created: number;
  updated: number;
  head: string;
  systemPrompt: string;
  sampling: Sampling | null;
  draft: string;
}

export interface Message {
  id: string;
  conversation: string;
  parent: string;
  role: 'user' | 'assistant';
  text: string;
  thinking: string;
  state: 'streaming' | 'done' | 'stopped' | 'failed' | 'interrupted';
  error: string;
  receipt: Receipt | null;
  created: number;
}

export interface Transcript {
  seq: number;
  conversation: Conversation;
  messages: Message[];
}

export interface Receipt {
  model: string;
  backend: string;
  promptTokens: number;
  reusedTokens: number;
  tokens: number;
  finishReason: string;
  timeToFirstTokenMillis: number;
  tokensPerSecond: number;
  prefillTokensPerSecond: number;
  readBytes: number;
  hitRate: number;
  memoryLimitBytes: number;
  seed: number;
  sampling: Sampling;
  attentionMillis: number;
  expertMillis: number;
  waitMillis: number;
  otherMillis: number;
  droppedMessages: number;
}

export interface Hit {
  conversation: string;
  message: string;
  title: string;
  snippet: string;
  updated: number;
}

export interface Container {
  id: string;
  name: string;
  path: string;
  bundled: boolean;
  missing: boolean;
  family: string;
  format: string;
  parameters: number;
  bytes: number;
  layers: number;
  experts: number;
  perToken: number;
  context: number;
  needBytes: number;
  speedLow: number;
  speedHigh: number;
  added: number;
  lastUsed: number;
}

export interface Offer {
  id: string;
  path: string;
  container: Container | null;
  /** Its speed is being found, and follows. */
  measuring: boolean;
  error: string;
}

export interface ModelStatus {
  phase: 'none' | 'loading' | 'ready' | 'failed';
  id: string;
  name: string;
  stage: string;
  progress: number;
  error: string;
  backend: string;
  context: number;
}

export interface GenerationStatus {
  conversation: string;
  message: string;
  phase: 'waiting' | 'prefill' | 'decode' | 'stopping' | 'done';
  promptTokens: number;
  promptDone: number;
  tokens: number;
  tokensPerSecond: number;
  thinking: boolean;
}

export interface Piece {
  conversation: string;
  message: string;
  text: string;
  thinking: boolean;
}

export interface Notice {
  level: 'info' | 'warning' | 'error';
  text: string;
  action: string;
  subject: string;
}

export interface Stats {
  snapshot: Snapshot;
  hitRate: number;
  tokensPerSecond: number;
  readBytesPerSecond: number;
  split: TimeSplit;
  memory: SystemMemory;
  pressure: string;
}

/** Where the engine's time went in the last second of work. */
export interface TimeSplit {
  tokens: number;
  attentionMillis: number;
  expertMillis: number;
  waitMillis: number;
  otherMillis: number;
}

/** What the graphics processor has done since the model was loaded. */
export interface GPUCounters {
  blocks: number;
  fallenBack: number;
  experts: number;
  setupMillis: number;
  gpuMillis: number;
  scatterMillis: number;
  commitMillis: number;
}

/** The part of telemetry.Snapshot that the page reads. */
export interface Snapshot {
  hits: number;
  misses: number;
  evictions: number;
  reads: number;
  readBytes: number;
  tokens: number;
  tokenNanos: number;
  waitNanos: number;
  loadingSlots: number;
  cachedSlots: number;
  pinnedSlots: number;
  freeSlots: number;
  limitBytes: number;
  residentBytes: number;
  slotBytes: number;
  stagingBytes: number;
  kvBytes: number;
  scratchBytes: number;
  usedBytes: number;
  peakBytes: number;
  gpu: GPUCounters | null; // null where the CPU computes
  notices?: string[];
}

export interface SystemMemory {
  totalBytes: number;
  freeBytes: number;
  fileCacheBytes: number;
  compressedBytes: number;
  processBytes: number;
}

export interface GenerateRequest {
  conversation: string;
  mode: 'send' | 'regenerate' | 'continue';
  parent: string;
  text: string;
  sampling: Sampling | null;
}

export interface Generated {
  question: string;
  answer: string;
}

export interface ContextUse {
  known: boolean;
  tokens: number;
  limit: number;
  prefillSeconds: number;
}

export interface About {
  version: string;
  go: string;
  platform: string;
  dataDir: string;
}

/** A work that is part of the program, and its terms (backend/licences). */
export interface Licence {
  name: string;
  version: string;
  spdx: string;
  part: string;
  text: string;
}

/** An event, by kind. */
export type AppEvent = { seq: number } & (
  | { kind: 'piece'; data: Piece }
  | { kind: 'message'; data: Message }
  | { kind: 'conversation'; data: Conversation }
  | { kind: 'conversation-removed'; data: string }
  | { kind: 'generation'; data: GenerationStatus }
  | { kind: 'model'; data: ModelStatus }
  | { kind: 'stats'; data: Stats }
  | { kind: 'notice'; data: Notice }
  | { kind: 'offer'; data: Offer }
  | { kind: 'menu'; data: string }
  | { kind: 'containers'; data: null }
  | { kind: 'settings'; data: null }
  | { kind: 'resync'; data: null }
);
