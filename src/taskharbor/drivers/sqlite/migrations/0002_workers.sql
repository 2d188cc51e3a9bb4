-- Who is there, as each worker tells it now and then; nothing but the curious depends on it.
CREATE TABLE taskharbor_workers (
    name       TEXT PRIMARY KEY,
    about      TEXT NOT NULL,          -- JSON of a WorkerRecord
    expires_at INTEGER NOT NULL        -- forgotten from then on
) WITHOUT ROWID;
