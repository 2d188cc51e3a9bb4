-- name: add_to_action
UPDATE taskharbor_actions SET count = count + ? WHERE id = ?

-- name: insert_action
INSERT INTO taskharbor_actions (id, at, verb, actor, job_id, subject, filter, details, count)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: trim_actions
-- Those beyond the newest, the oldest first; another action goes on where this one ends.
DELETE FROM taskharbor_actions WHERE number IN (
    SELECT number FROM taskharbor_actions
    WHERE number <= (SELECT number FROM taskharbor_actions ORDER BY number DESC LIMIT 1 OFFSET ?1)
    ORDER BY number LIMIT ?2)

-- name: mark_job
UPDATE taskharbor_jobs SET action_id = ? WHERE id = ?

-- name: pause
INSERT INTO taskharbor_paused (queue, paused_by, paused_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM taskharbor_paused WHERE queue = ?

-- name: pauses
SELECT queue, paused_by, paused_at FROM taskharbor_paused ORDER BY queue

-- name: number_of_action
SELECT number FROM taskharbor_actions WHERE id = ?

-- name: latest_action
SELECT action_id FROM taskharbor_jobs WHERE id = ?

-- name: get_action
SELECT id, at, verb, actor, job_id, subject, filter, details, count FROM taskharbor_actions WHERE id = ?

-- name: list_actions
-- A scan of at most the ten thousand that are kept, from the latest on.
SELECT id, at, verb, actor, job_id, subject, filter, details, count FROM taskharbor_actions
WHERE (:below IS NULL OR number < :below)
  AND (:actor IS NULL OR actor = :actor)
  AND (:verb IS NULL OR verb = :verb)
  AND (:job IS NULL OR job_id = :job OR id = :latest)
  AND (:after IS NULL OR at >= :after)
  AND (:before IS NULL OR at < :before)
  AND (:hidden IS NULL OR verb NOT GLOB :hidden)
ORDER BY number DESC LIMIT :limit
