-- name: request_cancel
-- The next settle holds this row's lock first, and so finds the request.
UPDATE {schema}.leases SET cancels = array_append(cancels, $2::text::uuid)
WHERE token = $1 AND NOT $2::text::uuid = ANY (cancels)

-- name: take_ready
-- The rows go, or they have gone already: a worker claimed one, and its job must be looked for again.
DELETE FROM {schema}.ready AS r
USING unnest($1::boolean[], $2::text[], $3::smallint[], $4::timestamptz[], $5::text[]::uuid[])
    AS t (suspect, queue, rank, run_at, id)
WHERE r.suspect = t.suspect AND r.queue = t.queue AND r.rank = t.rank AND r.run_at = t.run_at AND r.id = t.id
RETURNING r.id::text AS id

-- name: take_strays
-- Of jobs that stand under another key than their own, put there by hand: a scan.
DELETE FROM {schema}.ready WHERE id = ANY ($1::text[]::uuid[])

-- name: take_waiting
DELETE FROM {schema}.waiting WHERE job_id = ANY ($1::text[]::uuid[]) RETURNING job_id::text AS id

-- name: update_waiting
UPDATE {schema}.waiting AS w SET expires_at = t.expires_at, delivery = t.delivery
FROM unnest($1::text[]::uuid[], $2::timestamptz[], $3::text[]) AS t (id, expires_at, delivery)
WHERE w.job_id = t.id RETURNING w.job_id::text AS id

-- name: take_ended
-- Of one that succeeded there is nothing to take: operators do not move it.
DELETE FROM {schema}.ended WHERE job_id = ANY ($1::text[]::uuid[]) RETURNING job_id::text AS id

-- name: move_latest_attempts
-- The key of a ready row is computed from here.
UPDATE {schema}.attempts AS a SET next_at = m.run_at, aside = NULL
FROM unnest($1::text[]::uuid[], $2::timestamptz[]) AS m (id, run_at)
CROSS JOIN LATERAL (
    SELECT l.number FROM {schema}.attempts AS l WHERE l.job_id = m.id ORDER BY l.number DESC LIMIT 1
) AS latest
WHERE a.job_id = m.id AND a.number = latest.number

-- name: update_jobs
UPDATE {schema}.jobs AS j SET queue = u.queue, task = u.task, delivery = u.delivery, priority = u.priority,
    run_at = u.run_at, payload = u.payload, expires_at = u.expires_at, options = u.options, version = u.version,
    meta = u.meta
FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[], $7::text[],
            $8::timestamptz[], $9::text[], $10::integer[], $11::text[])
    AS u (id, queue, task, delivery, priority, run_at, payload, expires_at, options, version, meta)
WHERE j.id = u.id

-- name: cancelled_occurrences
-- No worker had claimed them: their rows of history are an operator's.
INSERT INTO {schema}.attempts (job_id, number, status, retry_count, attempts, token, finished_at, next_at, detail)
SELECT c.id, c.number, 'cancelled', c.attempts, c.attempts, $5, $6, c.run_at, $7
FROM unnest($1::text[]::uuid[], $2::integer[], $3::integer[], $4::timestamptz[]) AS c (id, number, attempts, run_at)

-- name: prune_history
-- What is beyond the newest ones or too old, of the runs before each job's present one; never the latest, and
-- never what a lease still names: without its attempt row, the collector would take it for unsettled.
WITH bounds AS MATERIALIZED (
    SELECT b.id, b.first_number, k.number AS beyond, m.number AS latest
    FROM unnest($1::text[]::uuid[], $2::integer[]) AS b (id, first_number)
    CROSS JOIN LATERAL (
        SELECT number FROM {schema}.attempts WHERE job_id = b.id ORDER BY number DESC LIMIT 1
    ) AS m
    LEFT JOIN LATERAL (
        SELECT number FROM {schema}.attempts WHERE job_id = b.id ORDER BY number DESC OFFSET $3 LIMIT 1
    ) AS k ON true
), named AS MATERIALIZED (
    SELECT e.id, min(e.number) AS number
    FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
    WHERE c.ids && $1::text[]::uuid[] GROUP BY e.id
), doomed AS MATERIALIZED (
    SELECT a.job_id, a.number FROM bounds AS b
    CROSS JOIN LATERAL (SELECT * FROM {schema}.history WHERE history.job_id = b.id AND number < b.first_number) AS a
    LEFT JOIN named AS n ON n.id = b.id
    WHERE a.number < b.latest AND (a.finished_at < $4 OR a.number <= b.beyond)
      AND (n.number IS NULL OR a.number < n.number)
), deleted AS (
    DELETE FROM {schema}.attempts AS a USING doomed AS d WHERE a.job_id = d.job_id AND a.number = d.number
    RETURNING 1
)
SELECT count(*) FROM deleted

