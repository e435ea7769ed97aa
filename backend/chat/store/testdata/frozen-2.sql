-- Times are milliseconds since 1970. JSON columns hold what the program above gave, NULL for nothing.
CREATE TABLE conversations (
  key INTEGER PRIMARY KEY, -- the rowid of its title in title_words
  id TEXT NOT NULL UNIQUE,
  title TEXT NOT NULL,
  pinned INTEGER NOT NULL,
  created INTEGER NOT NULL,
  updated INTEGER NOT NULL,
  head TEXT NOT NULL, -- the last message of the branch that is shown, '' when empty
  model TEXT NOT NULL,
  system_prompt TEXT NOT NULL,
  sampling TEXT,
  draft TEXT NOT NULL,
  deleted INTEGER NOT NULL DEFAULT 0 -- when; 0: not
);
CREATE INDEX conversations_by_time ON conversations(updated);

-- Messages form a tree: an edited question and a second answer are siblings.
CREATE TABLE messages (
  key INTEGER PRIMARY KEY, -- the rowid of its text in message_words; grows with time
  id TEXT NOT NULL UNIQUE,
  conversation TEXT NOT NULL,
  parent TEXT NOT NULL, -- '' for the first
  role TEXT NOT NULL,
  text TEXT NOT NULL,
  thinking TEXT NOT NULL,
  state TEXT NOT NULL, -- streaming: growing, and not in the index yet
  error TEXT NOT NULL,
  receipt TEXT,
  created INTEGER NOT NULL
);
CREATE INDEX messages_by_conversation ON messages(conversation);
CREATE INDEX messages_streaming ON messages(key) WHERE state = 'streaming';

-- The words of titles and finished messages, without the texts. See words.go for how text is cut.
CREATE VIRTUAL TABLE title_words USING fts5(words, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 2');
CREATE VIRTUAL TABLE message_words USING fts5(words, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 2');
INSERT INTO conversations (key, id, title, pinned, created, updated, head, model, system_prompt, sampling, draft, deleted) VALUES
  (1, 'c1', 'Birds of Ecuador', 1, 1000, 2000, 'm3', 'bundled', 'Be brief.', '{"temperature":0.5}', 'and th', 0),
  (2, 'c2', 'Weather', 0, 1500, 3000, 'm4', '', '', NULL, '', 0),
  (3, 'c3', 'Deleted', 0, 1600, 3500, '', '', '', NULL, '', 1700000000000);
INSERT INTO messages (key, id, conversation, parent, role, text, thinking, state, error, receipt, created) VALUES
  (1, 'm1', 'c1', '', 'user', 'Tell me about the hummingbird.', '', 'done', '', NULL, 1100),
  (2, 'm2', 'c1', 'm1', 'assistant', 'It is small.', 'why', 'done', '', '{"seed":7}', 1200),
  (3, 'm3', 'c1', 'm1', 'assistant', 'It is half', 'so far', 'streaming', '', NULL, 1300),
  (4, 'm4', 'c2', '', 'user', '今天天气怎么样？', '', 'done', '', NULL, 1400),
  (5, 'm5', 'c3', '', 'user', 'deleted text', '', 'done', '', NULL, 1500);
INSERT INTO title_words (rowid, words) VALUES (1, 'Birds of Ecuador'), (2, 'Weather'), (3, 'Deleted');
INSERT INTO message_words (rowid, words) VALUES (1, 'Tell me about the hummingbird.'), (2, 'It is small.'), (4, ' 今  天  天  气  怎  么  样 ？'), (5, 'deleted text');
PRAGMA user_version = 2;
PRAGMA application_id = 1129071186;
