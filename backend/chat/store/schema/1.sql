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

-- The words of titles and finished messages, without the texts. See words.go for how text is cut.
CREATE VIRTUAL TABLE title_words USING fts5(words, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 2');
CREATE VIRTUAL TABLE message_words USING fts5(words, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 2');
