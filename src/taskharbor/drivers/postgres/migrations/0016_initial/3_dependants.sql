-- Jobs that depend on others: what releases them, cancels them and brings them back.
--
-- These are functions because every statement of a PL/pgSQL function, unlike one single statement, sees what was
-- committed before it began: a search that follows a lock uses a snapshot that is younger than the lock.
--
-- The settings keep the plans from depending on statistics, which are always stale in a queue: every access is by a key
-- or in the order of a key, whatever the statistics say about the number of rows.

-- Cancel those of these jobs that wait, because what they depend on has ended. The caller has locked the jobs' rows.
-- Returns the jobs that it cancelled.
CREATE FUNCTION {schema}.cancel_waiting(p_ids uuid[], p_now timestamptz) RETURNS uuid[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_cancelled uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.waiting AS w WHERE w.job_id = ANY (p_ids) RETURNING w.*
    ), ended AS (
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery, queue, task,
                                    fingerprint, error, code_version)
        SELECT g.job_id, 'cancelled', 'dependency', p_now, g.number, g.attempts, g.delivery, e.*
        FROM gone AS g CROSS JOIN LATERAL {schema}.ending(g.job_id, 'cancelled', 'dependency') AS e
        ON CONFLICT DO NOTHING  -- the job was put back by hand
    ), tallied AS (
        INSERT INTO {schema}.tallies (queue, state, jobs)
        SELECT j.queue, 'cancelled', count(*)
        FROM gone AS g CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.job_id LIMIT 1) AS j
        GROUP BY j.queue
    )
    SELECT array_agg(g.job_id) INTO v_cancelled FROM gone AS g;
    RETURN v_cancelled;
END
$$;

-- Cancel the jobs that wait for one of these, which have ended without success, and that end with it; then the jobs that
-- wait for those, and so on. Returns the jobs that it cancelled.
--
-- It locks every job that may be concerned before it looks at it: another transaction may restore the job at this moment,
-- and the job does not yet show as waiting. The lock waits for that transaction.
CREATE FUNCTION {schema}.cancel_dependants(p_ended uuid[], p_now timestamptz) RETURNS SETOF uuid LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_ended uuid[] := p_ended;
    v_concerned uuid[];
BEGIN
    LOOP
        SELECT array_agg(DISTINCT d.job_id) INTO v_concerned FROM {schema}.dependencies AS d
        WHERE d.member_id = ANY (v_ended) AND d.fatal AND NOT d.done;
        EXIT WHEN v_concerned IS NULL;
        PERFORM FROM {schema}.jobs WHERE id = ANY (v_concerned) ORDER BY id FOR NO KEY UPDATE;
        UPDATE {schema}.dependencies AS d SET late = false
        WHERE d.late AND d.job_id = ANY (v_concerned) AND d.member_id = ANY (v_ended);
        v_ended := {schema}.cancel_waiting(v_concerned, p_now);
        EXIT WHEN v_ended IS NULL;
        RETURN QUERY SELECT unnest(v_ended);
    END LOOP;
END
$$;

-- Let the jobs wait again that were cancelled because of one of these, which have begun a new run, if no other member of
-- theirs has ended without success; then the jobs that were cancelled because of those, and so on.
CREATE FUNCTION {schema}.restore_dependants(p_requeued uuid[], p_now timestamptz) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_again uuid[] := p_requeued;
    v_concerned uuid[];
BEGIN
    LOOP
        SELECT array_agg(DISTINCT d.job_id) INTO v_concerned FROM {schema}.dependencies AS d
        WHERE d.member_id = ANY (v_again)
          AND EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.job_id AND e.reason = 'dependency');
        EXIT WHEN v_concerned IS NULL;
        PERFORM FROM {schema}.jobs WHERE id = ANY (v_concerned) ORDER BY id FOR NO KEY UPDATE;
        WITH gone AS (
            DELETE FROM {schema}.ended AS e
            WHERE e.job_id = ANY (v_concerned) AND e.reason = 'dependency' AND NOT EXISTS (
                SELECT FROM {schema}.dependencies AS o JOIN {schema}.ended AS x ON x.job_id = o.member_id
                WHERE o.job_id = e.job_id AND NOT o.done
            ) RETURNING e.*
        ), changed AS (
            UPDATE {schema}.jobs SET expires_at = NULL FROM gone AS g
            WHERE jobs.id = g.job_id AND jobs.expires_at <= p_now
        ), moved AS (
            UPDATE {schema}.attempts AS a SET next_at = j.run_at, aside = NULL
            FROM gone AS g CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.job_id LIMIT 1) AS j
            WHERE a.job_id = g.job_id
              AND a.number = (SELECT max(o.number) FROM {schema}.attempts AS o WHERE o.job_id = g.job_id)
        ), told AS (
            DELETE FROM {schema}.progress USING gone AS g WHERE progress.job_id = g.job_id
        ), placed AS (
            INSERT INTO {schema}.waiting (job_id, number, attempts, first_number, expires_at, delivery)
            SELECT g.job_id, g.number, 0, g.number + 1,
                   CASE WHEN j.expires_at > p_now THEN j.expires_at END, g.delivery
            FROM gone AS g CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.job_id LIMIT 1) AS j
        ), tallied AS (
            INSERT INTO {schema}.tallies (queue, state, jobs)
            SELECT j.queue, 'cancelled', -count(*)
            FROM gone AS g CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.job_id LIMIT 1) AS j
            GROUP BY j.queue
        )
        SELECT array_agg(g.job_id) INTO v_again FROM gone AS g;
        EXIT WHEN v_again IS NULL;
    END LOOP;
