-- name: ids
-- The ids are version 7, so that this is also the order of their making. Without a cursor, from the very end.
SELECT jobs.id::text FROM {schema}.jobs
WHERE jobs.id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid ORDER BY jobs.id DESC LIMIT $2

-- name: ids_by_tag
SELECT job_id::text AS id FROM {schema}.tags
WHERE tag = $3 AND job_id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid ORDER BY job_id DESC LIMIT $2

-- name: ids_ended
SELECT job_id::text AS id FROM {schema}.ended
WHERE state = $3 AND job_id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid ORDER BY job_id DESC LIMIT $2

-- name: ids_waiting
SELECT job_id::text AS id FROM {schema}.waiting
WHERE job_id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid ORDER BY job_id DESC LIMIT $2

-- name: ids_ready
-- Not in the order of the key: a scan with a bounded sort, which an operator's list can afford.
SELECT id::text FROM {schema}.ready
WHERE run_at <= coalesce($3::timestamptz, clock_timestamp()) AND ($4::text IS NULL OR queue = $4) AND id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid
ORDER BY ready.id DESC LIMIT $2

-- name: ids_scheduled
SELECT id::text FROM {schema}.ready
WHERE run_at > coalesce($3::timestamptz, clock_timestamp()) AND ($4::text IS NULL OR queue = $4) AND id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid
ORDER BY ready.id DESC LIMIT $2

-- name: ids_running
-- What leases name and has no attempt row yet.
SELECT e.id::text AS id
FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
WHERE e.id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid
  AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)
ORDER BY e.id DESC LIMIT $2

-- name: queue_numbers
-- Everything that can be counted by queue, in one snapshot. Ready, scheduled and waiting ones are counted,
-- running ones are looked up in their leases, terminal ones are the sum of what the tallies say. The scan of the
-- ready ones is the dear part: without $3 it is left out.
WITH clock AS MATERIALIZED (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now)
SELECT r.queue, CASE WHEN r.run_at <= clock.now THEN 'ready' ELSE 'scheduled' END AS state,
       count(*) AS jobs, min(r.run_at) AS oldest_at
FROM {schema}.ready AS r CROSS JOIN clock WHERE $3::boolean AND ($2::text IS NULL OR r.queue = $2) GROUP BY 1, 2
UNION ALL
SELECT j.queue, 'waiting', count(*), NULL
FROM {schema}.waiting AS w JOIN {schema}.jobs AS j ON j.id = w.job_id
WHERE $2::text IS NULL OR j.queue = $2 GROUP BY 1
UNION ALL
SELECT e.queue, 'running', count(*), NULL
FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers, c.queues) AS e (id, number, queue)
WHERE ($2::text IS NULL OR e.queue = $2)
  AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)
GROUP BY 1
UNION ALL
SELECT t.queue, t.state, sum(t.jobs)::bigint, NULL
FROM {schema}.tallies AS t WHERE $2::text IS NULL OR t.queue = $2 GROUP BY 1, 2

-- name: paused_queues
SELECT queue FROM {schema}.paused

-- name: lease_records
SELECT l.token, l.worker, l.expires_at, l.open, l.running,
       l.expires_at <= coalesce($1::timestamptz, clock_timestamp()) AS expired,
       CASE WHEN l.running = '{}' THEN '{}' ELSE ARRAY(
           SELECT e.id::text FROM {schema}.claims AS c
           CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
           WHERE c.token = l.token
             AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)
       ) END AS unsettled
FROM {schema}.leases AS l ORDER BY l.token
