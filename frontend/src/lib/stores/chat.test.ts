import { beforeEach, expect, it, vi } from 'vitest';
import type { Generated, Message } from '../bridge/types';

const calls = vi.hoisted(() => ({ generate: vi.fn(), newConversation: vi.fn(), transcript: vi.fn() }));
vi.mock('../bridge/bridge', () => ({
  ...calls,
  sentence: String,
  saveSettings: () => Promise.resolve(),
  saveDraft: () => Promise.resolve(),
}));
const { chat } = await import('./chat.svelte');

const conversation = (id: string) => ({ id, title: id, head: '', draft: '', systemPrompt: '', sampling: null });

beforeEach(() => {
  calls.transcript.mockImplementation((id: string) =>
    Promise.resolve({ seq: 0, conversation: conversation(id), messages: [] }),
  );
});

it('asks in one conversation while another can be asked too', async () => {
  let begun: (g: Generated) => void = () => {};
  calls.generate.mockReturnValue(new Promise<Generated>((done) => (begun = done)));
  calls.newConversation.mockResolvedValue(conversation('fresh'));
  await chat.begin('');
  const sent = chat.send('Hello?');
  expect(chat.answering).toBe(true); // at once, before the chat exists
  await vi.waitFor(() => expect(calls.generate).toHaveBeenCalled());
  expect([chat.id, chat.answering]).toEqual(['fresh', true]);
  await chat.open('other');
  expect(chat.answering).toBe(false);
  await chat.open('fresh');
  expect(chat.answering).toBe(true);
  begun({ question: 'q', answer: 'a' });
  expect(await sent).toBe(true);
  expect(chat.last?.state).toBe('streaming');
});

it('shows what was begun in one conversation in no other', async () => {
  let begun: (g: Generated) => void = () => {};
  calls.generate.mockReturnValue(new Promise<Generated>((done) => (begun = done)));
  await chat.open('one');
  const again = chat.regenerate({ id: 'a', conversation: 'one', parent: 'q' } as Message);
  await chat.open('other');
  begun({ question: '', answer: 'b' });
  await again;
  expect([chat.messages.size, chat.conversation?.head, chat.answering]).toEqual([0, '', false]);
});

it('asks in a new chat below nothing, whatever has been opened since', async () => {
  let made: (c: unknown) => void = () => {};
  calls.newConversation.mockReturnValue(new Promise((done) => (made = done)));
  calls.generate.mockResolvedValue({ question: 'q', answer: 'a' });
  await chat.open('');
  const sent = chat.send('Hello?');
  const message = {
    id: 'm',
    conversation: 'other',
    parent: '',
    role: 'assistant',
    text: '',
    thinking: '',
    state: 'done',
    created: 1,
  };
  calls.transcript.mockResolvedValue({
    seq: 0,
    conversation: { ...conversation('other'), head: 'm' },
    messages: [message],
  });
  await chat.open('other');
  made(conversation('new'));
  expect(await sent).toBe(true);
  expect(calls.generate).toHaveBeenLastCalledWith(expect.objectContaining({ conversation: 'new', parent: '' }));
  expect([...chat.messages.keys()]).toEqual(['m']);
});
