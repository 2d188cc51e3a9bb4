-- name: insert_settle
INSERT INTO taskharbor_settles (token, finished_at, attempts) VALUES (?, ?, ?)

-- name: insert_settled
INSERT INTO taskharbor_settled (settle_id, ids) VALUES (?, ?)

-- name: insert_bare_success
-- The plain success, nearly every settle there is: only what it needs.
INSERT INTO taskharbor_attempts (settle_id, job_id, number, started_at) VALUES (?1, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: insert_shared_success
INSERT INTO taskharbor_attempts (settle_id, job_id, number, started_at, retry_count, attempts, result)
VALUES (?1, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: insert_success
-- Of few that are settled together: what they share would take as much room in a row of its own.
INSERT INTO taskharbor_attempts
    (token, finished_at, job_id, number, started_at, retry_count, attempts, result, status)
VALUES (?1, ?2, ?, ?, ?, ?, ?, ?, 'succeeded')
ON CONFLICT DO NOTHING

-- name: insert_attempt
INSERT INTO taskharbor_attempts
    (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at, next_at, retry_delay,
     result, error, traceback, detail, worker_survived, origin, fingerprint, code_version, aside)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: recorded
SELECT token, status FROM taskharbor_history WHERE job_id = ? AND number = ?

-- name: dependants_of
-- What the end of a recorded attempt has released (1) or cancelled (0), as far as it is still so.
WITH RECURSIVE cancelled (job_id, ended_at) AS (
    SELECT e.job_id, e.finished_at FROM taskharbor_history AS a JOIN taskharbor_ended AS e USING (job_id, number, finished_at)
    WHERE a.job_id = :job_id AND a.number = :number
    UNION
    SELECT d.job_id, c.ended_at FROM cancelled AS c
    JOIN taskharbor_dependencies AS d ON d.member_id = c.job_id
    JOIN taskharbor_ended AS e ON e.job_id = d.job_id AND e.reason = 'dependency' AND e.finished_at = c.ended_at
)
SELECT job_id, 0 FROM cancelled WHERE job_id <> :job_id
UNION ALL
SELECT d.job_id, 1 FROM taskharbor_history AS a
JOIN taskharbor_dependencies AS d ON d.member_id = a.job_id
JOIN taskharbor_jobs AS j ON j.id = d.job_id AND j.enqueued_at <= a.finished_at
WHERE a.job_id = :job_id AND a.number = :number AND a.status = 'succeeded' AND a.next_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = d.job_id AND e.finished_at <= a.finished_at)
  AND NOT EXISTS (
      SELECT 1 FROM taskharbor_dependencies AS o WHERE o.job_id = d.job_id AND (o.done = 0 OR EXISTS (
          SELECT 1 FROM taskharbor_history AS x
          WHERE x.job_id = o.member_id AND x.status = 'succeeded' AND x.next_at IS NULL AND x.finished_at > a.finished_at
      ))
  )

-- name: close_some
UPDATE taskharbor_leases SET open = open - ? WHERE token = ?

-- name: delete_lease
DELETE FROM taskharbor_leases WHERE token = ?

-- name: delete_entries
DELETE FROM taskharbor_claims WHERE token = ?

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
SELECT queue, priority, run_at, version, delivery, task FROM taskharbor_jobs WHERE id = ?

-- name: waiting
SELECT number, attempts, first_number, expires_at, delivery FROM taskharbor_waiting WHERE job_id = ?

-- name: delete_waiting
DELETE FROM taskharbor_waiting WHERE job_id = ?

-- name: put_progress
INSERT INTO taskharbor_progress (job_id, fraction, message, value) VALUES (?, ?, ?, ?)
ON CONFLICT (job_id) DO UPDATE SET fraction = excluded.fraction, message = excluded.message, value = excluded.value

-- name: put_step
INSERT INTO taskharbor_steps (job_id, name, result, number) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: delete_progress
DELETE FROM taskharbor_progress WHERE job_id = ?

-- name: copy_attempts
-- The history of one run, for the copy of it that goes to the dead-letter queue.
INSERT INTO taskharbor_attempts
    (job_id, number, status, retry_count, attempts, token, worker, started_at, finished_at, retry_delay, error,
     traceback, detail, worker_survived, fingerprint, code_version)
SELECT ?2, number, status, retry_count, attempts, token, worker, started_at, finished_at, retry_delay, error,
       traceback, detail, worker_survived, fingerprint, code_version
FROM taskharbor_history WHERE job_id = ?1 AND number >= ?3

-- name: delete_steps
DELETE FROM taskharbor_steps WHERE job_id = ?
