-- Workflows: jobs that are stored, kept and pruned as a whole.

-- The ids of a workflow's jobs follow its own up to last_id: whom a job belongs to is one probe of this key, and
-- what belongs to a workflow is one range of any key that begins with a job's id. No row pays for being a member.
CREATE TABLE {schema}.workflows (
    id              uuid PRIMARY KEY,
    last_id         uuid NOT NULL,       -- of its jobs; its own, if it has none
    total           integer NOT NULL,
    enqueued_at     timestamptz NOT NULL,
    idempotency_key text COLLATE "C" UNIQUE,
    about           text NOT NULL,
    CONSTRAINT workflows_jobs CHECK (total >= 0 AND last_id >= id),
    CONSTRAINT workflows_instants CHECK (
        enqueued_at >= '0001-01-01 00:00:00+00' AND enqueued_at < '10000-01-01 00:00:00+00')
);

-- Whether the job is cancelled when this member of it ends without success.
ALTER TABLE {schema}.dependencies ADD COLUMN fatal boolean NOT NULL DEFAULT false;

-- A producer's transaction may stay open while the jobs that its new ones depend on go on and end; those that end then
-- cannot see who will wait for them. So a dependency on a job that was stored before is late until a worker's sweep
-- (`catch_up`) has looked at it one time: was_ended says whether the member had ended without success when the
-- dependant was added, which then waits for a retry, as ever.
ALTER TABLE {schema}.dependencies
    ADD COLUMN late boolean NOT NULL DEFAULT false, ADD COLUMN was_ended boolean NOT NULL DEFAULT false;
CREATE INDEX dependencies_late ON {schema}.dependencies (job_id) WHERE late;

-- What a job still waits for: whether anything, without looking at the thousands it waits for no more. (Whom an
-- unfinished job depends on is found by dependencies_member.)
CREATE INDEX dependencies_unmet ON {schema}.dependencies (job_id) WHERE NOT done;
DROP INDEX {schema}.dependencies_open;

-- Every success of a member changes a row of it.
ALTER TABLE {schema}.dependencies SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- Those of these that wait, and whose jobs' rows the caller has locked, are cancelled with what they depend on. Gives
-- those that were.
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
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery)
        SELECT g.job_id, 'cancelled', 'dependency', p_now, g.number, g.attempts, g.delivery FROM gone AS g
        ON CONFLICT DO NOTHING  -- a hand had put it back
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

-- These have ended without success: whoever waits for one of them and ends with it is cancelled, and so on. Gives
-- those that were.
--
-- Who could be concerned is locked before it is looked at: somebody who is restored at this moment, and cannot be
-- seen waiting yet, is waited for.
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

-- These have begun a new run: whoever was cancelled because of one of them, and has nobody else among those it waits
-- for who has ended without success, waits again, and so on.
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
            UPDATE {schema}.attempts AS a SET next_at = j.run_at
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

-- Whom a job depends on, in its order. A function for the sake of its settings: a plan that was made while the
-- table was empty, and is still kept, would read all of it for every job.
CREATE FUNCTION {schema}.members_of(p_id uuid) RETURNS text[] LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (SELECT array_agg(d.member_id::text ORDER BY d.position) FROM {schema}.dependencies AS d
            WHERE d.job_id = p_id);
END
$$;

-- What each of those that a job depends on has come to, in the job's order. A success is the latest attempt.
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
        SELECT * FROM {schema}.attempts WHERE attempts.job_id = d.member_id ORDER BY number DESC LIMIT 1
    ) AS a ON true
    ORDER BY d.position;
END
$$;

