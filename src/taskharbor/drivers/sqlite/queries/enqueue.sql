-- name: insert_job
-- Conflicts on the id and on (queue, key) alike: either way the existing job is the answer.
INSERT INTO taskharbor_jobs
    (id, queue, task, payload, priority, run_at, enqueued_at, expires_at, idempotency_key, delivery, options,
     meta)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: insert_ready
-- A row that a hand has put there says nothing against what is known here.
INSERT OR REPLACE INTO taskharbor_ready
    (suspect, queue, rank, run_at, id, number, attempts, first_number, due_at, expires_at, delivery)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_alike_jobs
-- Many that differ in their ids and payloads alone: whatever they share is bound once for all of them.
INSERT INTO taskharbor_jobs
    (queue, task, priority, run_at, enqueued_at, expires_at, delivery, options, meta, id, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?, ?)
ON CONFLICT DO NOTHING

-- name: insert_alike_ready
INSERT INTO taskharbor_ready
    (queue, rank, run_at, expires_at, delivery, id, suspect, number, attempts, first_number)
VALUES (?1, ?2, ?3, ?4, ?5, ?, 0, 0, 0, 1)

-- name: insert_alike_messages
-- Messages of a log differ in where they stand, too, which is in their metas.
INSERT INTO taskharbor_jobs
    (queue, task, priority, run_at, enqueued_at, expires_at, delivery, options, id, payload, meta)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?, ?, ?)

-- name: begin_offset
INSERT INTO taskharbor_ingested (log, partition, next, moved_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: move_offset
UPDATE taskharbor_ingested SET next = ?, moved_at = ? WHERE log = ? AND partition = ? AND next = ?

-- name: ingested
SELECT next FROM taskharbor_ingested WHERE log = ? AND partition = ?

-- name: job_by_key
SELECT id FROM taskharbor_jobs WHERE queue = ? AND idempotency_key = ?

-- name: job_exists
SELECT EXISTS (SELECT 1 FROM taskharbor_jobs WHERE id = ?)

-- name: insert_tag
INSERT INTO taskharbor_tags (tag, job_id) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: insert_dependency
INSERT INTO taskharbor_dependencies (job_id, member_id, position, done, fatal) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: insert_waiting
INSERT INTO taskharbor_waiting (job_id, number, attempts, first_number, expires_at, delivery)
VALUES (?, ?, ?, ?, ?, ?)

-- name: has_succeeded
-- The latest attempt of a job that succeeded for good has no next_at.
SELECT EXISTS (
    SELECT 1 FROM taskharbor_history WHERE job_id = ? AND status = 'succeeded' AND next_at IS NULL
)

-- name: keys_between
SELECT idempotency_key FROM taskharbor_jobs
WHERE queue = ? AND idempotency_key BETWEEN ? AND ? ORDER BY idempotency_key LIMIT ?
