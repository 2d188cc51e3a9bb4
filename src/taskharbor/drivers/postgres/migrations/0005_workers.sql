-- Who is there, as each worker tells it now and then; nothing but the curious depends on it.
CREATE TABLE {schema}.workers (
    name       text COLLATE "C" PRIMARY KEY,
    about      text NOT NULL,         -- JSON of a WorkerRecord
    expires_at timestamptz NOT NULL   -- forgotten from then on
);
