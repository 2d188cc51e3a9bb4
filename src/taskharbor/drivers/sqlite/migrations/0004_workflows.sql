-- Workflows: jobs that are stored, kept and pruned as a whole.

-- The ids of a workflow's jobs follow its own up to last_id: whom a job belongs to is one probe of this key, and
-- what belongs to a workflow is one range of any key that begins with a job's id. No row pays for being a member.
CREATE TABLE taskharbor_workflows (
    id              TEXT PRIMARY KEY,
    last_id         TEXT NOT NULL,     -- of its jobs; its own, if it has none
    total           INTEGER NOT NULL,
    enqueued_at     INTEGER NOT NULL,
    idempotency_key TEXT UNIQUE,
    about           TEXT NOT NULL,
    CHECK (typeof(id) = 'text' AND typeof(last_id) = 'text' AND last_id >= id AND typeof(about) = 'text'
           AND typeof(total) = 'integer' AND total >= 0 AND typeof(idempotency_key) <> 'blob'
           AND typeof(enqueued_at) = 'integer' AND enqueued_at BETWEEN -62135596800000000 AND 253402300799999999)
) WITHOUT ROWID;

-- Whether the job is cancelled when this member of it ends without success.
ALTER TABLE taskharbor_dependencies ADD COLUMN fatal INTEGER NOT NULL DEFAULT 0;

-- What a job still waits for: whether anything, without looking at the thousands it waits for no more.
CREATE INDEX taskharbor_dependencies_unmet ON taskharbor_dependencies (job_id) WHERE done = 0;
DROP INDEX taskharbor_dependencies_open;
