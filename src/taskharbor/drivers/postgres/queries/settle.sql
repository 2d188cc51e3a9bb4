-- name: settle_and_release
SELECT * FROM {schema}.settle_and_release($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: lock_leases
-- In this order, so that no two wait for each other. The rows are those that are current once the lock is held.
SELECT token, expires_at, ARRAY(SELECT c::text FROM unnest(cancels) AS c) AS cancels
FROM {schema}.leases WHERE token = ANY ($1::text[]) ORDER BY token FOR NO KEY UPDATE

-- name: hold_leases
-- For progress and steps: these may be stored side by side, but not beside a settle.
SELECT token, expires_at, ARRAY(SELECT c::text FROM unnest(cancels) AS c) AS cancels
FROM {schema}.leases WHERE token = ANY ($1::text[]) ORDER BY token FOR SHARE

-- name: entries
-- What these leases say of these jobs. One may have been moved to another queue while it ran.
SELECT c.token, e.id::text AS id, e.number, coalesce(e.attempts, 0) AS attempts,
       coalesce(e.first_number, 1) AS first_number, e.run_at,
       coalesce((SELECT j.queue FROM {schema}.jobs AS j WHERE j.id = e.id), e.queue) AS queue, e.due_at, e.expires_at,
       e.delivery
FROM {schema}.claims AS c
CROSS JOIN LATERAL unnest(c.ids, c.numbers, c.attempts, c.first_numbers, c.run_ats, c.queues, c.due_ats,
                          c.expires_ats, c.deliveries)
    AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery)
WHERE c.token = ANY ($1::text[]) AND e.id = ANY ($2::text[]::uuid[])

-- name: recorded
SELECT a.job_id::text AS id, a.number, a.token, a.status
FROM unnest($1::text[]::uuid[], $2::integer[]) AS s (id, number)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.history WHERE history.job_id = s.id AND history.number = s.number LIMIT 1
) AS a

-- name: dependants_of
-- What the ends of these recorded attempts have released or cancelled, as far as it is still so.
WITH RECURSIVE settled AS (
    SELECT a.* FROM unnest($1::text[]::uuid[], $2::integer[]) AS s (id, number)
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.history WHERE history.job_id = s.id AND history.number = s.number LIMIT 1
    ) AS a
), cancelled (member, job_id, ended_at) AS (
    SELECT e.job_id, e.job_id, e.finished_at FROM settled AS a JOIN {schema}.ended AS e USING (job_id, number, finished_at)
    UNION
    SELECT c.member, d.job_id, c.ended_at FROM cancelled AS c
    JOIN {schema}.dependencies AS d ON d.member_id = c.job_id
    JOIN {schema}.ended AS e ON e.job_id = d.job_id AND e.reason = 'dependency' AND e.finished_at = c.ended_at
)
SELECT c.member::text AS member, c.job_id::text AS id, false AS released FROM cancelled AS c WHERE c.job_id <> c.member
UNION ALL
SELECT a.job_id::text, d.job_id::text, true FROM settled AS a
JOIN {schema}.dependencies AS d ON d.member_id = a.job_id
JOIN {schema}.jobs AS j ON j.id = d.job_id AND j.enqueued_at <= a.finished_at
WHERE a.status = 'succeeded' AND a.next_at IS NULL
  AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.job_id AND e.finished_at <= a.finished_at)
  AND NOT EXISTS (
      SELECT FROM {schema}.dependencies AS o WHERE o.job_id = d.job_id AND (NOT o.done OR EXISTS (
          SELECT FROM {schema}.history AS x
          WHERE x.job_id = o.member_id AND x.status = 'succeeded' AND x.next_at IS NULL AND x.finished_at > a.finished_at
      ))
  )

-- name: covered
-- Which of these jobs any lease holds, expired or not: what tells a mismatch from a job that is not running.
SELECT DISTINCT e.id::text AS id
FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
WHERE c.ids && $1::text[]::uuid[] AND e.id = ANY ($1::text[]::uuid[])
  AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)

-- name: versions
-- A schedule's version must not change between this look and the settle that relies on it.
SELECT id::text, version, delivery FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[]) ORDER BY jobs.id FOR SHARE

-- name: insert_attempts
-- The worker of a lost attempt may have proved that it survived while the collector was deciding: its lease, locked by
-- now, says so. A loss that a collector settles keeps the token of the claim, for a worker that proves it later.
INSERT INTO {schema}.attempts (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at,
                               next_at, retry_delay, result, error, traceback, detail, worker_survived, origin,
                               fingerprint, code_version, aside)
SELECT s.id, s.number, s.status, s.retry_count, s.attempts, s.token, s.worker, s.started_at, $19, s.next_at,
       s.retry_delay, s.result, s.error, s.traceback, s.detail,
       s.worker_survived OR coalesce(l.worker_survived, false), CASE WHEN l.origin <> l.token THEN l.origin END,
       s.fingerprint, s.code_version, s.aside
FROM unnest($1::text[]::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::text[], $7::text[],
            $8::timestamptz[], $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::boolean[],
            $15::bigint[], $16::text[], $17::text[], $18::text[])
    AS s (id, number, status, retry_count, attempts, token, worker, started_at, next_at, result, error, traceback,
          detail, worker_survived, retry_delay, fingerprint, code_version, aside)