-- name: runs_begun
SELECT b.id::text AS id FROM unnest($1::text[]::uuid[], $2::integer[]) AS b (id, first_number)
WHERE EXISTS (
    SELECT FROM {schema}.history AS a
    WHERE a.job_id = b.id AND a.number >= b.first_number AND (a.started_at IS NOT NULL OR a.status = 'lost')
)

-- name: unfinished_members
-- Which of these jobs depend on one that has not succeeded.
SELECT DISTINCT job_id::text AS id FROM {schema}.dependencies WHERE job_id = ANY ($1::text[]::uuid[]) AND NOT done

-- name: needed
-- Which of these jobs an unfinished one depends on. A finished one is among the ended, or has succeeded for good.
SELECT DISTINCT d.member_id::text AS id FROM {schema}.dependencies AS d
WHERE d.member_id = ANY ($1::text[]::uuid[])
  AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.job_id)
  AND NOT EXISTS (SELECT FROM {schema}.history AS a
                  WHERE a.job_id = d.job_id AND a.status = 'succeeded' AND a.next_at IS NULL)

-- name: leases_naming
SELECT token FROM {schema}.claims WHERE ids && $1::text[]::uuid[]

-- name: strike
-- A live lease still names what has been settled: without its attempt row, the collector would raise it from the
-- dead. The holder of the lease's lock takes it out.
UPDATE {schema}.claims AS c SET (ids, numbers, attempts, first_numbers, run_ats, queues, due_ats, expires_ats,
                                 deliveries) = (
    SELECT coalesce(array_agg(e.id ORDER BY e.position), '{}'), coalesce(array_agg(e.number ORDER BY e.position), '{}'),
           coalesce(array_agg(e.attempts ORDER BY e.position), '{}'),
           coalesce(array_agg(e.first_number ORDER BY e.position), '{}'),
           coalesce(array_agg(e.run_at ORDER BY e.position), '{}'),
           coalesce(array_agg(e.queue ORDER BY e.position), '{}'),
           coalesce(array_agg(e.due_at ORDER BY e.position), '{}'),
           coalesce(array_agg(e.expires_at ORDER BY e.position), '{}'),
           coalesce(array_agg(e.delivery ORDER BY e.position), '{}')
    FROM unnest(c.ids, c.numbers, c.attempts, c.first_numbers, c.run_ats, c.queues, c.due_ats, c.expires_ats,
                c.deliveries) WITH ORDINALITY
        AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery, position)
    WHERE e.id <> ALL ($2::text[]::uuid[])
)
WHERE c.token = ANY ($1::text[])

-- name: mark_struck
UPDATE {schema}.leases SET struck = struck + 1 WHERE token = ANY ($1::text[])

-- name: erase
-- Everything there is about these jobs. No unfinished job depends on them: should one that did be requeued, it
-- must not wait for what no longer exists.
WITH ids AS MATERIALIZED (
    SELECT unnest($1::text[]::uuid[]) AS id
), attempts AS (
    DELETE FROM {schema}.attempts USING ids WHERE attempts.job_id = ids.id
), ended AS (
    DELETE FROM {schema}.ended USING ids WHERE ended.job_id = ids.id
), steps AS (
    DELETE FROM {schema}.steps USING ids WHERE steps.job_id = ids.id
), progress AS (
    DELETE FROM {schema}.progress USING ids WHERE progress.job_id = ids.id
), dependencies AS (
    DELETE FROM {schema}.dependencies USING ids WHERE dependencies.job_id = ids.id
), dependants AS (
    UPDATE {schema}.dependencies SET done = true FROM ids
    WHERE dependencies.member_id = ids.id AND NOT dependencies.done
      AND dependencies.job_id <> ALL ($1::text[]::uuid[])
)
DELETE FROM {schema}.jobs USING ids WHERE jobs.id = ids.id

-- name: delete_tags
DELETE FROM {schema}.tags USING unnest($1::text[], $2::text[]::uuid[]) AS t (tag, job_id)
WHERE tags.tag = t.tag AND tags.job_id = t.job_id

-- name: overdue
-- What was not begun in time, the earliest first, wherever it stands.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::timestamptz, clock_timestamp()) AS now
)
SELECT o.id::text AS id, clock.now FROM clock CROSS JOIN LATERAL (
    (SELECT r.expires_at, r.id FROM {schema}.ready AS r
     WHERE r.expires_at <= clock.now ORDER BY r.expires_at, r.id LIMIT $2)
    UNION ALL
    (SELECT w.expires_at, w.job_id FROM {schema}.waiting AS w
     WHERE w.expires_at <= clock.now ORDER BY w.expires_at, w.job_id LIMIT $2)
    ORDER BY expires_at, id LIMIT $2
) AS o

