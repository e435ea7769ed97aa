-- The answers that are being written: the start looks for them, however many messages there are.
CREATE INDEX messages_streaming ON messages(key) WHERE state = 'streaming';