END
$$;

-- The members that a job depends on, in its order. It is a function for the sake of its settings: a cached plan from the
-- time when the table was empty would read all of it for every job.
CREATE FUNCTION {schema}.members_of(p_id uuid) RETURNS text[] LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (SELECT array_agg(d.member_id::text ORDER BY d.position) FROM {schema}.dependencies AS d
            WHERE d.job_id = p_id);
END
$$;

-- The outcome of each member that a job depends on, in the job's order. A success is the latest attempt.
CREATE FUNCTION {schema}.results_of(p_id uuid) RETURNS TABLE (member text, succeeded boolean, result text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT d.member_id::text, coalesce(a.status = 'succeeded' AND a.next_at IS NULL, false),
        CASE WHEN a.status = 'succeeded' AND a.next_at IS NULL THEN a.result END
    FROM (SELECT * FROM {schema}.dependencies WHERE job_id = p_id ORDER BY position) AS d
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.history WHERE history.job_id = d.member_id ORDER BY number DESC LIMIT 1
    ) AS a ON true
    ORDER BY d.position;
END
$$;

-- Move those of these jobs that wait, and whose members are all done, to `ready`. The caller has locked the jobs' rows.
-- Returns the jobs that it released.
CREATE FUNCTION {schema}.release_satisfied(p_ids uuid[]) RETURNS uuid[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_released uuid[];
BEGIN
    WITH released AS (
        DELETE FROM {schema}.waiting AS w WHERE w.job_id = ANY (p_ids)
          AND NOT EXISTS (SELECT FROM {schema}.dependencies AS d WHERE d.job_id = w.job_id AND NOT d.done)
        RETURNING w.*
    ), placed AS (
        INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at,
                                    delivery)
        -- Values that were written by hand are brought into range: the job that has succeeded is not to fail for them.
        SELECT false, j.queue, -least(100, greatest(-100, j.priority)),
               least(greatest(j.run_at, '0001-01-01 00:00:00+00'), '9999-12-31 23:59:59.999999+00'), j.id,
               least(greatest(r.number, 0), 2000000000), least(greatest(r.attempts, 0), 2000000000),
               least(greatest(r.first_number, 0), 2000000001),
               CASE WHEN r.expires_at >= '0001-01-01 00:00:00+00' AND r.expires_at < '10000-01-01 00:00:00+00'
                    THEN r.expires_at END,
               CASE WHEN r.delivery IN ('at_least_once', 'at_most_once') THEN r.delivery END
        FROM released AS r CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = r.job_id LIMIT 1) AS j
        ON CONFLICT DO NOTHING  -- the row was put there by hand
    )
    SELECT array_agg(r.job_id) INTO v_released FROM released AS r;
    RETURN v_released;
END
$$;

