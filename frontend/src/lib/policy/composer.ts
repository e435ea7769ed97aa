// What a key in the composer means.

export interface Key {
  key: string;
  keyCode: number;
  shiftKey: boolean;
  altKey: boolean;
  metaKey: boolean;
  ctrlKey: boolean;
  isComposing: boolean;
}

export type ComposerAction = 'send' | 'stop' | 'none';

/**
 * Enter sends, unless it confirms an input method's candidate: WebKit reports that key after the composition has ended, with
 * isComposing false and key code 229.
 */
export function composerAction(k: Key, generating: boolean): ComposerAction {
  if (k.isComposing || k.keyCode === 229) return 'none';
  if (k.key === 'Escape' && generating) return 'stop';
  if (k.key === 'Enter' && !k.shiftKey && !k.altKey) return 'send';
  return 'none';
}

export interface SendState {
  text: string;
  generating: boolean;
  modelFailed: boolean;
}

/** Why a question cannot be sent now, or nothing. */
export function sendObstacle(s: SendState): string {
  if (s.generating) return 'An answer is being written. Stop it to ask something else.';
  if (s.text.trim() === '') return 'Type a question first.';
  if (s.modelFailed) return 'The model could not be loaded. Choose another one.';
  return '';
}
