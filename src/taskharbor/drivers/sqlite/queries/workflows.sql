-- name: insert_workflow
INSERT INTO taskharbor_workflows (id, last_id, total, enqueued_at, idempotency_key, about) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: known_workflow
SELECT id, enqueued_at FROM taskharbor_workflows WHERE id = ?1 OR idempotency_key = ?2

-- name: workflow
SELECT id, last_id, total, enqueued_at, idempotency_key, about FROM taskharbor_workflows WHERE id = ?

-- name: workflows
SELECT id, last_id, total, enqueued_at, idempotency_key, about FROM taskharbor_workflows
WHERE id < ? ORDER BY id DESC LIMIT ?

-- name: workflow_around
-- The only one whose range could hold this id.
SELECT id, last_id FROM taskharbor_workflows WHERE id < ? ORDER BY id DESC LIMIT 1

-- name: numbers
-- How many of a range of jobs are kept, succeeded, dead, cancelled, waiting.
SELECT (SELECT count(*) FROM taskharbor_jobs WHERE id > ?1 AND id <= ?2),
       (SELECT count(*) FROM taskharbor_history
        WHERE job_id > ?1 AND job_id <= ?2 AND status = 'succeeded' AND next_at IS NULL),
       (SELECT count(*) FROM taskharbor_ended WHERE job_id > ?1 AND job_id <= ?2 AND state = 'dead'),
       (SELECT count(*) FROM taskharbor_ended WHERE job_id > ?1 AND job_id <= ?2 AND state = 'cancelled'),
       (SELECT count(*) FROM taskharbor_waiting WHERE job_id > ?1 AND job_id <= ?2)

-- name: results
SELECT d.member_id, a.job_id IS NOT NULL, a.result
FROM taskharbor_dependencies AS d
LEFT JOIN taskharbor_history AS a ON a.job_id = d.member_id AND a.status = 'succeeded' AND a.next_at IS NULL
WHERE d.job_id = ? ORDER BY d.position

-- name: results_left_out
SELECT d.member_id, a.job_id IS NOT NULL
FROM taskharbor_dependencies AS d
LEFT JOIN taskharbor_history AS a ON a.job_id = d.member_id AND a.status = 'succeeded' AND a.next_at IS NULL
WHERE d.job_id = ? ORDER BY d.position

-- name: doomed_dependants
-- The jobs that wait for this one and end with it.
SELECT d.job_id, w.number, w.attempts, w.delivery, j.queue
FROM taskharbor_dependencies AS d
JOIN taskharbor_waiting AS w ON w.job_id = d.job_id
JOIN taskharbor_jobs AS j ON j.id = d.job_id
WHERE d.member_id = ? AND d.done = 0 AND d.fatal = 1

-- name: restorable_dependants
-- The jobs that were cancelled because of this one, and wait for none that has ended without success.
SELECT d.job_id FROM taskharbor_dependencies AS d
JOIN taskharbor_ended AS e ON e.job_id = d.job_id AND e.reason = 'dependency'
WHERE d.member_id = ? AND NOT EXISTS (
    SELECT 1 FROM taskharbor_dependencies AS o JOIN taskharbor_ended AS x ON x.job_id = o.member_id
    WHERE o.job_id = d.job_id AND o.done = 0
)

-- name: forgettable_workflows
-- Of which nothing has to stay: no job that has not succeeded, died or been cancelled long enough ago.
SELECT w.id FROM taskharbor_workflows AS w
WHERE w.enqueued_at < ?1 AND CASE w.total
    WHEN 0 THEN w.enqueued_at < ?2
    ELSE NOT EXISTS (
        SELECT 1 FROM taskharbor_jobs AS j WHERE j.id > w.id AND j.id <= w.last_id
          AND NOT EXISTS (SELECT 1 FROM taskharbor_history AS a WHERE a.job_id = j.id
                          AND a.status = 'succeeded' AND a.next_at IS NULL AND a.finished_at < ?2)
          AND NOT EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = j.id
                          AND e.finished_at < CASE e.state WHEN 'dead' THEN ?3 ELSE ?4 END)
    ) END
ORDER BY w.id LIMIT ?5

-- name: forget_workflow
DELETE FROM taskharbor_workflows WHERE id = ?