-- Those of these that wait, and for no job any more, go into the order; the caller has locked their jobs' rows. Gives
-- them.
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
        -- As far as it can be read: whatever a hand wrote there is no fault of the job that has succeeded.
        SELECT false, j.queue, -least(100, greatest(-100, j.priority)),
               least(greatest(j.run_at, '0001-01-01 00:00:00+00'), '9999-12-31 00:00:00+00'), j.id,
               least(greatest(r.number, 0), 2000000000), least(greatest(r.attempts, 0), 2000000000),
               least(greatest(r.first_number, 0), 2000000001),
               CASE WHEN r.expires_at >= '0001-01-01 00:00:00+00' AND r.expires_at < '10000-01-01 00:00:00+00'
                    THEN r.expires_at END,
               CASE WHEN r.delivery IN ('at_least_once', 'at_most_once') THEN r.delivery END
        FROM released AS r CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = r.job_id LIMIT 1) AS j
        ON CONFLICT DO NOTHING  -- a hand had put it there
    )
    SELECT array_agg(r.job_id) INTO v_released FROM released AS r;
    RETURN v_released;
END
$$;

-- These have succeeded: those for whom one of them was the last to wait for go into the order. Gives them, each with
-- every one of these that it depends on.
--
-- Two members that are the last ones at the same instant meet at the dependant's lock: the second one, whose
-- statements begin after it is held, sees what the first one did.
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

