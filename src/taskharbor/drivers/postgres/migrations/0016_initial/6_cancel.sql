-- Cancelling, in one round trip. Why this is a function with settings of its own: see 3_dependants.sql.

-- Cancel those of these jobs that have not begun, and ask those that run to end. Returns what it did to each job, and the
-- state that the job was in. It leaves out a job that moved between two looks, and does nothing to it.
CREATE FUNCTION {schema}.cancel_jobs(p_ids uuid[], p_now timestamptz)
RETURNS TABLE (id text, verdict text, state text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_tokens text[];
    v_now timestamptz;
    v_done uuid[];
    v_was text[];
    v_left uuid[];
    v_running uuid[];
    v_running_under text[];
BEGIN
    -- In the order of all locks: leases by token, then jobs by id.
    SELECT coalesce(array_agg(c.token), '{}') INTO v_tokens FROM {schema}.claims AS c WHERE c.ids && p_ids;
    PERFORM FROM {schema}.leases AS l WHERE l.token = ANY (v_tokens) ORDER BY l.token FOR NO KEY UPDATE;
    PERFORM FROM {schema}.jobs AS j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    -- Delete the rows of their places. A row that is gone already was claimed or released by another transaction.
    WITH keys AS MATERIALIZED (
        SELECT j.id, j.queue, coalesce(j.queue || E'\x1f\x1f' || a.aside, j.queue) AS lane, -least(100, greatest(-100, j.priority)) AS rank, coalesce(a.next_at, j.run_at) AS run_at
        FROM unnest(p_ids) AS i (id)
        CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = i.id LIMIT 1) AS j
        LEFT JOIN LATERAL (
            SELECT * FROM {schema}.attempts WHERE attempts.job_id = i.id ORDER BY number DESC LIMIT 1
        ) AS a ON true
    ), placed AS (
        DELETE FROM {schema}.ready AS r USING keys AS k
        WHERE r.suspect IN (false, true) AND r.queue = k.lane AND r.rank = k.rank AND r.run_at = k.run_at
          AND r.id = k.id
        RETURNING r.id, k.queue, r.number, r.attempts, r.delivery,
                  CASE WHEN r.run_at <= v_now THEN 'ready' ELSE 'scheduled' END AS was
    ), waited AS (
        DELETE FROM {schema}.waiting AS w USING {schema}.jobs AS j
        WHERE w.job_id = ANY (p_ids) AND j.id = w.job_id
        RETURNING w.job_id AS id, j.queue, w.number, w.attempts, w.delivery, 'waiting' AS was
    ), gone AS MATERIALIZED (
        SELECT * FROM placed UNION ALL SELECT * FROM waited
    ), ended AS (
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery, queue, task,
                                    fingerprint, error, code_version)
        SELECT g.id, 'cancelled', 'cancelled', v_now, g.number, g.attempts, g.delivery, e.*
        FROM gone AS g CROSS JOIN LATERAL {schema}.ending(g.id, 'cancelled', 'cancelled') AS e
        ON CONFLICT DO NOTHING
    ), tallied AS (
        INSERT INTO {schema}.tallies (queue, state, jobs)
        SELECT g.queue, 'cancelled', count(*) FROM gone AS g GROUP BY g.queue
    )
    SELECT coalesce(array_agg(g.id), '{}'), array_agg(g.was) INTO v_done, v_was FROM gone AS g;
    RETURN QUERY SELECT d.id::text, 'done', d.was FROM unnest(v_done, v_was) AS d (id, was);
    IF cardinality(v_done) = cardinality(p_ids) THEN
        RETURN;
    END IF;
    SELECT array_agg(i) INTO v_left FROM unnest(p_ids) AS i
    WHERE NOT EXISTS (SELECT FROM unnest(v_done) AS d WHERE d = i);
    -- A job that a locked lease names, and whose attempt has no row, runs under that lease.
    SELECT array_agg(e.id), array_agg(c.token) INTO v_running, v_running_under
    FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
    WHERE c.token = ANY (v_tokens) AND e.id = ANY (v_left)
      AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number);
    IF v_running IS NOT NULL THEN
        UPDATE {schema}.leases AS l SET cancels = l.cancels || ARRAY(
            SELECT c.id FROM unnest(v_running, v_running_under) AS c (id, token)
            WHERE c.token = l.token AND c.id <> ALL (l.cancels)
        )
        WHERE l.token = ANY (v_running_under);
        RETURN QUERY SELECT r::text, 'requested', 'running' FROM unnest(v_running) AS r;
    END IF;
    RETURN QUERY SELECT i::text,
        CASE WHEN j.id IS NULL THEN 'not_found' ELSE 'conflict' END,
        CASE WHEN j.id IS NULL THEN NULL ELSE coalesce(e.state, 'succeeded') END
    FROM unnest(v_left) AS i
    LEFT JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = i LIMIT 1) AS j ON true
    LEFT JOIN LATERAL (SELECT * FROM {schema}.ended WHERE ended.job_id = i LIMIT 1) AS e ON true
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.history WHERE history.job_id = i ORDER BY number DESC LIMIT 1
    ) AS a ON true
    WHERE j.id IS NULL OR e.job_id IS NOT NULL OR (a.status = 'succeeded' AND a.next_at IS NULL);
END
$$;
