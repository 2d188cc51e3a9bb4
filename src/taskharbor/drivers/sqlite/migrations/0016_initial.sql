-- A job's row is written once, a claim deletes from `ready`, an attempt that ends inserts into `attempts`. The place of a
-- job gives its state, and every job is in exactly one place.
--
-- A user who may write to the file may insert rows by hand, and SQLite puts any kind of value into any column. The CHECKs
-- refuse what no reader can make sense of. They rely on SQLite's order, numbers before text before BLOBs, which costs less
-- than a question for the type: text in a column of numbers is in no range, and what is below x'' is no BLOB. Instants are
-- those of Python, years 1 to 9999. A number leaves room to be raised. (The reader finds fractions, and text that is no
-- valid UTF-8.) In `jobs` each column has a CHECK of its own: a change of one column is not refused for another.

-- What was enqueued. The hot path never updates it; operators may.
CREATE TABLE taskharbor_jobs (
    id              TEXT PRIMARY KEY,
    queue           TEXT NOT NULL,
    task            TEXT NOT NULL,
    payload         TEXT NOT NULL,
    priority        INTEGER NOT NULL,
    run_at          INTEGER NOT NULL,  -- microseconds since the epoch, as every instant here
    enqueued_at     INTEGER NOT NULL,
    expires_at      INTEGER,
    idempotency_key TEXT,
    delivery        TEXT,
    options         TEXT,              -- JSON; NULL for the defaults
    meta            TEXT,              -- JSON; NULL for none
    version         INTEGER NOT NULL DEFAULT 1,
    action_id       TEXT,              -- of the latest action that changed it
    CHECK (id < x''),
    CHECK (queue < x''),
    CHECK (task < x''),
    CHECK (payload < x''),
    CHECK (idempotency_key < x''),
    CHECK (options < x''),
    CHECK (meta < x''),
    CHECK (priority BETWEEN -100 AND 100),
    CHECK (version BETWEEN 0 AND 2000000000),
    CHECK (run_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (enqueued_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (expires_at IS NULL OR expires_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (delivery IS NULL OR delivery IN ('at_least_once', 'at_most_once'))
) WITHOUT ROWID;

-- (queue, idempotency key) names one job for as long as it is kept. Partial: a job without a key pays nothing.
CREATE UNIQUE INDEX taskharbor_jobs_key ON taskharbor_jobs (queue, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- Finds jobs by their correlation id. Only jobs that have one are in here.
CREATE INDEX taskharbor_jobs_correlation
    ON taskharbor_jobs (CASE WHEN json_valid(options) THEN json_extract(options, '$.correlation_id') END, id)
    WHERE instr(options, '"correlation_id":') > 0;

-- Scheduled and ready jobs in claim order; the primary key is the only index a claim needs.
-- rank is the negated priority, so that a forward scan meets the highest priority first.
CREATE TABLE taskharbor_ready (
    suspect      INTEGER NOT NULL,     -- 1: executes alone; only a claim of suspects finds it
    queue        TEXT NOT NULL,        -- the lane: of a job that stands aside, the queue, char(31, 31) and the label
    rank         INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    id           TEXT NOT NULL,
    number       INTEGER NOT NULL,     -- of the latest attempt
    attempts     INTEGER NOT NULL,     -- failures in this run
    first_number INTEGER NOT NULL,     -- of this run's first attempt
    due_at       INTEGER,
    expires_at   INTEGER,              -- NULL once the run has begun
    delivery     TEXT,
    PRIMARY KEY (suspect, queue, rank, run_at, id),
    CHECK (suspect IN (0, 1) AND queue < x'' AND id < x''
           AND rank BETWEEN -100 AND 100
           AND run_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (number BETWEEN 0 AND 2000000000
           AND attempts BETWEEN 0 AND 2000000000
           AND first_number BETWEEN 0 AND 2000000001),
    CHECK (due_at IS NULL OR due_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (expires_at IS NULL OR expires_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (delivery IS NULL OR delivery IN ('at_least_once', 'at_most_once'))
) WITHOUT ROWID;

-- Finds what must be cancelled because it was not begun in time; a job without an expiry pays nothing.
CREATE INDEX taskharbor_ready_expiry ON taskharbor_ready (expires_at, id) WHERE expires_at IS NOT NULL;

-- One row for each claimed batch, small, because heartbeats and settles update it.
CREATE TABLE taskharbor_leases (
    token      TEXT PRIMARY KEY,
    origin     TEXT NOT NULL,          -- the token of the claim, before any collector took it
    worker     TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    expired_at INTEGER,                -- the expiry it had when it was first collected
    alone      INTEGER NOT NULL,
    supervised INTEGER NOT NULL,
    max_losses INTEGER NOT NULL,       -- the setting of the worker that claimed it
    worker_survived INTEGER NOT NULL DEFAULT 0, -- its worker asked for something after it was over
    open       INTEGER NOT NULL,       -- jobs not settled yet; the lease goes with the last one
    cancels    TEXT NOT NULL DEFAULT '[]',
    running    TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;

-- What each lease covers: written at the claim, apart from the row that changes all the time.
CREATE TABLE taskharbor_claims (
    token   TEXT PRIMARY KEY,
    entries TEXT NOT NULL              -- JSON: the ids, attempt numbers, failures, places, … of the jobs, as columns
) WITHOUT ROWID;

-- What the plain successes of one settle share. A row of `attempts` that names it has only what is its own.
CREATE TABLE taskharbor_settles (
    id          INTEGER PRIMARY KEY,
    token       TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    attempts    INTEGER NOT NULL       -- how many rows name it; it goes with the last one
);
-- Pruning by age.
CREATE INDEX taskharbor_settles_age ON taskharbor_settles (finished_at, id);

-- Whose successes these are, for pruning: apart from the row that the deletion of one job updates, and not updated by it.
CREATE TABLE taskharbor_settled (
    settle_id INTEGER PRIMARY KEY,
    ids       TEXT NOT NULL            -- JSON
);

-- One row of history for each attempt. Its key is the fence: a collector and a late finisher collide on it.
--
-- A plain success that was settled together with others names its row of `settles`, and has NULL for what is there and
-- for what is usual. Readers see no difference: they read `history`.
CREATE TABLE taskharbor_attempts (
    job_id      TEXT NOT NULL,
    number      INTEGER NOT NULL,
    settle_id   INTEGER,
    started_at  INTEGER,
    status      TEXT,
    retry_count INTEGER,
    attempts    INTEGER,               -- failures in the run after this attempt
    token       TEXT,
    worker      TEXT,                  -- NULL: the token's
    finished_at INTEGER,
    next_at     INTEGER,               -- where the job went on: the key of its ready row can be computed
    aside       TEXT,                  -- … with the label of its place there; NULL: the ordinary one
    retry_delay INTEGER,               -- microseconds granted before the retry, of a failure that was to be retried
    result      TEXT,
    error       TEXT,
    traceback   TEXT,
    detail      TEXT,
    worker_survived INTEGER,
    origin      TEXT,                  -- of a loss that a collector settled: the token of the claim
    fingerprint TEXT,                  -- of a failure: its cause
    code_version TEXT,                 -- of a failure: of the application
    PRIMARY KEY (job_id, number),
    CHECK (settle_id IS NOT NULL OR (status IS NOT NULL AND retry_count IS NOT NULL AND attempts IS NOT NULL
                                     AND token IS NOT NULL AND finished_at IS NOT NULL))
) WITHOUT ROWID;

-- Every attempt with all of its columns. Subqueries, not a join: a query pays for those that it asks for.
CREATE VIEW taskharbor_history AS
SELECT a.job_id, a.number, a.started_at,
       coalesce(a.status, 'succeeded') AS status,
       coalesce(a.retry_count, 0) AS retry_count,
       coalesce(a.attempts, 0) AS attempts,
       coalesce(a.token, (SELECT s.token FROM taskharbor_settles AS s WHERE s.id = a.settle_id)) AS token,
       a.worker,
       coalesce(a.finished_at, (SELECT s.finished_at FROM taskharbor_settles AS s WHERE s.id = a.settle_id)) AS finished_at,
       a.next_at, a.aside, a.retry_delay, a.result, a.error, a.traceback, a.detail,
       coalesce(a.worker_survived, 0) AS worker_survived, a.fingerprint, a.code_version
FROM taskharbor_attempts AS a;

-- A worker that survived its lease marks what was lost with it. Only losses are in here.
CREATE INDEX taskharbor_attempts_lost ON taskharbor_attempts (origin) WHERE origin IS NOT NULL;

-- Pruning by age, of the successes that share nothing.
CREATE INDEX taskharbor_attempts_succeeded ON taskharbor_attempts (finished_at, job_id)
    WHERE status = 'succeeded' AND next_at IS NULL;

-- Dead and cancelled jobs. (A succeeded one is known by its attempt row.)
CREATE TABLE taskharbor_ended (
    job_id      TEXT PRIMARY KEY,
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    delivery    TEXT,
    raw         TEXT,                  -- JSON: the row of its place, if it could not be read
    queue       TEXT NOT NULL,         -- from here on copies, so that filters need not look at the job and its attempts
    task        TEXT NOT NULL,
    fingerprint TEXT,                  -- of the latest attempt's failure; every dead job has one
    error       TEXT,                  -- of the latest attempt: its first 200 characters
    code_version TEXT                  -- of the latest attempt's failure
) WITHOUT ROWID;
CREATE INDEX taskharbor_ended_state ON taskharbor_ended (state, job_id);
CREATE INDEX taskharbor_ended_age ON taskharbor_ended (state, finished_at, job_id);
CREATE INDEX taskharbor_ended_queue ON taskharbor_ended (state, queue, job_id);
CREATE INDEX taskharbor_ended_task ON taskharbor_ended (state, task, job_id);
-- Finds the jobs of a group, newest first, and has all that a list of groups by a filter needs.
CREATE INDEX taskharbor_ended_group
    ON taskharbor_ended (state, fingerprint, job_id, task, queue, reason, code_version, finished_at);
-- Says when a group was first and last seen, on each queue and by each task.
CREATE INDEX taskharbor_ended_seen ON taskharbor_ended (fingerprint, queue, task, finished_at) WHERE state = 'dead';

-- How many dead jobs each group has, by queue, task and version: to count them would be a scan. Triggers, so that nothing that
-- changes `ended` can forget it.
CREATE TABLE taskharbor_groups (
    fingerprint  TEXT NOT NULL,
    queue        TEXT NOT NULL,
    task         TEXT NOT NULL,
    code_version TEXT NOT NULL,        -- '': not known
    jobs         INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, queue, task, code_version)
) WITHOUT ROWID;
CREATE TRIGGER taskharbor_ended_added AFTER INSERT ON taskharbor_ended
WHEN new.state = 'dead' AND new.fingerprint IS NOT NULL BEGIN
    INSERT INTO taskharbor_groups (fingerprint, queue, task, code_version, jobs)
    VALUES (new.fingerprint, new.queue, new.task, coalesce(new.code_version, ''), 1)
    ON CONFLICT (fingerprint, queue, task, code_version) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER taskharbor_ended_removed AFTER DELETE ON taskharbor_ended
WHEN old.state = 'dead' AND old.fingerprint IS NOT NULL BEGIN
    UPDATE taskharbor_groups SET jobs = jobs - 1
    WHERE fingerprint = old.fingerprint AND queue = old.queue AND task = old.task
      AND code_version = coalesce(old.code_version, '');
    DELETE FROM taskharbor_groups
    WHERE fingerprint = old.fingerprint AND queue = old.queue AND task = old.task
      AND code_version = coalesce(old.code_version, '')
      AND jobs <= 0;
END;
CREATE TRIGGER taskharbor_ended_changed AFTER UPDATE ON taskharbor_ended BEGIN
    UPDATE taskharbor_groups SET jobs = jobs - 1
    WHERE old.state = 'dead' AND fingerprint = old.fingerprint AND queue = old.queue AND task = old.task
      AND code_version = coalesce(old.code_version, '');
    DELETE FROM taskharbor_groups
    WHERE old.state = 'dead' AND fingerprint = old.fingerprint AND queue = old.queue AND task = old.task
      AND code_version = coalesce(old.code_version, '') AND jobs <= 0;
    INSERT INTO taskharbor_groups (fingerprint, queue, task, code_version, jobs)
    SELECT new.fingerprint, new.queue, new.task, coalesce(new.code_version, ''), 1
    WHERE new.state = 'dead' AND new.fingerprint IS NOT NULL
    ON CONFLICT (fingerprint, queue, task, code_version) DO UPDATE SET jobs = jobs + 1;
END;

-- Jobs that wait for other jobs.
CREATE TABLE taskharbor_waiting (
    job_id       TEXT PRIMARY KEY,
    number       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    first_number INTEGER NOT NULL,
    expires_at   INTEGER,
    delivery     TEXT,
    CHECK (typeof(job_id) = 'text' AND number BETWEEN 0 AND 2000000000
           AND attempts BETWEEN 0 AND 2000000000
           AND first_number BETWEEN 0 AND 2000000001),
    CHECK (expires_at IS NULL OR expires_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (delivery IS NULL OR delivery IN ('at_least_once', 'at_most_once'))
) WITHOUT ROWID;

-- What each job waits for. Rows, not counters: nothing can be counted twice.
CREATE TABLE taskharbor_dependencies (
    job_id    TEXT NOT NULL,
    member_id TEXT NOT NULL,
    position  INTEGER NOT NULL,        -- in the order given: a finalizer gets its results in this order
    done      INTEGER NOT NULL,
    fatal     INTEGER NOT NULL DEFAULT 0, -- 1: the job is cancelled when this member ends without success
    PRIMARY KEY (job_id, member_id),
    CHECK (typeof(job_id) = 'text' AND typeof(member_id) = 'text' AND typeof(position) = 'integer'),
    CHECK (done IN (0, 1))
) WITHOUT ROWID;
CREATE INDEX taskharbor_dependencies_member ON taskharbor_dependencies (member_id, job_id);
-- Says whether a job still waits for anything, without a look at the thousands of members that are done.
CREATE INDEX taskharbor_dependencies_unmet ON taskharbor_dependencies (job_id) WHERE done = 0;

-- Workflows: jobs that are stored, kept and pruned as a whole. The ids of a workflow's jobs follow its own up to last_id:
-- one probe of this key finds the workflow of a job, and one range of any key that begins with a job's id finds the jobs
-- of a workflow. No row pays for being a member.
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

CREATE TABLE taskharbor_steps (
    job_id TEXT NOT NULL,
    name   TEXT NOT NULL,
    result TEXT NOT NULL,
    number INTEGER NOT NULL,           -- of the attempt that stored it
    PRIMARY KEY (job_id, name)
) WITHOUT ROWID;
CREATE TABLE taskharbor_progress (
    job_id   TEXT PRIMARY KEY,
    fraction REAL NOT NULL,
    message  TEXT NOT NULL,
    value    TEXT                        -- JSON
) WITHOUT ROWID;
CREATE TABLE taskharbor_tags (
    tag    TEXT NOT NULL,
    job_id TEXT NOT NULL,
    PRIMARY KEY (tag, job_id),
    CHECK (typeof(tag) = 'text' AND typeof(job_id) = 'text')
) WITHOUT ROWID;

CREATE TABLE taskharbor_paused (
    queue     TEXT PRIMARY KEY,
    paused_by TEXT,                    -- NULL: not known
    paused_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The audit: who did what and when. Each row is written in the transaction of the change; the newest 10,000 are kept.
CREATE TABLE taskharbor_actions (
    number  INTEGER PRIMARY KEY,       -- the order of the list: only the oldest rows are deleted, so it rises
    id      TEXT NOT NULL UNIQUE,
    at      INTEGER NOT NULL,
    verb    TEXT NOT NULL,
    actor   TEXT,                      -- NULL: not known
    job_id  TEXT,                      -- of an action on one job
    subject TEXT,                      -- the queue, schedule, workflow, token or task that it concerns
    filter  TEXT,                      -- JSON, of a bulk action
    details TEXT,                      -- JSON; no payload, no secret
    count   INTEGER NOT NULL           -- jobs that it changed
);

-- Tasks and tags whose jobs no worker begins for now. They move no job: workers put aside what they meet.
CREATE TABLE taskharbor_holds (
    kind    TEXT NOT NULL,             -- task or tag
    name    TEXT NOT NULL,
    since   INTEGER NOT NULL,
    held_by TEXT,
    PRIMARY KEY (kind, name),
    CHECK (kind IN ('task', 'tag') AND typeof(name) = 'text' AND typeof(held_by) <> 'blob')
) WITHOUT ROWID;

-- Backlogs: jobs of one key of a log that execute one after the other. A backlog is there while it has a job that has not
-- ended. A client that adds a job to it, or lets it go on, does so in one transaction.
CREATE TABLE taskharbor_backlogs (
    key   TEXT PRIMARY KEY,
    holds INTEGER NOT NULL,            -- 1: a dead job keeps those behind it waiting
    CHECK (typeof(key) = 'text' AND holds IN (0, 1))
) WITHOUT ROWID;
CREATE TABLE taskharbor_backlog_jobs (
    key      TEXT NOT NULL,
    position INTEGER NOT NULL,         -- the offset of its message
    job_id   TEXT NOT NULL,
    PRIMARY KEY (key, position),
    CHECK (typeof(key) = 'text' AND typeof(position) = 'integer' AND typeof(job_id) = 'text')
) WITHOUT ROWID;
CREATE INDEX taskharbor_backlog_jobs_job ON taskharbor_backlog_jobs (job_id);

-- Who hands over messages of each partition of a log: the worker that was given the latest epoch.
CREATE TABLE taskharbor_owners (
    partition TEXT PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    CHECK (typeof(partition) = 'text' AND typeof(epoch) = 'integer')
) WITHOUT ROWID;

-- How many jobs are in each terminal state, updated with every move of a job: counting rows would be a scan.
CREATE TABLE taskharbor_tallies (
    queue TEXT NOT NULL,
    state TEXT NOT NULL,
    jobs  INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) WITHOUT ROWID;

-- Documents beside the jobs: the workers that are alive, and the server's tokens and sessions as digests.
CREATE TABLE taskharbor_records (
    kind       TEXT NOT NULL,
    key        TEXT NOT NULL,
    about      TEXT NOT NULL,          -- JSON
    expires_at INTEGER,                -- the record counts until then; NULL: until it is deleted
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;

-- How far the messages of a log have become jobs: written in the transaction that stores the jobs.
CREATE TABLE taskharbor_ingested (
    log       TEXT NOT NULL,           -- names the cluster, the topic and the group
    partition INTEGER NOT NULL,
    next      INTEGER NOT NULL,        -- the offset of the first message that is not stored
    moved_at  INTEGER NOT NULL,
    PRIMARY KEY (log, partition)
) WITHOUT ROWID;

-- Roll-ups: what workers counted, as JSON. Each flush of a worker appends rows and changes none; a worker's upkeep folds
-- them, by minute for a day and by hour for 30 days. Readers add up both tables.
CREATE TABLE taskharbor_rollups_appended (
    at      INTEGER NOT NULL,          -- the begin of the minute
    queue   TEXT NOT NULL,
    task    TEXT NOT NULL,
    figures TEXT NOT NULL
);
CREATE INDEX taskharbor_rollups_appended_at ON taskharbor_rollups_appended (at);
CREATE TABLE taskharbor_rollups_folded (
    period  TEXT NOT NULL,             -- minute or hour
    at      INTEGER NOT NULL,          -- its begin
    queue   TEXT NOT NULL,
    task    TEXT NOT NULL,
    figures TEXT NOT NULL,
    PRIMARY KEY (period, at, queue, task)
) WITHOUT ROWID;
