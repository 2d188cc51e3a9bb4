-- name: search
-- Looks at one slice of jobs, newest first: how many there were, where the slice ended, and the ids of those that match,
-- separated by the character 31. ?1 names the table that leads to the jobs: of the branches below only that one runs. What
-- the slice does not tell is looked up by key, and only where the filter asks for it.
WITH running (id) AS MATERIALIZED (
    SELECT value FROM json_each(?20)
)
SELECT count(*), min(id), group_concat(CASE WHEN matches IS NOT NULL THEN id END, char(31)) FROM (
SELECT s.id AS id, CASE WHEN  -- a condition, and not a value, ends with the first part that decides it
      (?7 IS NULL OR CASE ?7
        WHEN 'waiting' THEN EXISTS (SELECT 1 FROM taskharbor_waiting AS w WHERE w.job_id = s.id)
            AND NOT EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = s.id)
        WHEN 'running' THEN s.id IN (SELECT id FROM running)
            AND NOT EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = s.id)
        WHEN 'succeeded' THEN (
                SELECT a.status IS NULL OR a.status = 'succeeded' FROM taskharbor_attempts AS a
                WHERE a.job_id = s.id AND a.next_at IS NULL ORDER BY a.number DESC LIMIT 1)
            AND NOT EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = s.id)
        WHEN 'dead' THEN EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = s.id AND e.state = 'dead')
        WHEN 'cancelled' THEN EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = s.id AND e.state = 'cancelled')
        ELSE (?7 = 'ready') = coalesce(
                (SELECT CASE WHEN a.next_at IS NULL AND coalesce(a.status, 'succeeded') = 'succeeded' THEN NULL
                             ELSE coalesce(a.next_at, s.run_at) <= ?6 END
                 FROM taskharbor_attempts AS a WHERE a.job_id = s.id ORDER BY a.number DESC LIMIT 1),
                CASE WHEN NOT EXISTS (SELECT 1 FROM taskharbor_attempts AS a WHERE a.job_id = s.id)
                     THEN coalesce(s.run_at, (SELECT j.run_at FROM taskharbor_jobs AS j WHERE j.id = s.id)) <= ?6 END)
            AND NOT EXISTS (SELECT 1 FROM taskharbor_ended AS e WHERE e.job_id = s.id)
            AND NOT EXISTS (SELECT 1 FROM taskharbor_waiting AS w WHERE w.job_id = s.id)
            AND s.id NOT IN (SELECT id FROM running)
        END)
  AND (?8 IS NULL OR coalesce(s.queue, (SELECT j.queue FROM taskharbor_jobs AS j WHERE j.id = s.id)) = ?8)
  AND (?9 IS NULL OR coalesce(s.task, (SELECT j.task FROM taskharbor_jobs AS j WHERE j.id = s.id)) = ?9)
  AND (?10 IS NULL OR ?1 = 'tag'
       OR EXISTS (SELECT 1 FROM taskharbor_tags AS t WHERE t.tag = ?10 AND t.job_id = s.id))
  AND (?11 IS NULL OR coalesce(s.reason, (SELECT e.reason FROM taskharbor_ended AS e WHERE e.job_id = s.id)) = ?11)
  AND (?12 IS NULL OR instr(CASE WHEN s.reason IS NULL THEN (
           SELECT substr(a.error, 1, 200) FROM taskharbor_attempts AS a
           WHERE a.job_id = s.id ORDER BY a.number DESC LIMIT 1) ELSE s.error END, ?12) > 0)
  AND (?13 IS NULL OR coalesce(
       s.fingerprint, (SELECT e.fingerprint FROM taskharbor_ended AS e WHERE e.job_id = s.id)) = ?13)
  AND (?14 IS NULL OR ?1 = 'correlation' OR (
       SELECT CASE WHEN json_valid(j.options) THEN json_extract(j.options, '$.correlation_id') END
       FROM taskharbor_jobs AS j WHERE j.id = s.id) = ?14)
  AND ((?15 IS NULL AND ?16 IS NULL) OR coalesce(
       s.enqueued_at, (SELECT j.enqueued_at FROM taskharbor_jobs AS j WHERE j.id = s.id))
       BETWEEN coalesce(?15, {instant_min}) AND coalesce(?16 - 1, {instant_max}))
  AND ((?17 IS NULL AND ?18 IS NULL) OR coalesce(
       s.finished_at, (SELECT e.finished_at FROM taskharbor_ended AS e WHERE e.job_id = s.id),
       (SELECT CASE WHEN a.status = 'succeeded' AND a.next_at IS NULL THEN a.finished_at END
        FROM taskharbor_history AS a WHERE a.job_id = s.id ORDER BY a.number DESC LIMIT 1))
       BETWEEN coalesce(?17, {instant_min}) AND coalesce(?18 - 1, {instant_max}))
  THEN 1 END AS matches
