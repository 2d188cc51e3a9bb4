-- Tokens of the REST interface. There are few of them, and they are read all at once.
CREATE TABLE {schema}.tokens (
    id         text PRIMARY KEY,
    name       text NOT NULL,
    role       text NOT NULL,
    digest     text NOT NULL,     -- SHA-256 of the token, in hex: the token itself is kept by nobody
    created_at timestamptz NOT NULL,
    expires_at timestamptz
);
