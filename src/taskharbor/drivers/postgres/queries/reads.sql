-- name: queue_numbers
-- Everything that can be counted by queue, in one snapshot. Ready, scheduled and waiting ones are counted,
-- running ones are looked up in their leases, terminal ones are the sum of what the tallies say. The scan of the
-- ready ones is the dear part: without $3 it is left out.
WITH clock AS MATERIALIZED (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now)
SELECT split_part(l.lane, E'\x1f\x1f', 1) AS queue, l.state, sum(l.jobs)::bigint AS jobs, min(l.oldest_at) AS oldest_at
FROM (
    SELECT r.queue AS lane, CASE WHEN r.run_at <= clock.now THEN 'ready' ELSE 'scheduled' END AS state,
           count(*) AS jobs, min(r.run_at) AS oldest_at
    FROM {schema}.ready AS r CROSS JOIN clock
    WHERE $3::boolean AND ($2::text IS NULL OR r.queue = $2 OR split_part(r.queue, E'\x1f\x1f', 1) = $2) GROUP BY 1, 2
) AS l GROUP BY 1, 2
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