FROM (
    SELECT * FROM (
        SELECT id, queue, task, enqueued_at, run_at, options, NULL AS reason, NULL AS error,
               NULL AS fingerprint, NULL AS finished_at FROM taskharbor_jobs
        WHERE ?1 = 'jobs' AND id < ?2 ORDER BY id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT id, queue, task, enqueued_at, run_at, options, NULL, NULL, NULL, NULL FROM taskharbor_jobs
        WHERE ?1 = 'workflow' AND id > ?4 AND id <= ?5 AND id < ?2 ORDER BY id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT id, queue, task, enqueued_at, run_at, options, NULL, NULL, NULL, NULL FROM taskharbor_jobs
        WHERE ?1 = 'correlation' AND instr(options, '"correlation_id":') > 0
          AND CASE WHEN json_valid(options) THEN json_extract(options, '$.correlation_id') END = ?4
          AND id < ?2 ORDER BY id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT id, queue, task, enqueued_at, run_at, options, NULL, NULL, NULL, NULL FROM taskharbor_jobs
        WHERE ?1 = 'ids' AND id IN (SELECT value FROM json_each(?19)) AND id < ?2 ORDER BY id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM taskharbor_tags
        WHERE ?1 = 'tag' AND tag = ?4 AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM taskharbor_ended
        WHERE ?1 = 'ended' AND state = ?5 AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM taskharbor_ended
        WHERE ?1 = 'ended_queue' AND state = ?5 AND queue = ?4 AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM taskharbor_ended
        WHERE ?1 = 'ended_task' AND state = ?5 AND task = ?4 AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT job_id, queue, task, NULL, NULL, NULL, reason, error, fingerprint, finished_at FROM taskharbor_ended
        WHERE ?1 = 'ended_group' AND state = ?5 AND fingerprint = ?4 AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM taskharbor_waiting
        WHERE ?1 = 'waiting' AND job_id < ?2 ORDER BY job_id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        SELECT id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM running
        WHERE ?1 = 'running' AND id < ?2 ORDER BY id DESC LIMIT ?3)
    UNION ALL
    SELECT * FROM (
        -- The row's queue is the lane of one that stands aside.
        SELECT id, iif(instr(queue, char(31, 31)), substr(queue, 1, instr(queue, char(31, 31)) - 1), queue),
               NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM taskharbor_ready
        WHERE ?1 = 'ready' AND (run_at <= ?6) = (?4 = 'ready') AND id < ?2
          AND (?8 IS NULL OR queue = ?8 OR queue BETWEEN ?8 || char(31, 31) AND ?8 || char(31, 32))
        ORDER BY id DESC LIMIT ?3)
) AS s
)

-- name: ready_up_to
SELECT count(*) FROM (SELECT 1 FROM taskharbor_ready LIMIT ?)

-- name: enqueued_at
SELECT enqueued_at FROM taskharbor_jobs WHERE id = ?

-- name: payloads
SELECT id, task, payload FROM taskharbor_jobs WHERE id IN (SELECT value FROM json_each(?))
