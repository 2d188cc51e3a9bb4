-- The tables. A job's row is written once, a claim deletes from `ready`, an attempt that ends inserts into `attempts`.
-- The place of a job gives its state, and every job is in exactly one place.
--
-- The driver substitutes {schema} in these files, and nothing else. Text compares by its bytes (COLLATE "C"): the order is
-- the same on every server, and such comparisons are cheap.
--
-- A role that may enqueue may insert rows by hand. Domains refuse what no reader can make sense of. Instants are those of
-- Python: years 1 to 9999, no infinity. A number leaves room to be raised. (CHECKs of a table say the same, but the server
-- reads and plans them anew for each statement, which took a third of the time of storing one job.)
CREATE DOMAIN {schema}.instant AS timestamptz
    CHECK (VALUE >= '0001-01-01 00:00:00+00' AND VALUE < '10000-01-01 00:00:00+00');
CREATE DOMAIN {schema}.priority AS smallint CHECK (VALUE BETWEEN -100 AND 100);
CREATE DOMAIN {schema}.number AS integer CHECK (VALUE BETWEEN 0 AND 2000000000);
CREATE DOMAIN {schema}.next_number AS integer CHECK (VALUE BETWEEN 0 AND 2000000001);
CREATE DOMAIN {schema}.delivery AS text COLLATE "C" CHECK (VALUE IN ('at_least_once', 'at_most_once'));

-- What was enqueued. The hot path never updates it; operators may.
CREATE TABLE {schema}.jobs (
    id              uuid PRIMARY KEY,
    queue           text COLLATE "C" NOT NULL,
    task            text COLLATE "C" NOT NULL,
    payload         text NOT NULL,
    priority        {schema}.priority NOT NULL,
    run_at          {schema}.instant NOT NULL,
    enqueued_at     {schema}.instant NOT NULL,
    expires_at      {schema}.instant,
    idempotency_key text COLLATE "C",
    delivery        {schema}.delivery,
    options         text,                -- JSON; NULL for the defaults
    meta            text,                -- JSON; NULL for none
    version         {schema}.number NOT NULL DEFAULT 1,
    action_id       uuid                 -- of the latest action that changed it
);