-- name: expire
-- Those of them that no other client is claiming, releasing or changing at this instant; the others are no longer overdue,
-- or will be found again.
WITH held AS MATERIALIZED (
    SELECT j.id FROM {schema}.jobs AS j WHERE j.id = ANY ($1::text[]::uuid[]) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED
), placed AS (
    DELETE FROM {schema}.ready WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM {schema}.ready AS r
        WHERE r.id = ANY (ARRAY(SELECT held.id FROM held)) AND r.expires_at <= $2 FOR UPDATE SKIP LOCKED
    )) RETURNING id, number, attempts, delivery
), waited AS (
    DELETE FROM {schema}.waiting WHERE job_id = ANY (ARRAY(
        SELECT w.job_id FROM {schema}.waiting AS w
        WHERE w.job_id = ANY (ARRAY(SELECT held.id FROM held)) AND w.expires_at <= $2 FOR UPDATE SKIP LOCKED
    )) RETURNING job_id AS id, number, attempts, delivery
), gone AS (
    SELECT * FROM placed UNION ALL SELECT * FROM waited
), ended AS (
    INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery, queue, task,
                                fingerprint, error, code_version)
    SELECT g.id, 'cancelled', 'expired', $2, g.number, g.attempts, g.delivery, e.*
    FROM gone AS g CROSS JOIN LATERAL {schema}.ending(g.id, 'cancelled', 'expired') AS e
    ON CONFLICT DO NOTHING  -- a hand had put it back
), tallied AS (
    INSERT INTO {schema}.tallies (queue, state, jobs)
    SELECT j.queue, 'cancelled', count(*)
    FROM gone CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = gone.id LIMIT 1) AS j GROUP BY j.queue
)
SELECT id::text AS id FROM gone

-- name: prunable
-- The oldest endings first, without members of workflows (the only one whose range could hold a job is the one
-- before it), and without the jobs that an unfinished one still depends on.
SELECT * FROM (
    (SELECT a.finished_at, a.job_id::text AS id FROM {schema}.attempts AS a
     WHERE a.status = 'succeeded' AND a.next_at IS NULL AND a.finished_at < $1::timestamptz
       AND coalesce((SELECT w.last_id FROM {schema}.workflows AS w WHERE w.id < a.job_id
                     ORDER BY w.id DESC LIMIT 1) < a.job_id, true)
       AND NOT EXISTS (SELECT FROM {schema}.dependencies AS d WHERE d.member_id = a.job_id
           AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.job_id)
           AND NOT EXISTS (SELECT FROM {schema}.history AS o
                           WHERE o.job_id = d.job_id AND o.status = 'succeeded' AND o.next_at IS NULL))
     ORDER BY a.finished_at, a.job_id LIMIT $4)
    UNION ALL
    SELECT s.finished_at, s.job_id::text FROM {schema}.old_successes($1::timestamptz, $4) AS s
    UNION ALL
    SELECT x.finished_at, x.job_id::text
    FROM (VALUES ('dead', $2::timestamptz), ('cancelled', $3::timestamptz)) AS retention (state, before)
    CROSS JOIN LATERAL (
        SELECT e.finished_at, e.job_id FROM {schema}.ended AS e
        WHERE e.state = retention.state AND e.finished_at < retention.before
          AND coalesce((SELECT w.last_id FROM {schema}.workflows AS w WHERE w.id < e.job_id
                        ORDER BY w.id DESC LIMIT 1) < e.job_id, true)
          AND NOT EXISTS (SELECT FROM {schema}.dependencies AS d WHERE d.member_id = e.job_id
              AND NOT EXISTS (SELECT FROM {schema}.ended AS o WHERE o.job_id = d.job_id)
              AND NOT EXISTS (SELECT FROM {schema}.history AS o
                              WHERE o.job_id = d.job_id AND o.status = 'succeeded' AND o.next_at IS NULL))
        ORDER BY e.finished_at, e.job_id LIMIT $4
    ) AS x
) AS p ORDER BY p.finished_at, p.id::uuid LIMIT $4

-- name: wait_for_jobs
-- Before one that is to be deleted is looked for again: by itself, so that nothing waits for this wait.
SELECT id FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[]) ORDER BY id FOR UPDATE

-- name: try_lock_jobs
-- Deleting and pruning hold leases meanwhile, and so wait for no lock.
SELECT id::text FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[]) ORDER BY jobs.id FOR UPDATE SKIP LOCKED
