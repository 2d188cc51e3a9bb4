-- name: request_cancel
-- Whoever settles next holds this row's lock first, and so finds the request.
UPDATE {schema}.leases SET cancels = array_append(cancels, $2::text::uuid)
WHERE token = $1 AND NOT $2::text::uuid = ANY (cancels)

-- name: take_ready
-- The row goes, or it has gone already: somebody claimed it, and the job must be looked for again.
DELETE FROM {schema}.ready WHERE suspect = $1 AND queue = $2 AND rank = $3 AND run_at = $4 AND id = $5::text::uuid
RETURNING true

-- name: take_strays
-- Of a job that was put under another key than its own by hand: a scan.
DELETE FROM {schema}.ready WHERE id = $1::text::uuid

-- name: take_waiting
DELETE FROM {schema}.waiting WHERE job_id = $1::text::uuid RETURNING true

-- name: take_ended
DELETE FROM {schema}.ended WHERE job_id = $1::text::uuid RETURNING true

-- name: update_waiting
UPDATE {schema}.waiting SET expires_at = $2, delivery = $3 WHERE job_id = $1::text::uuid RETURNING true

-- name: discard
UPDATE {schema}.ended SET state = 'cancelled', reason = 'discarded', finished_at = $2
WHERE job_id = $1::text::uuid AND state = 'dead' RETURNING true

-- name: move_latest_attempt
-- The key of the ready row is computed from here; whoever moves the job says so.
UPDATE {schema}.attempts SET next_at = $2
WHERE job_id = $1::text::uuid
  AND number = (SELECT max(a.number) FROM {schema}.attempts AS a WHERE a.job_id = $1::text::uuid)

-- name: set_run_at
UPDATE {schema}.jobs SET run_at = $2, expires_at = $3 WHERE id = $1::text::uuid

-- name: update_job
UPDATE {schema}.jobs SET queue = $2, task = $3, delivery = $4, priority = $5, run_at = $6, payload = $7,
    expires_at = $8, options = $9, version = version + 1
WHERE id = $1::text::uuid

-- name: cancelled_occurrence
-- Nobody had claimed it: its row of history is an operator's.
INSERT INTO {schema}.attempts (job_id, number, status, retry_count, attempts, token, finished_at, next_at, detail)
VALUES ($1::text::uuid, $2, 'cancelled', $3, $3, $4, $5, $6, $7)

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
    CROSS JOIN LATERAL (SELECT * FROM {schema}.attempts WHERE attempts.job_id = b.id AND number < b.first_number) AS a
    LEFT JOIN named AS n ON n.id = b.id
    WHERE a.number < b.latest AND (a.finished_at < $4 OR a.number <= b.beyond)
      AND (n.number IS NULL OR a.number < n.number)
), deleted AS (
    DELETE FROM {schema}.attempts AS a USING doomed AS d WHERE a.job_id = d.job_id AND a.number = d.number
    RETURNING 1
)
SELECT count(*) FROM deleted

-- name: run_has_begun
SELECT EXISTS (
    SELECT FROM {schema}.attempts
    WHERE job_id = $1::text::uuid AND number >= $2 AND (started_at IS NOT NULL OR status = 'lost')
)

-- name: waits_for_somebody
SELECT EXISTS (SELECT FROM {schema}.dependencies WHERE job_id = $1::text::uuid AND NOT done)

-- name: needed
-- Which of these jobs an unfinished one depends on. A finished one is among the ended, or has succeeded for good.
SELECT DISTINCT d.member_id::text AS id FROM {schema}.dependencies AS d
WHERE d.member_id = ANY ($1::text[]::uuid[])
  AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.job_id)
  AND NOT EXISTS (SELECT FROM {schema}.attempts AS a
                  WHERE a.job_id = d.job_id AND a.status = 'succeeded' AND a.next_at IS NULL)

-- name: leases_naming
SELECT token FROM {schema}.claims WHERE ids && $1::text[]::uuid[]

-- name: strike
-- A live lease still names what has been settled: without its attempt row, the collector would raise it from the
-- dead. Whoever holds the lease's lock takes it out.
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
-- Everything there is about these jobs. Nobody unfinished depends on them: should one that did be requeued, it
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

-- name: pause
INSERT INTO {schema}.paused (queue) VALUES ($1) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM {schema}.paused WHERE queue = $1

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
-- Those of them that nobody is claiming, releasing or changing at this instant; the others are no longer overdue,
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
    INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery)
    SELECT id, 'cancelled', 'expired', $2, number, attempts, delivery FROM gone
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
           AND NOT EXISTS (SELECT FROM {schema}.attempts AS o
                           WHERE o.job_id = d.job_id AND o.status = 'succeeded' AND o.next_at IS NULL))
     ORDER BY a.finished_at, a.job_id LIMIT $4)
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
              AND NOT EXISTS (SELECT FROM {schema}.attempts AS o
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

-- name: insert_token
INSERT INTO {schema}.tokens (id, name, role, digest, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)

-- name: delete_token
DELETE FROM {schema}.tokens WHERE id = $1 RETURNING id
