-- name: places
-- Where each of these jobs is, in one snapshot. The key of a ready row is computed, not searched: a job that
-- has been attempted went on at its latest attempt's next_at, one that has not is at its own run_at. A job
-- that is in no other place is under the lease that names it with the highest number; leases are few, and
-- looked through only for such jobs. The LIMITs keep every access a probe of a key, whatever the statistics.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now
), covered AS MATERIALIZED (
    SELECT l.token, l.worker, l.expires_at AS lease_expires_at, e.id = ANY (l.cancels) AS cancel_requested,
           e.id, e.number, coalesce(e.attempts, 0) AS attempts, coalesce(e.first_number, 1) AS first_number,
           e.run_at, e.due_at, e.expires_at, e.delivery
    FROM {schema}.claims AS c
    JOIN {schema}.leases AS l ON l.token = c.token
    CROSS JOIN LATERAL unnest(c.ids, c.numbers, c.attempts, c.first_numbers, c.run_ats, c.due_ats, c.expires_ats,
                              c.deliveries)
        AS e (id, number, attempts, first_number, run_at, due_at, expires_at, delivery)
    WHERE c.ids && $1::text[]::uuid[] AND e.id = ANY ($1::text[]::uuid[])
)
SELECT clock.now, i.position, j.id::text AS id, j.queue, j.task, j.payload, j.priority::integer AS priority,
       j.run_at, j.enqueued_at, j.expires_at, j.idempotency_key, j.delivery, j.options, j.version, j.meta,
       j.action_id::text AS action_id,
       a.number AS latest_number, a.status AS latest_status, a.attempts AS latest_attempts,
       a.finished_at AS latest_finished_at, a.next_at, a.aside, a.result, a.error, a.fingerprint, a.code_version,
       e.state AS ended_state, e.reason AS ended_reason, e.finished_at AS ended_finished_at,
       e.number AS ended_number, e.attempts AS ended_attempts, e.delivery AS ended_delivery,
       e.raw AS ended_raw,
       r.suspect, r.run_at AS ready_run_at, r.number AS ready_number, r.attempts AS ready_attempts,
       r.first_number AS ready_first_number, r.due_at AS ready_due_at, r.expires_at AS ready_expires_at,
       r.delivery AS ready_delivery,
       w.number AS waiting_number, w.attempts AS waiting_attempts, w.first_number AS waiting_first_number,
       w.expires_at AS waiting_expires_at, w.delivery AS waiting_delivery,
       l.token AS lease_token, l.worker AS lease_worker, l.lease_expires_at, l.cancel_requested,
       l.number AS lease_number, l.attempts AS lease_attempts, l.first_number AS lease_first_number,
       l.run_at AS lease_run_at, l.due_at AS lease_due_at, l.expires_at AS lease_begin_by,
       l.delivery AS lease_delivery,
       {schema}.members_of(j.id) AS depends_on,
       p.fraction, p.message, p.value AS progress_value
FROM clock
CROSS JOIN unnest($1::text[]::uuid[]) WITH ORDINALITY AS i (id, position)
CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = i.id LIMIT 1) AS j
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.history WHERE history.job_id = j.id ORDER BY number DESC LIMIT 1
) AS a ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.ended WHERE ended.job_id = j.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.ready
    WHERE ready.suspect IN (false, true) AND ready.queue = coalesce(j.queue || E'\x1f\x1f' || a.aside, j.queue)
      AND ready.rank = -least(100, greatest(-100, j.priority))
      AND ready.run_at = coalesce(a.next_at, j.run_at) AND ready.id = j.id AND e.job_id IS NULL
    LIMIT 1
) AS r ON true
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.waiting WHERE waiting.job_id = j.id AND e.job_id IS NULL AND r.id IS NULL LIMIT 1
) AS w ON true
LEFT JOIN LATERAL (
    SELECT * FROM covered
    WHERE covered.id = j.id AND e.job_id IS NULL AND r.id IS NULL AND w.job_id IS NULL
      AND (a.status IS DISTINCT FROM 'succeeded' OR a.next_at IS NOT NULL)
    ORDER BY covered.number DESC LIMIT 1
) AS l ON true
LEFT JOIN LATERAL (SELECT * FROM {schema}.progress WHERE progress.job_id = j.id LIMIT 1) AS p ON true
ORDER BY i.position

-- name: history
SELECT number, status, retry_count, token, worker, started_at, finished_at, error, traceback, detail, worker_survived,
       retry_delay, fingerprint, code_version
FROM {schema}.history WHERE job_id = $1::text::uuid ORDER BY number DESC LIMIT $2::bigint

-- name: steps
SELECT name, result, number FROM {schema}.steps WHERE job_id = $1::text::uuid ORDER BY name
