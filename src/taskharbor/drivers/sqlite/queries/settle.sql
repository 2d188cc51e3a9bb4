-- name: insert_success
-- The plain success, nearly every settle there is: only what it needs.
INSERT INTO taskharbor_attempts
    (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at, result)
VALUES (?, ?, 'succeeded', ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: insert_attempt
INSERT INTO taskharbor_attempts
    (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at, next_at, result,
     error, traceback, detail, worker_survived, origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: recorded
SELECT token, status FROM taskharbor_attempts WHERE job_id = ? AND number = ?

-- name: close_some
UPDATE taskharbor_leases SET open = open - ? WHERE token = ?

-- name: delete_lease
DELETE FROM taskharbor_leases WHERE token = ?

-- name: delete_entries
DELETE FROM taskharbor_claims WHERE token = ?

-- name: insert_ended
INSERT INTO taskharbor_ended (job_id, state, reason, finished_at, number, attempts, delivery)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job_id) DO UPDATE SET
    state = excluded.state, reason = excluded.reason, finished_at = excluded.finished_at, number = excluded.number,
    attempts = excluded.attempts, delivery = excluded.delivery, raw = NULL

-- name: add_to_tally
INSERT INTO taskharbor_tallies (queue, state, jobs) VALUES (?, ?, ?)
ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs

-- name: has_dependants
-- A dependant that was cancelled counts as well: it may be requeued, and must find what has succeeded.
SELECT EXISTS (SELECT 1 FROM taskharbor_dependencies INDEXED BY taskharbor_dependencies_unmet WHERE done = 0)

-- name: mark_member_done
UPDATE taskharbor_dependencies SET done = 1 WHERE member_id = ? AND done = 0

-- name: satisfied_dependants
SELECT w.job_id FROM taskharbor_dependencies AS d JOIN taskharbor_waiting AS w ON w.job_id = d.job_id
WHERE d.member_id = ?
  AND NOT EXISTS (SELECT 1 FROM taskharbor_dependencies AS o INDEXED BY taskharbor_dependencies_unmet
                  WHERE o.job_id = d.job_id AND o.done = 0)
ORDER BY w.job_id

-- name: job_place
SELECT queue, priority, run_at, version, delivery FROM taskharbor_jobs WHERE id = ?

-- name: waiting
SELECT number, attempts, first_number, expires_at, delivery FROM taskharbor_waiting WHERE job_id = ?

-- name: delete_waiting
DELETE FROM taskharbor_waiting WHERE job_id = ?

-- name: put_progress
INSERT INTO taskharbor_progress (job_id, fraction, message) VALUES (?, ?, ?)
ON CONFLICT (job_id) DO UPDATE SET fraction = excluded.fraction, message = excluded.message

-- name: put_step
INSERT INTO taskharbor_steps (job_id, name, result, number) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: delete_progress
DELETE FROM taskharbor_progress WHERE job_id = ?

-- name: copy_attempts
-- The history of one run, for the copy of it that goes to the dead-letter queue.
INSERT INTO taskharbor_attempts
    (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at, error, traceback, detail,
     worker_survived)
SELECT ?2, number, status, retry_count, attempts, token, worker, started_at, finished_at, error, traceback, detail,
       worker_survived
FROM taskharbor_attempts WHERE job_id = ?1 AND number >= ?3

-- name: delete_steps
DELETE FROM taskharbor_steps WHERE job_id = ?
