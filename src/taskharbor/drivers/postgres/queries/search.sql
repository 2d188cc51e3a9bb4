-- name: search
-- Looks at one slice of jobs, newest first, and says which of them match, how many it looked at, and where it ended.
-- $1 names the table that leads to the jobs: of the branches below only that one runs. What the slice does not tell is
-- looked up by key, and only where $20 to $24 say that the filter asks for it.
WITH clock AS MATERIALIZED (
    SELECT coalesce($6::timestamptz, clock_timestamp()) AS now
), running AS MATERIALIZED (
    SELECT DISTINCT e.id FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
    WHERE $24::boolean
      AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number)
), slice AS MATERIALIZED (
    (SELECT id, queue, task, enqueued_at, run_at, options,
            NULL::text AS reason, NULL::text AS error, NULL::text AS fingerprint, NULL::timestamptz AS finished_at
     FROM {schema}.jobs WHERE $1::text = 'jobs' AND id < $2::text::uuid ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT id, queue, task, enqueued_at, run_at, options, NULL, NULL, NULL, NULL
     FROM {schema}.jobs
     WHERE $1::text = 'workflow' AND id > CASE WHEN $1::text = 'workflow' THEN $4::text::uuid END
       AND id <= (SELECT w.last_id FROM {schema}.workflows AS w
                  WHERE w.id = CASE WHEN $1::text = 'workflow' THEN $4::text::uuid END)
       AND id < $2::text::uuid ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT id, queue, task, enqueued_at, run_at, options, NULL, NULL, NULL, NULL
     FROM {schema}.jobs
     WHERE $1::text = 'correlation' AND options LIKE '%"correlation_id":%'
       AND substring(options FROM '"correlation_id":("(?:[^"\\]|\\.)*")') COLLATE "C" = $4::text
       AND id < $2::text::uuid ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT id, queue, task, enqueued_at, run_at, options, NULL, NULL, NULL, NULL
     FROM {schema}.jobs
     WHERE $1::text = 'ids' AND id = ANY ($25::text[]::uuid[]) AND id < $2::text::uuid
     ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM {schema}.tags
     WHERE $1::text = 'tag' AND tag = $4::text AND job_id < $2::text::uuid ORDER BY job_id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM {schema}.ended
     WHERE $1::text = 'ended' AND state = $5::text AND job_id < $2::text::uuid
     ORDER BY job_id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM {schema}.ended
     WHERE $1::text = 'ended_queue' AND state = $5::text AND queue = $4::text AND job_id < $2::text::uuid
     ORDER BY job_id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM {schema}.ended
     WHERE $1::text = 'ended_task' AND state = $5::text AND task = $4::text AND job_id < $2::text::uuid
     ORDER BY job_id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM {schema}.ended
     WHERE $1::text = 'ended_group' AND state = $5::text AND fingerprint = $4::text AND job_id < $2::text::uuid
     ORDER BY job_id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM {schema}.waiting
     WHERE $1::text = 'waiting' AND job_id < $2::text::uuid ORDER BY job_id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM running
     WHERE $1::text = 'running' AND id < $2::text::uuid ORDER BY id DESC LIMIT $3::integer)
    UNION ALL
    -- The row's queue is the lane of one that stands aside.
    (SELECT r.id, split_part(r.queue, E'\x1f\x1f', 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
     FROM {schema}.ready AS r CROSS JOIN clock
     WHERE $1::text = 'ready' AND (r.run_at <= clock.now) = ($4::text = 'ready')
       AND ($8::text IS NULL OR split_part(r.queue, E'\x1f\x1f', 1) = $8::text) AND r.id < $2::text::uuid
     ORDER BY r.id DESC LIMIT $3::integer)
)
SELECT count(*) AS examined, min(s.id::text COLLATE "C") AS last_id, count(*) FILTER (WHERE m.matches) AS found,
       (array_agg(s.id::text ORDER BY s.id DESC) FILTER (WHERE m.matches))[1 : $19::integer] AS ids
FROM slice AS s CROSS JOIN clock
LEFT JOIN running AS c ON c.id = s.id
LEFT JOIN LATERAL (
    SELECT queue, task, enqueued_at, run_at, options FROM {schema}.jobs WHERE $20::boolean AND jobs.id = s.id LIMIT 1
) AS j ON true
LEFT JOIN LATERAL (
    SELECT job_id, state, reason, fingerprint, finished_at FROM {schema}.ended
    WHERE $21::boolean AND ended.job_id = s.id LIMIT 1
) AS e ON true
LEFT JOIN LATERAL (
    SELECT status, next_at, error, finished_at FROM {schema}.history
    WHERE $22::boolean AND history.job_id = s.id ORDER BY number DESC LIMIT 1
) AS a ON true
LEFT JOIN LATERAL (
    SELECT job_id FROM {schema}.waiting WHERE $23::boolean AND waiting.job_id = s.id LIMIT 1
) AS w ON true
CROSS JOIN LATERAL (
    SELECT e.job_id IS NULL AND a.status = 'succeeded' AND a.next_at IS NULL AS succeeded
) AS x
CROSS JOIN LATERAL (
    SELECT ($7::text IS NULL OR CASE $7::text
                WHEN 'waiting' THEN e.job_id IS NULL AND w.job_id IS NOT NULL
                WHEN 'running' THEN e.job_id IS NULL AND w.job_id IS NULL AND c.id IS NOT NULL
                WHEN 'succeeded' THEN coalesce(x.succeeded, false)
                WHEN 'ready' THEN e.job_id IS NULL AND w.job_id IS NULL AND c.id IS NULL AND x.succeeded IS NOT TRUE
                    AND coalesce(a.next_at, s.run_at, j.run_at) <= clock.now
                WHEN 'scheduled' THEN e.job_id IS NULL AND w.job_id IS NULL AND c.id IS NULL
                    AND x.succeeded IS NOT TRUE AND coalesce(a.next_at, s.run_at, j.run_at) > clock.now
                ELSE e.state = $7::text END)
       AND ($8::text IS NULL OR coalesce(s.queue, j.queue) = $8::text)
       AND ($9::text IS NULL OR coalesce(s.task, j.task) = $9::text)
       AND ($10::text IS NULL OR $1::text = 'tag'
            OR EXISTS (SELECT FROM {schema}.tags AS t WHERE t.tag = $10::text AND t.job_id = s.id))
       AND ($11::text IS NULL OR coalesce(s.reason, e.reason) = $11::text)
       AND ($12::text IS NULL OR strpos(coalesce(s.error, left(a.error, 200)), $12::text) > 0)
       AND ($13::text IS NULL OR coalesce(s.fingerprint, e.fingerprint) = $13::text)
       AND ($14::text IS NULL OR $1::text = 'correlation' OR substring(
            coalesce(s.options, j.options) FROM '"correlation_id":("(?:[^"\\]|\\.)*")') COLLATE "C" = $14::text)
       AND ($15::timestamptz IS NULL OR coalesce(s.enqueued_at, j.enqueued_at) >= $15::timestamptz)
       AND ($16::timestamptz IS NULL OR coalesce(s.enqueued_at, j.enqueued_at) < $16::timestamptz)
       AND ($17::timestamptz IS NULL OR coalesce(s.finished_at, e.finished_at,
            CASE WHEN x.succeeded THEN a.finished_at END) >= $17::timestamptz)
       AND ($18::timestamptz IS NULL OR coalesce(s.finished_at, e.finished_at,
            CASE WHEN x.succeeded THEN a.finished_at END) < $18::timestamptz) AS matches
) AS m

-- name: ready_up_to
SELECT count(*) FROM (SELECT FROM {schema}.ready LIMIT $1) AS r

-- name: enqueued_at
SELECT enqueued_at FROM {schema}.jobs WHERE id = $1::text::uuid

-- name: payloads
SELECT id::text, task, payload FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[])