-- (queue, idempotency key) names one job for as long as it is kept. Partial: a job without a key pays nothing.
CREATE UNIQUE INDEX jobs_key ON {schema}.jobs (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Finds jobs by their correlation id, as the options have it in JSON: with its quotes. Only jobs that have one are in here.
CREATE INDEX jobs_correlation
    ON {schema}.jobs ((substring(options FROM '"correlation_id":("(?:[^"\\]|\\.)*")') COLLATE "C"), id)
    WHERE options LIKE '%"correlation_id":%';

-- Scheduled and ready jobs in claim order; the primary key is the only index a claim needs.
-- rank is the negated priority, so that a forward scan meets the highest priority first.
-- The columns stand by their alignment, the widest first: no byte of a row is padding.
CREATE TABLE {schema}.ready (
    run_at       {schema}.instant NOT NULL,
    id           uuid NOT NULL,
    due_at       {schema}.instant,
    expires_at   {schema}.instant,       -- NULL once the run has begun
    number       {schema}.number NOT NULL, -- of the latest attempt
    attempts     {schema}.number NOT NULL, -- failures in this run
    first_number {schema}.next_number NOT NULL, -- of this run's first attempt
    rank         {schema}.priority NOT NULL,
    suspect      boolean NOT NULL,       -- executes alone; only a claim of suspects finds it
    queue        text COLLATE "C" NOT NULL, -- the lane: of a job that stands aside, the queue, E'\x1f\x1f' and the label
    delivery     {schema}.delivery,
    PRIMARY KEY (suspect, queue, rank, run_at, id)
);

-- Finds what must be cancelled because it was not begun in time; a job without an expiry pays nothing.
CREATE INDEX ready_expiry ON {schema}.ready (expires_at, id) WHERE expires_at IS NOT NULL;

-- One row for each claimed batch, small, because heartbeats and settles update it. The transaction that holds its lock
-- decides about all of its jobs. No index on a column that changes: the updates stay in their page.
CREATE TABLE {schema}.leases (
    token      text COLLATE "C" PRIMARY KEY,
    origin     text COLLATE "C" NOT NULL, -- the token of the claim, before any collector took it
    worker     text NOT NULL,
    expires_at timestamptz NOT NULL,
    expired_at timestamptz,               -- the expiry it had when it was first collected
    alone      boolean NOT NULL,
    supervised boolean NOT NULL,
    max_losses integer NOT NULL,          -- the setting of the worker that claimed it
    worker_survived boolean NOT NULL DEFAULT false, -- its worker asked for something after it was over
    open       integer NOT NULL,          -- jobs not settled yet; the lease goes with the last one
    struck     integer NOT NULL DEFAULT 0, -- jobs taken out of it because they were deleted
    cancels    uuid[] NOT NULL DEFAULT '{}', -- unsettled jobs that an operator asked to end
    running    text NOT NULL DEFAULT '{}'  -- JSON: job id → started at, as of the last heartbeat
) WITH (fillfactor = 50);

-- What each lease covers: written at the claim, apart from the row that changes all the time. Each of attempts (0),
-- first_numbers (1), due_ats, expires_ats and deliveries (NULL) is empty where every job has the usual value.
CREATE TABLE {schema}.claims (
    token         text COLLATE "C" PRIMARY KEY,
    ids           uuid[] NOT NULL,
    numbers       integer[] NOT NULL,
    attempts      integer[] NOT NULL,
    first_numbers integer[] NOT NULL,
    run_ats       timestamptz[] NOT NULL,
    queues        text[] NOT NULL,
    due_ats       timestamptz[] NOT NULL,
    expires_ats   timestamptz[] NOT NULL,
    deliveries    text[] NOT NULL
);

-- What the plain successes of one settle share. A row of `attempts` that names it needs only what is its own.
--
-- Pruning by age finds the successes of an old settle by their ids: those between first_id and last_id, or those in `ids`
-- where these are far apart and there may be many others between them.
CREATE TABLE {schema}.settles (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    finished_at timestamptz NOT NULL,
    first_id    uuid NOT NULL,
    last_id     uuid NOT NULL,
    token       text COLLATE "C" NOT NULL,
    ids         uuid[]
);
CREATE INDEX settles_age ON {schema}.settles (finished_at, id);

-- One row of history for each attempt. Its key is the fence: a collector and a late finisher collide on it.
--
-- A plain success that was settled together with others is narrow: it names its row of `settles`, and of the columns
-- after `ran` it has only what is not the usual. Every other attempt has all of the columns that apply to it. Readers
-- see no difference: they read `history`. The order of the columns leaves no byte of a narrow row to padding.
CREATE TABLE {schema}.attempts (
    job_id      uuid NOT NULL,
    settle_id   bigint,
    number      integer NOT NULL,
    ran         integer,                 -- of a narrow row: microseconds from its start to the settle
    retry_count integer,
    attempts    integer,                 -- failures in the run after this attempt
    started_at  timestamptz,
    finished_at timestamptz,
    next_at     timestamptz,             -- where the job went on: the key of its ready row can be computed
    retry_delay bigint,                  -- microseconds granted before the retry, of a failure that was to be retried
    worker_survived boolean,
    status      text COLLATE "C",
    token       text COLLATE "C",
    worker      text,                    -- NULL: the token's
    result      text,
    error       text,
    traceback   text,
    detail      text,
    origin      text COLLATE "C",        -- of a loss that a collector settled: the token of the claim
    fingerprint text COLLATE "C",        -- of a failure: its cause
    code_version text COLLATE "C",       -- of a failure: of the application
    aside       text COLLATE "C",        -- of next_at: the label of its place there; NULL: the ordinary one
    PRIMARY KEY (job_id, number),
    CONSTRAINT attempts_whole CHECK (
        settle_id IS NOT NULL OR (retry_count, attempts, finished_at, status, token) IS NOT NULL)
);

-- Every attempt with all of its columns. (A query that asks for nothing of a settle reads `attempts` alone.)
CREATE VIEW {schema}.history AS
SELECT a.job_id, a.number, coalesce(a.retry_count, 0) AS retry_count, coalesce(a.attempts, 0) AS attempts,
       coalesce(a.started_at, s.finished_at - a.ran * interval '1 microsecond') AS started_at,
       coalesce(a.finished_at, s.finished_at) AS finished_at, a.next_at, a.aside, a.retry_delay,
       coalesce(a.worker_survived, false) AS worker_survived, coalesce(a.status, 'succeeded') AS status,
       coalesce(a.token, s.token) AS token, a.worker, a.result, a.error, a.traceback, a.detail, a.origin,
       a.fingerprint, a.code_version
FROM {schema}.attempts AS a LEFT JOIN {schema}.settles AS s ON s.id = a.settle_id;

-- A worker that survived its lease marks what was lost with it. Only losses are in here.
CREATE INDEX attempts_lost ON {schema}.attempts (origin) WHERE origin IS NOT NULL;

-- Pruning by age, of successes that are not narrow; it grows at its right edge only.
CREATE INDEX attempts_succeeded ON {schema}.attempts (finished_at, job_id)
    WHERE status = 'succeeded' AND next_at IS NULL;

-- Dead and cancelled jobs. (A succeeded one is known by its attempt row.)
CREATE TABLE {schema}.ended (
    job_id      uuid PRIMARY KEY,
    state       text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    finished_at timestamptz NOT NULL,
    number      integer NOT NULL,
    attempts    integer NOT NULL,
    delivery    text COLLATE "C",
    raw         text,                    -- JSON: the row of its place, if it could not be read
    queue       text COLLATE "C" NOT NULL, -- from here on copies: filters need not look at the job and its attempts
    task        text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C",        -- of the latest attempt's failure; every dead job has one
    error       text,                    -- of the latest attempt: its first 200 characters
    code_version text COLLATE "C"        -- of the latest attempt's failure
);
CREATE INDEX ended_state ON {schema}.ended (state, job_id);
CREATE INDEX ended_age ON {schema}.ended (state, finished_at, job_id);
CREATE INDEX ended_queue ON {schema}.ended (state, queue, job_id);
CREATE INDEX ended_task ON {schema}.ended (state, task, job_id);
-- Finds the jobs of a group, newest first, and has all that a list of the groups needs.
CREATE INDEX ended_group ON {schema}.ended (state, fingerprint, job_id)
    INCLUDE (task, queue, reason, code_version, finished_at);

-- The fingerprint of what no code of the handler's explains: `rules.fingerprint.of_kind`.
CREATE FUNCTION {schema}.kind_fingerprint(p_task text, p_kind text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT substr(encode(sha256(convert_to(concat_ws(E'\n', '1', 'kind', p_task, p_kind), 'UTF8')), 'hex'), 1, 16)
$$;

-- What the row of a dead or cancelled job copies of the job and of its latest attempt.
CREATE FUNCTION {schema}.ending(p_id uuid, p_state text, p_reason text)
RETURNS TABLE (queue text, task text, fingerprint text, error text, code_version text) LANGUAGE sql STABLE ROWS 1
AS $$
    SELECT j.queue, j.task,
           CASE WHEN p_state = 'dead' THEN coalesce(a.fingerprint, {schema}.kind_fingerprint(j.task, p_reason))
                ELSE a.fingerprint END,
           left(a.error, 200), a.code_version
    FROM {schema}.jobs AS j
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.attempts WHERE attempts.job_id = j.id ORDER BY attempts.number DESC LIMIT 1
    ) AS a ON true
    WHERE j.id = p_id
$$;

-- Jobs that wait for other jobs.
CREATE TABLE {schema}.waiting (
    job_id       uuid PRIMARY KEY,
    number       {schema}.number NOT NULL,
    attempts     {schema}.number NOT NULL,
    first_number {schema}.next_number NOT NULL,
    expires_at   {schema}.instant,
    delivery     {schema}.delivery
);
CREATE INDEX waiting_expiry ON {schema}.waiting (expires_at, job_id) WHERE expires_at IS NOT NULL;

-- What each job waits for. Rows, not counters: nothing can be counted twice.
--
-- A producer's transaction may stay open while the jobs that its new ones depend on go on and end. A job that ends then
-- cannot see its new dependants. So a dependency on a job that was stored before is `late` until a worker's sweep
-- (`catch_up`) has looked at it once. `was_ended` says whether the member had ended without success when the dependant
-- was added; such a dependant waits for a retry of the member.
CREATE TABLE {schema}.dependencies (
    job_id    uuid NOT NULL,
    position  integer NOT NULL,          -- in the order given: a finalizer gets its results in this order
    member_id uuid NOT NULL,
    done      boolean NOT NULL,
    fatal     boolean NOT NULL DEFAULT false, -- the job is cancelled when this member ends without success
    late      boolean NOT NULL DEFAULT false,
    was_ended boolean NOT NULL DEFAULT false,
    PRIMARY KEY (job_id, position)
);
CREATE INDEX dependencies_member ON {schema}.dependencies (member_id, job_id);
CREATE INDEX dependencies_late ON {schema}.dependencies (job_id) WHERE late;
-- Says whether a job still waits for anything, without a look at the thousands of members that are done.
CREATE INDEX dependencies_unmet ON {schema}.dependencies (job_id) WHERE NOT done;

-- Workflows: jobs that are stored, kept and pruned as a whole. The ids of a workflow's jobs follow its own up to last_id:
-- one probe of this key finds the workflow of a job, and one range of any key that begins with a job's id finds the jobs
-- of a workflow. No row pays for being a member.
CREATE TABLE {schema}.workflows (
    id              uuid PRIMARY KEY,
    last_id         uuid NOT NULL,       -- of its jobs; its own, if it has none
    total           integer NOT NULL,
    enqueued_at     {schema}.instant NOT NULL,
    idempotency_key text COLLATE "C" UNIQUE,
    about           text NOT NULL,
    CONSTRAINT workflows_jobs CHECK (total >= 0 AND last_id >= id)
);

-- Backlogs: jobs of one key of a log that execute one after the other. A backlog is there while it has a job that has not
-- ended. A client that adds a job to it, or lets it go on, locks its row.
CREATE TABLE {schema}.backlogs (
    key   text COLLATE "C" PRIMARY KEY,
    holds boolean NOT NULL               -- a dead job keeps those behind it waiting
);
CREATE TABLE {schema}.backlog_jobs (
    key      text COLLATE "C" NOT NULL,
    position bigint NOT NULL,            -- the offset of its message
    job_id   uuid NOT NULL,
    PRIMARY KEY (key, position)
);
CREATE INDEX backlog_jobs_job ON {schema}.backlog_jobs (job_id);

-- Who hands over messages of each partition of a log: the worker that was given the latest epoch.
CREATE TABLE {schema}.owners (
    partition text COLLATE "C" PRIMARY KEY,
    epoch     bigint NOT NULL
);

CREATE TABLE {schema}.steps (
    job_id uuid NOT NULL,
    name   text COLLATE "C" NOT NULL,
    result text NOT NULL,
    number integer NOT NULL,             -- of the attempt that stored it
    PRIMARY KEY (job_id, name)
);
CREATE TABLE {schema}.progress (
    job_id   uuid PRIMARY KEY,
    fraction double precision NOT NULL,
    message  text NOT NULL,
    value    text                        -- JSON
) WITH (fillfactor = 70);
CREATE TABLE {schema}.tags (
    tag    text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (tag, job_id)
);
CREATE TABLE {schema}.paused (
    queue     text COLLATE "C" PRIMARY KEY,
    paused_by text COLLATE "C",          -- NULL: not known
    paused_at timestamptz NOT NULL
);

-- Tasks and tags whose jobs no worker begins for now. They move no job: workers put aside what they meet.
CREATE TABLE {schema}.holds (
    kind    text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    since   timestamptz NOT NULL,
    held_by text,
    PRIMARY KEY (kind, name),
    CONSTRAINT holds_kind CHECK (kind IN ('task', 'tag'))
);

-- How many jobs stand in each terminal state: counting them would be a scan. One row for each change, summed
-- when read and folded now and then; one row for each sum would make every settle wait for every other.
CREATE TABLE {schema}.tallies (
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    jobs  bigint NOT NULL
);

-- Records, one table for each kind, so that a role may have the one without the other: the workers that are alive, and
-- the tokens and sessions of the server as digests. `about` is JSON; a record counts until `expires_at`, if it has one.
CREATE TABLE {schema}.workers (
    key        text COLLATE "C" PRIMARY KEY,
    about      text NOT NULL,
    expires_at timestamptz
);
CREATE TABLE {schema}.tokens (LIKE {schema}.workers INCLUDING ALL);
CREATE TABLE {schema}.sessions (LIKE {schema}.workers INCLUDING ALL);

-- Counts the notifications of each tenth of a second: see announcement().
CREATE SEQUENCE {schema}.announcements;

-- Tables that turn over must be vacuumed long before the default fifth of them is dead.
ALTER TABLE {schema}.ready SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1
);
ALTER TABLE {schema}.leases SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.claims SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.tallies SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE {schema}.dependencies SET (  -- every success of a member updates a row
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- How far the messages of a log have become jobs: written in the transaction that stores the jobs.
CREATE TABLE {schema}.ingested (
    log       text COLLATE "C" NOT NULL, -- names the cluster, the topic and the group
    partition integer NOT NULL,
    next      bigint NOT NULL,           -- the offset of the first message that is not stored
    moved_at  timestamptz NOT NULL,
    PRIMARY KEY (log, partition)
) WITH (fillfactor = 50);
ALTER TABLE {schema}.ingested SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0
);

-- Roll-ups: what workers counted, as JSON. Each flush of a worker appends rows and changes none; a worker's upkeep folds
-- them, by minute for a day and by hour for 30 days. Readers add up both tables.
CREATE TABLE {schema}.rollups_appended (
    at      timestamptz NOT NULL,        -- the begin of the minute
    queue   text COLLATE "C" NOT NULL,
    task    text COLLATE "C" NOT NULL,
    figures text NOT NULL
);
CREATE INDEX rollups_appended_at ON {schema}.rollups_appended (at);
CREATE TABLE {schema}.rollups_folded (
    period  text COLLATE "C" NOT NULL,   -- minute or hour
    at      timestamptz NOT NULL,        -- its begin
    queue   text COLLATE "C" NOT NULL,
    task    text COLLATE "C" NOT NULL,
    figures text NOT NULL,
    PRIMARY KEY (period, at, queue, task)
);
ALTER TABLE {schema}.rollups_appended SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