-- Mark these members, which have succeeded, as done, and release the jobs that waited for nothing else. Returns each
-- released job with every one of these members that it depends on.
--
-- Two last members that succeed at the same instant meet at the dependant's lock: the statements of the second one begin
-- after it holds the lock, and see what the first one did.
CREATE FUNCTION {schema}.release_dependants(p_members uuid[]) RETURNS TABLE (id text, member text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_dependants uuid[];
    v_released uuid[];
BEGIN
    SELECT array_agg(DISTINCT d.job_id) INTO v_dependants FROM {schema}.dependencies AS d
    WHERE d.member_id = ANY (p_members) AND NOT d.done;
    IF v_dependants IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.jobs AS j WHERE j.id = ANY (v_dependants) ORDER BY j.id FOR NO KEY UPDATE;
    UPDATE {schema}.dependencies AS d SET done = true, late = false WHERE d.member_id = ANY (p_members) AND NOT d.done;
    v_released := {schema}.release_satisfied(v_dependants);
    IF v_released IS NOT NULL THEN
        RETURN QUERY SELECT d.job_id::text, d.member_id::text FROM {schema}.dependencies AS d
        WHERE d.member_id = ANY (p_members) AND d.job_id = ANY (v_released);
    END IF;
END
$$;

-- Sweep over late dependencies: do now what the end of their members asks for. Returns the jobs that it released and those
-- that it cancelled. Without a late dependency it costs one probe of an index.
--
-- A late dependency becomes visible when its transaction commits. A member that ends after that sees it. In doubt is an
-- end that looked for dependants before that and has not committed yet. Such a transaction holds the member's lease (a
-- settle) or the member's row in `jobs` (an operator, its expiry, the end of a member of its own): where either is locked,
-- the dependency stays late, and the next sweep looks again. A lease that is claimed in between settles later than all
-- this. The sweep waits for no lock, except for the rows of the jobs that a cancelled dependant takes along.
CREATE FUNCTION {schema}.catch_up(p_limit integer, p_now timestamptz)
RETURNS TABLE (id text, released boolean) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_seen uuid[];        -- dependants
    v_dependants uuid[];  -- those of them that are locked here
    v_members uuid[];
    v_naming text[];      -- leases that name a member
    v_quiet text[];       -- those of them that are not being settled at this instant
    v_known uuid[];       -- members that are not being ended at this instant
    v_doomed uuid[];
    v_ids uuid[];
BEGIN
    SELECT array_agg(DISTINCT l.job_id), array_agg(DISTINCT l.member_id) INTO v_seen, v_members
    FROM (SELECT * FROM {schema}.dependencies AS d WHERE d.late ORDER BY d.job_id LIMIT p_limit) AS l;
    IF v_seen IS NULL THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(c.token), '{}') INTO v_naming FROM {schema}.claims AS c WHERE c.ids && v_members;
    SELECT coalesce(array_agg(k.token), '{}') INTO v_quiet FROM (
        SELECT l.token FROM {schema}.leases AS l WHERE l.token = ANY (v_naming) FOR SHARE SKIP LOCKED
    ) AS k;
    SELECT coalesce(array_agg(k.id), '{}') INTO v_known FROM (
        SELECT j.id FROM {schema}.jobs AS j WHERE j.id = ANY (v_members) FOR SHARE SKIP LOCKED
    ) AS k;
    SELECT coalesce(array_agg(k.id), '{}') INTO v_dependants FROM (
        SELECT j.id FROM {schema}.jobs AS j WHERE j.id = ANY (v_seen) FOR NO KEY UPDATE SKIP LOCKED
    ) AS k;
    SELECT coalesce(array_agg(m), '{}') INTO v_known FROM unnest(v_known) AS m WHERE NOT EXISTS (
        SELECT FROM {schema}.claims AS c
        WHERE c.token = ANY (v_naming) AND c.token <> ALL (v_quiet) AND c.ids @> ARRAY[m]
    );
    v_now := coalesce(p_now, clock_timestamp());

    UPDATE {schema}.dependencies AS d SET done = true, late = false
    WHERE d.late AND d.job_id = ANY (v_dependants) AND EXISTS (
        SELECT FROM (
            SELECT * FROM {schema}.history AS a WHERE a.job_id = d.member_id ORDER BY a.number DESC LIMIT 1
        ) AS a WHERE a.status = 'succeeded' AND a.next_at IS NULL
    );
    v_ids := {schema}.release_satisfied(v_dependants);
    RETURN QUERY SELECT i::text, true FROM unnest(v_ids) AS i;

    WITH looked AS (
        UPDATE {schema}.dependencies AS d SET late = false
        WHERE d.late AND d.job_id = ANY (v_dependants) AND (
            d.member_id = ANY (v_known) OR EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.member_id)
            OR NOT EXISTS (SELECT FROM {schema}.jobs AS j WHERE j.id = d.member_id)
        )
        RETURNING d.job_id, d.member_id, d.fatal AND NOT d.was_ended AS may_end
    )
    SELECT array_agg(DISTINCT l.job_id) INTO v_doomed FROM looked AS l
    WHERE l.may_end AND EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = l.member_id);
    IF v_doomed IS NOT NULL THEN
        v_ids := {schema}.cancel_waiting(v_doomed, v_now);
        RETURN QUERY SELECT i::text, false FROM unnest(v_ids) AS i;
        RETURN QUERY SELECT c::text, false FROM {schema}.cancel_dependants(v_ids, v_now) AS c;
    END IF;
    -- Rows about jobs that do not exist were written by hand, and must not keep the sweep from the others.
    UPDATE {schema}.dependencies AS d SET late = false
    WHERE d.late AND d.job_id = ANY (v_seen) AND NOT EXISTS (SELECT FROM {schema}.jobs AS j WHERE j.id = d.job_id);
END
$$;