LEFT JOIN {schema}.leases AS l ON s.status = 'lost' AND l.token = s.token

-- name: put_ready
-- As insert_ready, for who may change rows.
INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, due_at, expires_at,
                            delivery)
SELECT g.suspect, coalesce(j.queue || E'\x1f\x1f' || g.aside, j.queue), -least(100, greatest(-100, j.priority)), g.run_at, g.id,
       g.number, g.attempts, g.first_number, g.due_at, g.expires_at, g.delivery
FROM unnest($1::text[]::uuid[], $2::timestamptz[], $3::integer[], $4::integer[], $5::integer[], $6::timestamptz[],
            $7::timestamptz[], $8::text[], $9::boolean[], $10::text[])
    AS g (id, run_at, number, attempts, first_number, due_at, expires_at, delivery, suspect, aside)
CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.id LIMIT 1) AS j
-- A row that a hand has put there says nothing against what is known here.
ON CONFLICT (suspect, queue, rank, run_at, id) DO UPDATE SET
    number = excluded.number, attempts = excluded.attempts, first_number = excluded.first_number,
    due_at = excluded.due_at, expires_at = excluded.expires_at, delivery = excluded.delivery

-- name: wait_for_locks
-- For how long, until the transaction ends.
SELECT set_config('lock_timeout', $1, true)

-- name: copy_attempts
-- The history of one run each, for the copies that go to the dead-letter queue.
INSERT INTO {schema}.attempts (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at,
                               retry_delay, error, traceback, detail, worker_survived, fingerprint, code_version)
SELECT c.copy_id, a.number, a.status, a.retry_count, a.attempts, a.token, a.worker, a.started_at, a.finished_at,
       a.retry_delay, a.error, a.traceback, a.detail, a.worker_survived, a.fingerprint, a.code_version
FROM unnest($1::text[]::uuid[], $2::text[]::uuid[], $3::integer[]) AS c (job_id, copy_id, first_number)
JOIN {schema}.history AS a ON a.job_id = c.job_id AND a.number >= c.first_number

-- name: insert_ended
INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery, queue, task, fingerprint,
                            error, code_version)
SELECT s.id, s.state, s.reason, $7, s.number, s.attempts, s.delivery, e.queue, e.task, e.fingerprint, e.error,
       e.code_version
FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::text[])
    AS s (id, state, reason, number, attempts, delivery)
CROSS JOIN LATERAL {schema}.ending(s.id, s.state, s.reason) AS e
ON CONFLICT (job_id) DO UPDATE SET
    state = excluded.state, reason = excluded.reason, finished_at = excluded.finished_at, number = excluded.number,
    attempts = excluded.attempts, delivery = excluded.delivery, raw = NULL, queue = excluded.queue,
    task = excluded.task, fingerprint = excluded.fingerprint, error = excluded.error,
    code_version = excluded.code_version

-- name: close_leases
-- Count jobs off their leases, and off those asked to end.
UPDATE {schema}.leases AS l SET open = l.open - t.settled,
    cancels = ARRAY(SELECT c FROM unnest(l.cancels) AS c WHERE c <> ALL ($3::text[]::uuid[]))
FROM unnest($1::text[], $2::integer[]) AS t (token, settled) WHERE l.token = t.token

-- name: delete_closed
-- A lease goes with the last of its jobs.
WITH closed AS (
    DELETE FROM {schema}.leases WHERE token = ANY ($1::text[]) AND open <= 0 RETURNING token
)
DELETE FROM {schema}.claims USING closed WHERE claims.token = closed.token

-- name: add_tallies
INSERT INTO {schema}.tallies (queue, state, jobs) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])

-- name: fold_tallies
-- Many small rows become one for each sum. Rows that another client is folding are left to it.
WITH old AS (
    DELETE FROM {schema}.tallies WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM {schema}.tallies AS t LIMIT 10000 FOR UPDATE SKIP LOCKED
    )) RETURNING queue, state, jobs
)
INSERT INTO {schema}.tallies (queue, state, jobs)
SELECT queue, state, sum(jobs) FROM old GROUP BY queue, state HAVING sum(jobs) <> 0

-- name: lock_jobs
-- Beside a producer that has made jobs depend on these, and has not committed: only what deletes them waits for that.
SELECT id FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[]) ORDER BY id FOR NO KEY UPDATE

-- name: release_dependants
SELECT * FROM {schema}.release_dependants($1::text[]::uuid[])

-- name: delete_steps
DELETE FROM {schema}.steps WHERE job_id = ANY ($1::text[]::uuid[])

-- name: delete_progress
DELETE FROM {schema}.progress WHERE job_id = ANY ($1::text[]::uuid[])

-- name: put_progress
INSERT INTO {schema}.progress (job_id, fraction, message, value)
SELECT * FROM unnest($1::text[]::uuid[], $2::double precision[], $3::text[], $4::text[])
ON CONFLICT (job_id) DO UPDATE SET fraction = excluded.fraction, message = excluded.message, value = excluded.value

-- name: put_steps
INSERT INTO {schema}.steps (job_id, name, result, number)
SELECT * FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::integer[])
ON CONFLICT DO NOTHING
