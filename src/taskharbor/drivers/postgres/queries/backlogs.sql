-- name: own
INSERT INTO {schema}.owners AS o (partition, epoch) VALUES ($1, 1)
ON CONFLICT (partition) DO UPDATE SET epoch = o.epoch + 1 RETURNING epoch

-- name: epochs
-- A worker that takes a partition over waits for the hand-overs that are under way.
SELECT partition, epoch FROM {schema}.owners WHERE partition = ANY ($1::text[]) ORDER BY partition FOR SHARE

-- name: open_backlogs
INSERT INTO {schema}.backlogs (key, holds) SELECT * FROM unnest($1::text[], $2::boolean[]) ON CONFLICT DO NOTHING

-- name: lock_backlogs
-- In this order, so that no two wait for each other. One that ends meanwhile is not among them.
SELECT key FROM {schema}.backlogs WHERE key = ANY ($1::text[]) ORDER BY key FOR UPDATE

-- name: try_lock_backlogs
SELECT key, holds FROM {schema}.backlogs WHERE key = ANY ($1::text[]) ORDER BY key FOR UPDATE SKIP LOCKED

-- name: close_backlogs
DELETE FROM {schema}.backlogs WHERE key = ANY ($1::text[])

-- name: backlogs_with_jobs
SELECT k.key FROM unnest($1::text[]) AS k (key)
WHERE EXISTS (SELECT FROM {schema}.backlog_jobs AS m WHERE m.key = k.key)

-- name: backlogs_between
SELECT key FROM {schema}.backlogs WHERE key BETWEEN $1 AND $2 ORDER BY key LIMIT $3

-- name: add_backlog_jobs
INSERT INTO {schema}.backlog_jobs (key, position, job_id)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[]::uuid[])

-- name: drop_backlog_jobs
DELETE FROM {schema}.backlog_jobs AS m USING unnest($1::text[], $2::bigint[]) AS d (key, position)
WHERE m.key = d.key AND m.position = d.position

-- name: first_backlog_jobs
SELECT k.key, m.position, m.job_id::text AS id FROM unnest($1::text[]) AS k (key)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.backlog_jobs AS m WHERE m.key = k.key ORDER BY m.position LIMIT 1
) AS m

-- name: look_at_backlogs
-- The next backlogs, and whether there is anything to do about each: its first job waits, has ended or is gone. (A dead
-- one of a backlog that holds is left to `rules.backlogs.step`.)
SELECT b.key, m.job_id IS NULL
    OR EXISTS (SELECT FROM {schema}.waiting AS w WHERE w.job_id = m.job_id)
    OR EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = m.job_id AND NOT (b.holds AND e.state = 'dead'))
    OR NOT EXISTS (SELECT FROM {schema}.jobs AS j WHERE j.id = m.job_id)
    OR EXISTS (
        SELECT FROM (
            SELECT * FROM {schema}.history AS a WHERE a.job_id = m.job_id ORDER BY a.number DESC LIMIT 1
        ) AS latest WHERE latest.status = 'succeeded' AND latest.next_at IS NULL
    ) AS due
FROM (SELECT * FROM {schema}.backlogs WHERE key > $1 ORDER BY key LIMIT $2) AS b
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.backlog_jobs AS m WHERE m.key = b.key ORDER BY m.position LIMIT 1
) AS m ON true
ORDER BY b.key

-- name: before_in_backlog
SELECT p.job_id::text AS id FROM {schema}.backlog_jobs AS m
JOIN {schema}.backlog_jobs AS p ON p.key = m.key AND p.position < m.position
WHERE m.job_id = $1::text::uuid ORDER BY p.position DESC LIMIT 1

-- name: stored_ids
SELECT id::text AS id FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[])
