-- name: delete_ready
DELETE FROM taskharbor_ready WHERE suspect = ? AND queue = ? AND rank = ? AND run_at = ? AND id = ?

-- name: delete_ended
DELETE FROM taskharbor_ended WHERE job_id = ?

-- name: move_latest_attempt
-- The key of the ready row is computed from here; a move of the job updates it.
UPDATE taskharbor_attempts SET next_at = ?2, aside = ?3
WHERE job_id = ?1 AND number = (SELECT max(number) FROM taskharbor_attempts WHERE job_id = ?1)

-- name: update_job
UPDATE taskharbor_jobs
SET queue = ?, task = ?, delivery = ?, priority = ?, run_at = ?, payload = ?, expires_at = ?, options = ?,
    version = ?, meta = ?
WHERE id = ?

-- name: cancelled_occurrence
-- No worker had claimed the job: the operator writes its row of history.
INSERT INTO taskharbor_attempts
    (job_id, number, status, retry_count, attempts, token, finished_at, next_at, detail)
VALUES (?, ?, 'cancelled', ?, ?, ?, ?, ?, ?)

-- name: prunable_history
-- Of one job: what is beyond the newest ones or too old, of the runs before the present one, never the latest.
SELECT job_id, number FROM taskharbor_history
WHERE job_id = ?1 AND number < ?2
  AND number < (SELECT max(number) FROM taskharbor_attempts WHERE job_id = ?1)
  AND (finished_at < ?4 OR number <= (
      SELECT number FROM taskharbor_attempts WHERE job_id = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?3))

-- name: settle_of
SELECT settle_id FROM taskharbor_attempts WHERE job_id = ? AND number = ? AND settle_id IS NOT NULL

-- name: delete_attempt
DELETE FROM taskharbor_attempts WHERE job_id = ? AND number = ?

-- name: run_has_begun
SELECT EXISTS (
    SELECT 1 FROM taskharbor_history
    WHERE job_id = ? AND number >= ? AND (started_at IS NOT NULL OR status = 'lost')
)

-- name: dependants
SELECT job_id FROM taskharbor_dependencies WHERE member_id = ?

-- name: unfinished_members
SELECT EXISTS (SELECT 1 FROM taskharbor_dependencies WHERE job_id = ? AND done = 0)

-- name: delete_job
DELETE FROM taskharbor_jobs WHERE id = ?

-- name: delete_attempts
DELETE FROM taskharbor_attempts WHERE job_id = ?

-- name: settles_of
SELECT settle_id FROM taskharbor_attempts WHERE job_id = ? AND settle_id IS NOT NULL

-- name: count_off_settle
UPDATE taskharbor_settles SET attempts = attempts - ? WHERE id = ?

-- name: settle_attempts
SELECT attempts FROM taskharbor_settles WHERE id = ?

-- name: delete_settle
DELETE FROM taskharbor_settles WHERE id = ?

-- name: delete_settled
DELETE FROM taskharbor_settled WHERE settle_id = ?

-- name: shorten_settled
-- Pruning has taken most of its jobs, and would look for all of them again.
UPDATE taskharbor_settled SET ids = (
    SELECT json_group_array(listed.value) FROM json_each(ids) AS listed
    CROSS JOIN taskharbor_attempts AS a ON a.job_id = listed.value
    WHERE a.settle_id = taskharbor_settled.settle_id
) WHERE settle_id = ?

-- name: delete_dependencies
DELETE FROM taskharbor_dependencies WHERE job_id = ?

-- name: delete_tag
DELETE FROM taskharbor_tags WHERE tag = ? AND job_id = ?

-- name: overdue_ready
SELECT suspect, queue, rank, run_at, id, number, attempts, delivery, expires_at FROM taskharbor_ready
WHERE expires_at IS NOT NULL AND expires_at <= ? ORDER BY expires_at, id LIMIT ?

-- name: overdue_waiting
SELECT w.job_id, j.queue, w.number, w.attempts, w.delivery, w.expires_at
FROM taskharbor_waiting AS w JOIN taskharbor_jobs AS j ON j.id = w.job_id
WHERE w.expires_at IS NOT NULL AND w.expires_at <= ? ORDER BY w.expires_at, w.job_id LIMIT ?

-- name: prunable_settles
SELECT finished_at, id FROM taskharbor_settles
WHERE finished_at < ? AND (finished_at, id) > (?, ?)
ORDER BY finished_at, id LIMIT ?

-- name: prunable_settled
-- The jobs of a settle that have not been deleted or begun again since.
SELECT a.job_id FROM taskharbor_settled AS s CROSS JOIN json_each(s.ids) AS listed
CROSS JOIN taskharbor_attempts AS a ON a.job_id = listed.value
WHERE s.settle_id = ?1 AND a.settle_id = ?1 AND a.next_at IS NULL

-- name: prunable_succeeded
SELECT finished_at, job_id FROM taskharbor_attempts
WHERE status = 'succeeded' AND next_at IS NULL AND finished_at < ?
  AND (finished_at, job_id) > (?, ?)
ORDER BY finished_at, job_id LIMIT ?

-- name: prunable_ended
SELECT finished_at, job_id FROM taskharbor_ended WHERE state = ? AND finished_at < ?
  AND (finished_at, job_id) > (?, ?)
ORDER BY finished_at, job_id LIMIT ?
