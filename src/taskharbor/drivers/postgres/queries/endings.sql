-- name: groups
-- The dead jobs by fingerprint, the largest groups first, each with its newest job. Their counts are kept, and the rest of
-- each is a few seeks, whether the table was vacuumed or not.
WITH parts AS MATERIALIZED (
    SELECT fingerprint, queue, task, code_version, sum(jobs) AS jobs FROM {schema}.dead_groups
    WHERE ($1::text IS NULL OR fingerprint = $1) AND ($2::text IS NULL OR queue = $2) AND ($3::text IS NULL OR task = $3)
    GROUP BY 1, 2, 3, 4 HAVING sum(jobs) > 0
), largest AS MATERIALIZED (
    SELECT fingerprint, sum(jobs)::bigint AS jobs, array_agg(DISTINCT task) AS tasks,
           coalesce(array_agg(DISTINCT code_version) FILTER (WHERE code_version IS NOT NULL), '{}') AS versions
    FROM parts GROUP BY fingerprint ORDER BY 2 DESC, 1 LIMIT $4
), seen AS MATERIALIZED (
    SELECT p.fingerprint, min(o.finished_at) AS first_at, max(n.finished_at) AS last_at
    FROM (
        SELECT DISTINCT p.fingerprint, p.queue, p.task FROM parts AS p JOIN largest USING (fingerprint)
    ) AS p
    CROSS JOIN LATERAL (
        SELECT e.finished_at FROM {schema}.ended AS e
        WHERE e.state = 'dead' AND e.fingerprint = p.fingerprint AND e.queue = p.queue AND e.task = p.task
        ORDER BY e.finished_at LIMIT 1
    ) AS o
    CROSS JOIN LATERAL (
        SELECT e.finished_at FROM {schema}.ended AS e
        WHERE e.state = 'dead' AND e.fingerprint = p.fingerprint AND e.queue = p.queue AND e.task = p.task
        ORDER BY e.finished_at DESC LIMIT 1
    ) AS n
    GROUP BY p.fingerprint
)
SELECT g.fingerprint, g.jobs, v.first_at, v.last_at, g.tasks, g.versions, s.job_id::text AS sample_id, s.error
FROM largest AS g JOIN seen AS v USING (fingerprint)
CROSS JOIN LATERAL (
    SELECT e.job_id, e.error FROM {schema}.ended AS e
    WHERE e.state = 'dead' AND e.fingerprint = g.fingerprint AND ($2::text IS NULL OR e.queue = $2)
      AND ($3::text IS NULL OR e.task = $3)
    ORDER BY e.job_id DESC LIMIT 1
) AS s
ORDER BY g.jobs DESC, g.fingerprint

-- name: fold_groups
-- As fold_tallies.
WITH old AS (
    DELETE FROM {schema}.dead_groups WHERE ctid = ANY (ARRAY(
        SELECT g.ctid FROM {schema}.dead_groups AS g LIMIT 10000 FOR UPDATE SKIP LOCKED
    )) RETURNING fingerprint, queue, task, code_version, jobs
)
INSERT INTO {schema}.dead_groups (fingerprint, queue, task, code_version, jobs)
SELECT fingerprint, queue, task, code_version, sum(jobs) FROM old GROUP BY 1, 2, 3, 4 HAVING sum(jobs) <> 0

-- name: groups_by_filter
-- The same for some of the dead jobs. All that is asked for is in the index.
WITH parts AS (
    SELECT fingerprint, task, code_version, count(*) AS jobs, min(finished_at) AS first_at, max(finished_at) AS last_at
    FROM {schema}.ended
    WHERE state = 'dead' AND fingerprint IS NOT NULL
      AND ($1::text IS NULL OR fingerprint = $1) AND ($2::text IS NULL OR queue = $2) AND ($3::text IS NULL OR task = $3)
      AND ($4::text IS NULL OR reason = $4) AND ($5::timestamptz IS NULL OR finished_at >= $5)
      AND ($6::timestamptz IS NULL OR finished_at < $6)
    GROUP BY fingerprint, task, code_version
), largest AS MATERIALIZED (
    SELECT fingerprint, sum(jobs)::bigint AS jobs, min(first_at) AS first_at, max(last_at) AS last_at,
           array_agg(DISTINCT task) AS tasks,
           coalesce(array_agg(DISTINCT code_version) FILTER (WHERE code_version IS NOT NULL), '{}') AS versions
    FROM parts GROUP BY fingerprint ORDER BY 2 DESC, 1 LIMIT $7
)
SELECT g.fingerprint, g.jobs, g.first_at, g.last_at, g.tasks, g.versions, s.job_id::text AS sample_id, s.error
FROM largest AS g CROSS JOIN LATERAL (
    SELECT e.job_id, e.error FROM {schema}.ended AS e
    WHERE e.state = 'dead' AND e.fingerprint = g.fingerprint AND ($2::text IS NULL OR e.queue = $2)
      AND ($3::text IS NULL OR e.task = $3) AND ($4::text IS NULL OR e.reason = $4)
      AND ($5::timestamptz IS NULL OR e.finished_at >= $5) AND ($6::timestamptz IS NULL OR e.finished_at < $6)
    ORDER BY e.job_id DESC LIMIT 1
) AS s
ORDER BY g.jobs DESC, g.fingerprint
