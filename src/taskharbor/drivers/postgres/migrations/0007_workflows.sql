-- Workflows: jobs that are stored, kept and pruned as a whole.

-- The ids of a workflow's jobs follow its own up to last_id: whom a job belongs to is one probe of this key, and
-- what belongs to a workflow is one range of any key that begins with a job's id. No row pays for being a member.
CREATE TABLE {schema}.workflows (
    id              uuid PRIMARY KEY,
    last_id         uuid NOT NULL,       -- of its jobs; its own, if it has none
    total           integer NOT NULL,
    enqueued_at     timestamptz NOT NULL,
    idempotency_key text COLLATE "C" UNIQUE,
    about           text NOT NULL
);

-- Whether the job is cancelled when this member of it ends without success.
ALTER TABLE {schema}.dependencies ADD COLUMN fatal boolean NOT NULL DEFAULT false;

-- What a job still waits for: whether anything, without looking at the thousands it waits for no more. (Whom an
-- unfinished job depends on is found by dependencies_member.)
CREATE INDEX dependencies_unmet ON {schema}.dependencies (job_id) WHERE NOT done;
DROP INDEX {schema}.dependencies_open;

-- Every success of a member changes a row of it.
ALTER TABLE {schema}.dependencies SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

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
        PERFORM FROM {schema}.jobs WHERE id = ANY (v_concerned) ORDER BY id FOR UPDATE;
        WITH gone AS (
            DELETE FROM {schema}.waiting AS w WHERE w.job_id = ANY (v_concerned) RETURNING w.*
        ), ended AS (
            INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery)
            SELECT g.job_id, 'cancelled', 'dependency', p_now, g.number, g.attempts, g.delivery FROM gone AS g
        ), tallied AS (
            INSERT INTO {schema}.tallies (queue, state, jobs)
            SELECT j.queue, 'cancelled', count(*)
            FROM gone AS g CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.job_id LIMIT 1) AS j
            GROUP BY j.queue
        )
        SELECT array_agg(g.job_id) INTO v_ended FROM gone AS g;
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
        PERFORM FROM {schema}.jobs WHERE id = ANY (v_concerned) ORDER BY id FOR UPDATE;
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
