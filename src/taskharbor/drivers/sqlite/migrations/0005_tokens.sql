-- Tokens of the REST interface. There are few of them, and they are read all at once.
CREATE TABLE taskharbor_tokens (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    digest     TEXT NOT NULL,     -- SHA-256 of the token, in hex: the token itself is kept by nobody
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) WITHOUT ROWID;
