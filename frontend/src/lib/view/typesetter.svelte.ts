// Markdown, highlighting and formulas are two thirds of the page's script and nothing of its first picture: they come right after it.
// Until then answers are held by their plain text, as those far from the view are.

import type { Component } from 'svelte';

interface Props {
  text: string;
  complete: boolean;
}

class Typesetter {
  component = $state.raw<Component<Props> | null>(null);

  async load(): Promise<void> {
    this.component = (await import('../../components/Markdown.svelte')).default;
  }
}

export const typesetter = new Typesetter();
