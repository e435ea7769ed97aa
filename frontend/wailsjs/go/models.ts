export namespace app {
	
	export interface About {
	    version: string;
	    go: string;
	    platform: string;
	    dataDir: string;
	}
	export interface Command {
	    session: string;
	    number: number;
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
	export interface ContextUse {
	    known: boolean;
	    tokens: number;
	    limit: number;
	    prefillSeconds: number;
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
	    sampling?: Sampling;
	    draft: string;
	}
	export interface GenerateRequest {
	    conversation: string;
	    mode: string;
	    parent: string;
	    text: string;
	    sampling?: Sampling;
	}
	export interface Generated {
	    question: string;
	    answer: string;
	}
	export interface Hit {
	    conversation: string;
	    message: string;
	    title: string;
	    snippet: string;
	    updated: number;
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
	export interface SystemMemory {
	    totalBytes: number;
	    freeBytes: number;
	    fileCacheBytes: number;
	    compressedBytes: number;
	    processBytes: number;
	}
	export interface TimeSplit {
	    tokens: number;
	    attentionMillis: number;
	    expertMillis: number;
	    waitMillis: number;
	    otherMillis: number;
	}
	export interface Stats {
	    snapshot: telemetry.Snapshot;
	    hitRate: number;
	    tokensPerSecond: number;
	    readBytesPerSecond: number;
	    split: TimeSplit;
	    memory: SystemMemory;
	    pressure: string;
	}
	
	

}

export namespace telemetry {
	
	export interface GPU {
	    blocks: number;
	    fallenBack: number;
	    experts: number;
	    setupMillis: number;
	    gpuMillis: number;
	    scatterMillis: number;
	    commitMillis: number;
	}
	export interface Histogram {
	    counts: number[];
	    totalNanos: number;
	}
	export interface Snapshot {
	    hits: number;
	    misses: number;
	    joined: number;
	    evictions: number;
	    reads: number;
	    readBytes: number;
	    retries: number;
	    failedReads: number;
	    sweptReads: number;
	    latency: Histogram;
	    guessedReads: number;
	    guessedBytes: number;
	    guessedUsed: number;
	    tokens: number;
	    tokenNanos: number;
	    waitNanos: number;
	    attentionNanos: number;
	    expertNanos: number;
	    otherNanos: number;
	    lastTokenNanos: number;
	    lastTokenWaitNanos: number;
	    loadingSlots: number;
	    cachedSlots: number;
	    pinnedSlots: number;
	    freeSlots: number;
	    leasedSlots: number;
	    mappings: number;
	    limitBytes: number;
	    residentBytes: number;
	    slotBytes: number;
	    stagingBytes: number;
	    kvBytes: number;
	    scratchBytes: number;
	    usedBytes: number;
	    peakBytes: number;
	    gpu?: GPU;
	    notices?: string[];
	}

}

