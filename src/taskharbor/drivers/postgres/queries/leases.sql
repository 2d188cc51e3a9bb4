-- The claim, and what it did in the order's index: the pages that it read, its lookups, and the entries that these gave.
-- What was counted before is read first, since the claim's arguments need it.
-- name: claim
SELECT c.*, pg_stat_get_xact_blocks_fetched(b.index) - b.pages AS pages,
       pg_stat_get_xact_numscans(b.index) - b.lookups AS lookups,
       pg_stat_get_xact_tuples_returned(b.index) - b.entries AS entries
FROM (
    SELECT i.index, pg_stat_get_xact_blocks_fetched(i.index) AS pages, pg_stat_get_xact_numscans(i.index) AS lookups,
           pg_stat_get_xact_tuples_returned(i.index) AS entries
    FROM (SELECT '{schema}.ready_pkey'::regclass::oid AS index) AS i OFFSET 0
) AS b
CROSS JOIN LATERAL {schema}.claim_on_trail(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, CASE WHEN b.pages IS NOT NULL THEN $12::bigint END, $13, $14, $15, $16,
    $17, $18) AS c

-- name: lease
SELECT coalesce($2::timestamptz, clock_timestamp()) AS now, l.expires_at, l.max_losses
FROM {schema}.leases AS l WHERE l.token = $1

-- name: unsettled
-- What a lease covers and has no attempt row yet, in the order it was claimed; the columns are those of Claimed.
SELECT e.id::text AS id, j.task, j.payload, e.queue, j.priority::integer AS priority, e.number,
       coalesce(e.attempts, 0) AS attempts, coalesce(e.first_number, 1) AS first_number, e.run_at, j.enqueued_at,
       e.due_at, e.expires_at, e.delivery, j.options, j.version, j.meta
FROM {schema}.claims AS c
CROSS JOIN LATERAL unnest(c.ids, c.numbers, c.attempts, c.first_numbers, c.run_ats, c.queues, c.due_ats,
                          c.expires_ats, c.deliveries) WITH ORDINALITY
    AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery, position)
CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = e.id LIMIT 1) AS j
WHERE c.token = $1
  AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)
ORDER BY e.position

-- name: extend
-- The time is read when the locks are held; expiry is judged by the row as it is then, not as the snapshot has it.
WITH locked AS MATERIALIZED (
    SELECT token, expires_at, cancels FROM {schema}.leases WHERE token = ANY ($1::text[])
    ORDER BY token FOR NO KEY UPDATE
), clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, clock_timestamp()) AS now FROM (SELECT count(*) FROM locked) AS held
), asked AS (
    SELECT a.*, k.expires_at, k.cancels, clock.now, clock.now + a.lease * interval '1 microsecond' AS extended_to
    FROM unnest($1::text[], $2::bigint[], $3::text[]) WITH ORDINALITY AS a (token, lease, running, position)
    CROSS JOIN clock LEFT JOIN locked AS k ON k.token = a.token
), extended AS (
    UPDATE {schema}.leases SET expires_at = asked.extended_to, running = asked.running
    FROM asked WHERE leases.token = asked.token AND asked.expires_at > asked.now
)
SELECT token, now, expires_at IS NOT NULL AS known, expires_at > now AS live, extended_to,
       ARRAY(SELECT c::text FROM unnest(cancels) AS c ORDER BY c) AS cancels
FROM asked ORDER BY position

-- name: cancel_requests
-- Without a lock: it must not wait for a settle, nor hold one up.
SELECT token, ARRAY(SELECT c::text FROM unnest(cancels) AS c ORDER BY c) AS cancels
FROM {schema}.leases WHERE token = ANY ($1::text[]) AND cancels <> '{}'

-- name: mark_at_most_once
UPDATE {schema}.claims SET deliveries = ARRAY(
    SELECT CASE WHEN e.id = ANY ($2::text[]::uuid[]) THEN 'at_most_once' ELSE e.delivery END
    FROM unnest(ids, deliveries) WITH ORDINALITY AS e (id, delivery, position) ORDER BY e.position
)
WHERE token = $1

-- name: mark_jobs_at_most_once
-- Only what the lease covers and has not settled: the end of an attempt cannot be marked any more.
UPDATE {schema}.jobs AS j SET delivery = 'at_most_once'
FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
WHERE c.token = $1 AND e.id = ANY ($2::text[]::uuid[]) AND j.id = e.id
  AND j.delivery IS DISTINCT FROM 'at_most_once'
  AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)

-- name: take_expired
-- The lease that expired first gets the collector's token; from here on the old one proves nothing. One that
-- a worker settles or extends at this instant is not dead. A lease that has this token already was
-- collected by this very call, whose answer was lost.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now
), again AS MATERIALIZED (
    SELECT l.* FROM {schema}.leases AS l WHERE l.token = $1
), expired AS MATERIALIZED (
    SELECT l.token FROM {schema}.leases AS l CROSS JOIN clock
    WHERE l.expires_at <= clock.now AND NOT EXISTS (SELECT FROM again)
    ORDER BY l.expires_at, l.token LIMIT 1 FOR UPDATE OF l SKIP LOCKED
), taken AS (
    UPDATE {schema}.leases AS l SET token = $1, expires_at = clock.now + $2::bigint * interval '1 microsecond',
        expired_at = coalesce(l.expired_at, l.expires_at)
    FROM expired CROSS JOIN clock WHERE l.token = expired.token
    RETURNING l.*
), entries AS (
    UPDATE {schema}.claims AS c SET token = $1 FROM expired WHERE c.token = expired.token
)
SELECT clock.now, l.worker, l.expires_at, l.expired_at, l.alone, l.supervised, l.max_losses, l.worker_survived,
       l.running,
       EXISTS (SELECT FROM {schema}.leases) AS any_lease, EXISTS (SELECT FROM {schema}.dependencies WHERE late) AS any_late,
       EXISTS (SELECT FROM {schema}.backlogs) AS any_backlog
FROM clock LEFT JOIN (SELECT * FROM taken UNION ALL SELECT * FROM again) AS l ON true

-- name: drop_lease
-- One that covers nothing any more: a job that had been settled was put back by hand, say.
WITH dropped AS (DELETE FROM {schema}.leases WHERE token = $1)
DELETE FROM {schema}.claims WHERE token = $1

-- name: mark_survived_lease
-- Only a lease that is over: a live one may still be lost with its worker.
UPDATE {schema}.leases SET worker_survived = true
WHERE origin = $1 AND (token <> origin OR expires_at <= coalesce($2::timestamptz, clock_timestamp()))

-- name: mark_survived_attempts
UPDATE {schema}.attempts SET worker_survived = true WHERE origin = $1
