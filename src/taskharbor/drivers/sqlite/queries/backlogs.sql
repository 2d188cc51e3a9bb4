-- name: holds
SELECT holds FROM taskharbor_backlogs WHERE key = ?

-- name: open
INSERT INTO taskharbor_backlogs (key, holds) VALUES (?, ?)

-- name: close
DELETE FROM taskharbor_backlogs WHERE key = ?

-- name: add_job
INSERT INTO taskharbor_backlog_jobs (key, position, job_id) VALUES (?, ?, ?)

-- name: drop_job
DELETE FROM taskharbor_backlog_jobs WHERE key = ? AND position = ?

-- name: first_job
SELECT position, job_id FROM taskharbor_backlog_jobs WHERE key = ? ORDER BY position LIMIT 1

-- name: keys_between
SELECT key FROM taskharbor_backlogs WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?

-- name: look
-- The next backlogs, and whether there is anything to do about each: its first job waits, has ended or is gone. (A dead
-- one of a backlog that holds is left to `rules.backlogs.step`.)
SELECT b.key, m.job_id IS NULL
    OR EXISTS (SELECT 1 FROM taskharbor_waiting AS w WHERE w.job_id = m.job_id)
    OR EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = m.job_id AND NOT (b.holds AND e.state = 'dead'))
    OR NOT EXISTS (SELECT 1 FROM taskharbor_jobs AS j WHERE j.id = m.job_id)
    OR EXISTS (
        SELECT 1 FROM (
            SELECT a.status, a.next_at FROM taskharbor_history AS a WHERE a.job_id = m.job_id
            ORDER BY a.number DESC LIMIT 1
        ) AS latest WHERE latest.status = 'succeeded' AND latest.next_at IS NULL
    )
FROM (SELECT key, holds FROM taskharbor_backlogs WHERE key > ? ORDER BY key LIMIT ?) AS b
LEFT JOIN taskharbor_backlog_jobs AS m ON m.key = b.key AND m.position = (
    SELECT min(p.position) FROM taskharbor_backlog_jobs AS p WHERE p.key = b.key
)
ORDER BY b.key

-- name: before
SELECT p.job_id FROM taskharbor_backlog_jobs AS m
JOIN taskharbor_backlog_jobs AS p ON p.key = m.key AND p.position < m.position
WHERE m.job_id = ? ORDER BY p.position DESC LIMIT 1

-- name: own
INSERT INTO taskharbor_owners (partition, epoch) VALUES (?, 1)
ON CONFLICT (partition) DO UPDATE SET epoch = epoch + 1 RETURNING epoch

-- name: epoch
SELECT epoch FROM taskharbor_owners WHERE partition = ?