-- As settle_successes, with the dependants that the successes release. The first row has the store's time and nobody;
-- no row at all, and nothing done, if anything about the batch is not plain.
CREATE FUNCTION {schema}.settle_and_release(
    p_tokens text[], p_counts integer[], p_ids uuid[], p_numbers integer[], p_tokens_at integer[],
    p_retry_counts integer[], p_attempts integer[], p_started_ats timestamptz[], p_results text[],
    p_tally_queues text[], p_tally_counts integer[], p_now timestamptz
) RETURNS TABLE (now_at timestamptz, id text, member text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_live integer;
    v_gone text[];
BEGIN
    PERFORM FROM {schema}.leases AS l WHERE l.token = ANY (p_tokens) ORDER BY l.token FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT count(*) INTO v_live FROM {schema}.leases AS l
    WHERE l.token = ANY (p_tokens) AND l.struck = 0 AND l.expires_at > v_now;
    IF v_live < cardinality(p_tokens) THEN
        RETURN;
    END IF;
    IF p_results IS NULL THEN
        INSERT INTO {schema}.attempts (job_id, number, retry_count, attempts, started_at, finished_at, status, token)
        SELECT s.id, s.number, s.retry_count, s.attempts, s.started_at, v_now, 'succeeded', p_tokens[s.token_at]
        FROM unnest(p_ids, p_numbers, p_retry_counts, p_attempts, p_started_ats, p_tokens_at)
            AS s (id, number, retry_count, attempts, started_at, token_at);
    ELSE
        INSERT INTO {schema}.attempts (job_id, number, retry_count, attempts, started_at, finished_at, status, token,
                                       result)
        SELECT s.id, s.number, s.retry_count, s.attempts, s.started_at, v_now, 'succeeded', p_tokens[s.token_at],
               s.result
        FROM unnest(p_ids, p_numbers, p_retry_counts, p_attempts, p_started_ats, p_tokens_at, p_results)
            AS s (id, number, retry_count, attempts, started_at, token_at, result);
    END IF;
    WITH gone AS (
        DELETE FROM {schema}.leases AS l USING unnest(p_tokens, p_counts) AS t (token, settled)
        WHERE l.token = t.token AND l.open = t.settled
        RETURNING l.token
    )
    SELECT coalesce(array_agg(g.token), '{}') INTO v_gone FROM gone AS g;
    IF v_gone <> '{}' THEN
        DELETE FROM {schema}.claims AS c WHERE c.token = ANY (v_gone);
    END IF;
    IF cardinality(v_gone) < cardinality(p_tokens) THEN
        UPDATE {schema}.leases AS l SET open = l.open - t.settled, cancels = CASE
            WHEN l.cancels = '{}' THEN l.cancels
            ELSE ARRAY(SELECT c FROM unnest(l.cancels) AS c WHERE c <> ALL (p_ids)) END
        FROM unnest(p_tokens, p_counts) AS t (token, settled) WHERE l.token = t.token;
    END IF;
    INSERT INTO {schema}.tallies (queue, state, jobs)
    SELECT t.queue, 'succeeded', t.jobs FROM unnest(p_tally_queues, p_tally_counts) AS t (queue, jobs);
    RETURN QUERY SELECT v_now, NULL::text, NULL::text;
    -- Also a dependant that was cancelled meanwhile counts: it may be requeued, and must find what has succeeded. One
    -- whose transaction is still open cannot be seen here: catch_up finds it.
    IF EXISTS (SELECT FROM {schema}.dependencies AS d WHERE NOT d.done) THEN
        RETURN QUERY SELECT NULL::timestamptz, r.id, r.member FROM {schema}.release_dependants(p_ids) AS r;
    END IF;
END
$$;

-- The sweep over late dependencies: what their members have come to meanwhile is done now. Gives the jobs that it released,
-- and those that it cancelled. Without a late one it is one probe of an index.
--
-- A late dependency can be seen once its transaction has committed. What ends the member from then on sees it. What is
-- in doubt is an ending that looked for dependants before that and has not committed yet. Such a one holds the member's
-- lease (a settle) or its job's row (an operator, its age, a member of its own): where either is locked, the dependency stays late, and the
-- next sweep looks again. A lease that is claimed in between is settled later than all this. Nothing here waits for
-- anybody, but for the row locks of those that a cancelled dependant takes along.
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
            SELECT * FROM {schema}.attempts AS a WHERE a.job_id = d.member_id ORDER BY a.number DESC LIMIT 1
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
    -- Rows about jobs that do not exist were written by hand, and must not stand before the others.
    UPDATE {schema}.dependencies AS d SET late = false
    WHERE d.late AND d.job_id = ANY (v_seen) AND NOT EXISTS (SELECT FROM {schema}.jobs AS j WHERE j.id = d.job_id);
END
$$;

-- End all of these that have not begun, and ask those that run to end: what was done to each, and the state that it was
-- in. One that moved between two looks is not in the answer, and nothing was done to it.
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
    -- In the order in which everybody locks: leases by token, then jobs by id.
    SELECT coalesce(array_agg(c.token), '{}') INTO v_tokens FROM {schema}.claims AS c WHERE c.ids && p_ids;
    PERFORM FROM {schema}.leases AS l WHERE l.token = ANY (v_tokens) ORDER BY l.token FOR NO KEY UPDATE;
    PERFORM FROM {schema}.jobs AS j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    -- The rows of their places go; one that has gone already was claimed or released by somebody.
    WITH keys AS MATERIALIZED (
        SELECT j.id, j.queue, -least(100, greatest(-100, j.priority)) AS rank, coalesce(a.next_at, j.run_at) AS run_at
        FROM unnest(p_ids) AS i (id)
        CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = i.id LIMIT 1) AS j
        LEFT JOIN LATERAL (
            SELECT * FROM {schema}.attempts WHERE attempts.job_id = i.id ORDER BY number DESC LIMIT 1
        ) AS a ON true
    ), placed AS (
        DELETE FROM {schema}.ready AS r USING keys AS k
        WHERE r.suspect IN (false, true) AND r.queue = k.queue AND r.rank = k.rank AND r.run_at = k.run_at
          AND r.id = k.id
        RETURNING r.id, r.queue, r.number, r.attempts, r.delivery,
                  CASE WHEN r.run_at <= v_now THEN 'ready' ELSE 'scheduled' END AS was
    ), waited AS (
        DELETE FROM {schema}.waiting AS w USING {schema}.jobs AS j
        WHERE w.job_id = ANY (p_ids) AND j.id = w.job_id
        RETURNING w.job_id AS id, j.queue, w.number, w.attempts, w.delivery, 'waiting' AS was
    ), gone AS MATERIALIZED (
        SELECT * FROM placed UNION ALL SELECT * FROM waited
    ), ended AS (
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery)
        SELECT g.id, 'cancelled', 'cancelled', v_now, g.number, g.attempts, g.delivery FROM gone AS g
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
    -- What a lease that is locked names, without its attempt having a row, runs under it.
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
        SELECT * FROM {schema}.attempts WHERE attempts.job_id = i ORDER BY number DESC LIMIT 1
    ) AS a ON true
    WHERE j.id IS NULL OR e.job_id IS NOT NULL OR (a.status = 'succeeded' AND a.next_at IS NULL);
END
$$;
