-- name: count_due
-- How many are due of one queue and priority, up to the limit: a range of the primary key.
SELECT count(*) FROM (
    SELECT 1 FROM taskharbor_ready WHERE suspect = ? AND queue = ? AND rank = ? AND run_at <= ? LIMIT ?
)

-- name: count_earlier
-- How many stand before a place of their own priority.
SELECT count(*) FROM (
    SELECT 1 FROM taskharbor_ready
    WHERE suspect = ? AND queue = ? AND rank = ? AND (run_at, id) < (?, ?) LIMIT ?
)

-- name: waits_for
SELECT d.member_id FROM taskharbor_waiting AS w CROSS JOIN taskharbor_dependencies AS d ON d.job_id = w.job_id
WHERE w.job_id = ? AND d.done = 0 ORDER BY d.position LIMIT ?
