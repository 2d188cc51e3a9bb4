-- name: job
SELECT id, queue, task, payload, priority, run_at, enqueued_at, expires_at, idempotency_key, delivery, options,
       version, meta, action_id
FROM taskharbor_jobs WHERE id = ?

-- name: ended
SELECT state, reason, finished_at, number, attempts, delivery, raw FROM taskharbor_ended WHERE job_id = ?

-- name: latest_attempt
SELECT number, status, attempts, finished_at, next_at, result, error, fingerprint, code_version, aside
FROM taskharbor_history WHERE job_id = ? ORDER BY number DESC LIMIT 1

-- name: ready
SELECT number, attempts, first_number, due_at, expires_at, delivery FROM taskharbor_ready
WHERE suspect = ? AND queue = ? AND rank = ? AND run_at = ? AND id = ?

-- name: waiting
SELECT number, attempts, first_number, expires_at, delivery FROM taskharbor_waiting WHERE job_id = ?

-- name: dependencies
SELECT member_id FROM taskharbor_dependencies WHERE job_id = ? ORDER BY position

-- name: progress
SELECT fraction, message, value FROM taskharbor_progress WHERE job_id = ?

-- name: steps
SELECT name, result, number FROM taskharbor_steps WHERE job_id = ? ORDER BY name

-- name: history
SELECT job_id, number, status, retry_count, token, worker, started_at, finished_at, error, traceback, detail,
       worker_survived, retry_delay, fingerprint, code_version
FROM taskharbor_history WHERE job_id = ? ORDER BY number DESC LIMIT ?

-- name: ready_slice_end
-- The key of a slice's last row; none if fewer rows are left.
SELECT suspect, queue, rank, run_at, id FROM taskharbor_ready
WHERE (suspect, queue, rank, run_at, id) > (?, ?, ?, ?, ?)
ORDER BY suspect, queue, rank, run_at, id LIMIT 1 OFFSET ?

-- name: ready_slice
-- The lanes of those that stand aside count in their queue. Grouped by the beginning of the key, lanes need no sorting.
SELECT CASE instr(lane, char(31, 31)) WHEN 0 THEN lane ELSE substr(lane, 1, instr(lane, char(31, 31)) - 1) END AS queue,
       sum(ready), sum(scheduled), min(oldest_at)
FROM (
    SELECT queue AS lane, sum(run_at <= ?1) AS ready, sum(run_at > ?1) AS scheduled,
           min(CASE WHEN run_at <= ?1 THEN run_at END) AS oldest_at
    FROM taskharbor_ready
    WHERE (suspect, queue, rank, run_at, id) > (?2, ?3, ?4, ?5, ?6)
      AND (suspect, queue, rank, run_at, id) <= (?7, ?8, ?9, ?10, ?11)
    GROUP BY suspect, queue
) GROUP BY 1

-- name: waiting_by_queue
SELECT j.queue, count(*) FROM taskharbor_waiting AS w JOIN taskharbor_jobs AS j ON j.id = w.job_id GROUP BY j.queue

-- name: tallies
SELECT queue, state, jobs FROM taskharbor_tallies
