-- name: count_before
-- Along the line of a claim: a skip scan over the queues and the ranks that have a job, and of each a bounded range of the
-- primary key. $1 suspect, $2 rank, $3 run_at and $4 id are the job's own place, $5 is the limit, $6 the queues (NULL:
-- every queue), $7 the store's time.
WITH RECURSIVE names AS (
    (SELECT r.queue FROM {schema}.ready AS r WHERE $6::text[] IS NULL AND r.suspect = $1 ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM {schema}.ready AS r WHERE r.suspect = $1 AND r.queue > n.queue ORDER BY r.queue LIMIT 1)
    FROM names AS n WHERE n.queue IS NOT NULL
), served AS MATERIALIZED (
    SELECT DISTINCT s.queue
    FROM (SELECT n.queue FROM names AS n UNION ALL SELECT unnest($6::text[]) COLLATE "C") AS s (queue)
    WHERE s.queue IS NOT NULL AND strpos(s.queue, E'\x1f\x1f') = 0  -- who stands aside is in the way of none
      AND NOT EXISTS (SELECT FROM {schema}.paused AS p WHERE p.queue = s.queue)
), lines AS (
    SELECT s.queue, (
        SELECT r.rank FROM {schema}.ready AS r WHERE r.suspect = $1 AND r.queue = s.queue ORDER BY r.rank LIMIT 1
    ) AS rank
    FROM served AS s
    UNION ALL
    SELECT l.queue, (
        SELECT r.rank FROM {schema}.ready AS r
        WHERE r.suspect = $1 AND r.queue = l.queue AND r.rank > l.rank ORDER BY r.rank LIMIT 1
    )
    FROM lines AS l WHERE l.rank < $2::smallint
)
SELECT count(*)::integer FROM (
    SELECT FROM lines AS l CROSS JOIN LATERAL (
        SELECT FROM {schema}.ready AS r
        WHERE r.suspect = $1 AND r.queue = l.queue AND r.rank = l.rank
          AND (r.run_at, r.id) < (
              CASE WHEN l.rank < $2::smallint THEN $7::timestamptz + interval '1 microsecond' ELSE $3::timestamptz END,
              CASE WHEN l.rank < $2::smallint THEN '00000000-0000-0000-0000-000000000000' ELSE $4::text::uuid END)
        ORDER BY r.run_at, r.id LIMIT $5
    ) AS due
    WHERE l.rank <= $2::smallint LIMIT $5
) AS before

-- name: waits_for
SELECT d.member_id::text AS id FROM {schema}.waiting AS w JOIN {schema}.dependencies AS d ON d.job_id = w.job_id
WHERE w.job_id = $1::text::uuid AND NOT d.done ORDER BY d.position LIMIT $2

-- name: reported_running
SELECT running FROM {schema}.leases WHERE token = $1

-- name: worker_loads
SELECT worker, open, running FROM {schema}.leases WHERE expires_at > coalesce($1::timestamptz, clock_timestamp())
