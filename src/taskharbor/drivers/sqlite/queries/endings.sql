-- name: ending
-- What the row of a dead or cancelled job copies of the job and of its latest attempt.
SELECT j.queue, j.task, a.fingerprint, substr(a.error, 1, 200), a.code_version
FROM taskharbor_jobs AS j
LEFT JOIN taskharbor_attempts AS a
    ON a.job_id = j.id AND a.number = (SELECT max(number) FROM taskharbor_attempts WHERE job_id = j.id)
WHERE j.id = ?

-- name: insert_ended
INSERT INTO taskharbor_ended (job_id, state, reason, finished_at, number, attempts, delivery, raw, queue, task,
                              fingerprint, error, code_version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job_id) DO UPDATE SET
    state = excluded.state, reason = excluded.reason, finished_at = excluded.finished_at, number = excluded.number,
    attempts = excluded.attempts, delivery = excluded.delivery, raw = excluded.raw, queue = excluded.queue,
    task = excluded.task, fingerprint = excluded.fingerprint, error = excluded.error,
    code_version = excluded.code_version

-- name: set_aside
INSERT INTO taskharbor_ended (job_id, state, reason, finished_at, number, attempts, delivery, raw, queue, task,
                              fingerprint, error, code_version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: groups
-- The dead jobs by fingerprint, the largest groups first: their counts are kept, and the rest of each is a few seeks.
WITH largest AS MATERIALIZED (
    SELECT fingerprint, sum(jobs) AS jobs, json_group_array(DISTINCT task) AS tasks,
           json_group_array(DISTINCT nullif(code_version, '')) AS versions
    FROM taskharbor_groups
    WHERE (:fingerprint IS NULL OR fingerprint = :fingerprint) AND (:queue IS NULL OR queue = :queue)
      AND (:task IS NULL OR task = :task)
    GROUP BY fingerprint ORDER BY sum(jobs) DESC, fingerprint LIMIT :limit
), parts AS MATERIALIZED (
    SELECT DISTINCT g.fingerprint, g.queue, g.task FROM largest AS l CROSS JOIN taskharbor_groups AS g
    WHERE g.fingerprint = l.fingerprint AND (:queue IS NULL OR g.queue = :queue) AND (:task IS NULL OR g.task = :task)
), seen AS MATERIALIZED (
    SELECT p.fingerprint,
           min((SELECT min(e.finished_at) FROM taskharbor_ended AS e INDEXED BY taskharbor_ended_seen
                WHERE e.state = 'dead' AND e.fingerprint = p.fingerprint AND e.queue = p.queue AND e.task = p.task))
               AS first_at,
           max((SELECT max(e.finished_at) FROM taskharbor_ended AS e INDEXED BY taskharbor_ended_seen
                WHERE e.state = 'dead' AND e.fingerprint = p.fingerprint AND e.queue = p.queue AND e.task = p.task))
               AS last_at
    FROM parts AS p GROUP BY p.fingerprint
)
SELECT g.fingerprint, g.jobs, v.first_at, v.last_at, g.tasks, g.versions,
       (SELECT e.job_id FROM taskharbor_ended AS e INDEXED BY taskharbor_ended_group
        WHERE e.state = 'dead' AND e.fingerprint = g.fingerprint AND (:queue IS NULL OR e.queue = :queue)
          AND (:task IS NULL OR e.task = :task) ORDER BY e.job_id DESC LIMIT 1)
FROM largest AS g JOIN seen AS v ON v.fingerprint = g.fingerprint
ORDER BY g.jobs DESC, g.fingerprint

-- name: groups_by_filter
-- The same for some of the dead jobs. All that is asked for is in the index, in the order of the groups.
SELECT fingerprint, count(*), min(finished_at), max(finished_at), json_group_array(DISTINCT task),
       json_group_array(DISTINCT code_version), max(job_id)
FROM taskharbor_ended INDEXED BY taskharbor_ended_group
WHERE state = 'dead' AND fingerprint IS NOT NULL
  AND (:fingerprint IS NULL OR fingerprint = :fingerprint) AND (:queue IS NULL OR queue = :queue)
  AND (:task IS NULL OR task = :task) AND (:reason IS NULL OR reason = :reason)
  AND (:finished_after IS NULL OR finished_at >= :finished_after)
  AND (:finished_before IS NULL OR finished_at < :finished_before)
GROUP BY fingerprint ORDER BY count(*) DESC, fingerprint LIMIT :limit

-- name: ended_error
SELECT error FROM taskharbor_ended WHERE job_id = ?
