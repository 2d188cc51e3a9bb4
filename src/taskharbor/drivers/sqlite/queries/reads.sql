-- name: job
SELECT id, queue, task, payload, priority, run_at, enqueued_at, expires_at, idempotency_key, delivery, options,
       version, meta
FROM taskharbor_jobs WHERE id = ?

-- name: ended
SELECT state, reason, finished_at, number, attempts, delivery, raw FROM taskharbor_ended WHERE job_id = ?

-- name: latest_attempt
SELECT number, status, attempts, finished_at, next_at, result, error
FROM taskharbor_history WHERE job_id = ? ORDER BY number DESC LIMIT 1

-- name: ready
SELECT number, attempts, first_number, due_at, expires_at, delivery FROM taskharbor_ready
WHERE suspect = ? AND queue = ? AND rank = ? AND run_at = ? AND id = ?

-- name: waiting
SELECT number, attempts, first_number, expires_at, delivery FROM taskharbor_waiting WHERE job_id = ?

-- name: dependencies
SELECT member_id FROM taskharbor_dependencies WHERE job_id = ? ORDER BY position

-- name: progress
SELECT fraction, message FROM taskharbor_progress WHERE job_id = ?

-- name: steps
SELECT name, result, number FROM taskharbor_steps WHERE job_id = ? ORDER BY name

-- name: history
SELECT job_id, number, status, retry_count, token, worker, started_at, finished_at, error, traceback, detail,
       worker_survived, retry_delay
FROM taskharbor_history WHERE job_id = ? ORDER BY number DESC LIMIT ?

-- name: ids
SELECT id FROM taskharbor_jobs WHERE id < ? ORDER BY id DESC LIMIT ?

-- name: ids_by_tag
SELECT job_id FROM taskharbor_tags WHERE tag = ? AND job_id < ? ORDER BY job_id DESC LIMIT ?

-- name: ids_ended
SELECT job_id FROM taskharbor_ended WHERE state = ? AND job_id < ? ORDER BY job_id DESC LIMIT ?

-- name: ids_waiting
SELECT job_id FROM taskharbor_waiting WHERE job_id < ? ORDER BY job_id DESC LIMIT ?

-- name: ids_ready
-- Not in the order of the key: a scan with a bounded sorter, which an operator's list can afford.
SELECT id FROM taskharbor_ready
WHERE run_at <= ?1 AND (?2 IS NULL OR queue = ?2) AND id < ?3 ORDER BY id DESC LIMIT ?4

-- name: ids_scheduled
SELECT id FROM taskharbor_ready
WHERE run_at > ?1 AND (?2 IS NULL OR queue = ?2) AND id < ?3 ORDER BY id DESC LIMIT ?4

-- name: ready_by_queue
SELECT queue, sum(run_at <= ?1), sum(run_at > ?1), min(CASE WHEN run_at <= ?1 THEN run_at END)
FROM taskharbor_ready GROUP BY queue

-- name: waiting_by_queue
SELECT j.queue, count(*) FROM taskharbor_waiting AS w JOIN taskharbor_jobs AS j ON j.id = w.job_id GROUP BY j.queue

-- name: tallies
SELECT queue, state, jobs FROM taskharbor_tallies
