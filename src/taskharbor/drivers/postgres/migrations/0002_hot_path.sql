-- The two verbs that a worker repeats all day, each in one round trip. They are functions because, other than
-- a single statement, every statement in them sees what was committed before it began: what is looked for
-- after a lock is looked for in a snapshot that is younger than the lock.
--
-- The settings keep the plans from depending on statistics, which are always stale in a queue: every access
-- is by a key or in the order of a key, however many rows there are said to be.
--
-- A later version changes neither function; it adds others, so that older workers go on meanwhile.

-- Lease the first due jobs over all the queues, by priority, then due time, then id.
-- The first row has the times and no job; the others have a job and no times.
CREATE FUNCTION {schema}.claim(
    p_token text, p_worker text, p_lease bigint, p_limit integer, p_queues text[], p_once_limit integer,
    p_suspects boolean, p_supervised boolean, p_now timestamptz
) RETURNS TABLE (
    now_at timestamptz, lease_expires_at timestamptz, next_due timestamptz, suspects_waiting boolean,
    repeated boolean,
    id text, task text, payload text, queue text, priority integer, number integer, attempts integer,
    first_number integer, run_at timestamptz, enqueued_at timestamptz, due_at timestamptz,
    expires_at timestamptz, delivery text, options text, version integer
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_expires_at timestamptz := v_now + p_lease * interval '1 microsecond';
    v_paused text[];
    v_queues text[];
    v_queue text;
    v_rank integer := -32768;
    v_lanes text[];
    v_left integer := greatest(p_limit, 0);
    v_once_left integer := greatest(p_once_limit, 0);
    v_found integer;
    v_taken integer;
    v_next_due timestamptz;
    v_suspects boolean := false;
    v_at tid[];
    v_once integer;
    v_ids uuid[] := '{}';
    v_numbers integer[] := '{}';
    v_attempts integer[] := '{}';
    v_first_numbers integer[] := '{}';
    v_run_ats timestamptz[] := '{}';
    v_lane_queues text[] := '{}';
    v_due_ats timestamptz[] := '{}';
    v_expires_ats timestamptz[] := '{}';
    v_deliveries text[] := '{}';
    c record;
BEGIN
    IF EXISTS (SELECT FROM {schema}.leases WHERE token = p_token) THEN
        -- The answer to this very claim was lost: the caller asks for the lease again.
        RETURN QUERY SELECT v_now, NULL::timestamptz, NULL::timestamptz, false, true,
            NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer, NULL::integer,
            NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
            NULL::timestamptz, NULL::text, NULL::text, NULL::integer;
        RETURN;
    END IF;

    SELECT coalesce(array_agg(p.queue), '{}') INTO v_paused FROM {schema}.paused AS p;
    IF p_queues IS NOT NULL THEN
        SELECT coalesce(array_agg(DISTINCT q), '{}') INTO v_queues FROM unnest(p_queues) AS q
        WHERE q <> ALL (v_paused);
    ELSE
        -- A skip scan over the primary key: one seek for each queue, however many rows it holds.
        v_queues := '{}';
        SELECT r.queue INTO v_queue FROM {schema}.ready AS r WHERE r.suspect = p_suspects
        ORDER BY r.suspect, r.queue LIMIT 1;
        WHILE v_queue IS NOT NULL LOOP
            IF v_queue <> ALL (v_paused) THEN
                v_queues := v_queues || v_queue;
            END IF;
            SELECT min(n.queue) INTO v_queue FROM (
                SELECT r.queue FROM {schema}.ready AS r WHERE r.suspect = p_suspects AND r.queue > v_queue
                ORDER BY r.suspect, r.queue LIMIT 1
            ) AS n;
        END LOOP;
    END IF;

    WHILE v_left > 0 LOOP
        -- The next rank that any of the queues holds, and which of them do. A million future jobs at the top
        -- priority cost this one seek.
        SELECT n.rank, array_agg(q) INTO v_rank, v_lanes
        FROM unnest(v_queues) AS q
        CROSS JOIN LATERAL (
            SELECT r.rank FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = q AND r.rank > v_rank
            ORDER BY r.suspect, r.queue, r.rank LIMIT 1
        ) AS n
        GROUP BY n.rank ORDER BY n.rank LIMIT 1;
        EXIT WHEN NOT FOUND;

        IF cardinality(v_lanes) = 1 THEN
            -- One queue: its rows in the order of the key, locked one after the other until there are enough.
            WITH locked AS MATERIALIZED (
                SELECT r.ctid AS at, r.queue, r.run_at, r.id, r.number, r.attempts, r.first_number, r.due_at,
                       r.expires_at, r.delivery
                FROM {schema}.ready AS r
                WHERE r.suspect = p_suspects AND r.queue = v_lanes[1] AND r.rank = v_rank AND r.run_at <= v_now
                ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT v_left FOR UPDATE SKIP LOCKED
            ), counted AS (
                SELECT *, count(*) FILTER (WHERE delivery = 'at_most_once')
                    OVER (ORDER BY run_at, id ROWS UNBOUNDED PRECEDING) AS once
                FROM locked
            )
            SELECT array_agg(at) AS at, array_agg(id) AS ids, array_agg(number + 1) AS numbers,
                   array_agg(attempts) AS attempts, array_agg(first_number) AS first_numbers,
                   array_agg(run_at) AS run_ats, array_agg(queue) AS queues, array_agg(due_at) AS due_ats,
                   array_agg(expires_at) AS expires_ats, array_agg(delivery) AS deliveries,
                   max(once) AS once, (SELECT count(*) FROM locked) AS found
            INTO c FROM counted WHERE once <= v_once_left;
        ELSE
            -- Several queues: the first rows of each, merged. They are looked at without locking them, since
            -- most of them will not be taken; more of them than needed, since others may hold some.
            WITH locked AS MATERIALIZED (
                SELECT r.ctid AS at, r.queue, r.run_at, r.id, r.number, r.attempts, r.first_number, r.due_at,
                       r.expires_at, r.delivery
                FROM (
                    SELECT q AS queue, n.run_at, n.id FROM unnest(v_lanes) AS q
                    CROSS JOIN LATERAL (
                        SELECT r.run_at, r.id FROM {schema}.ready AS r
                        WHERE r.suspect = p_suspects AND r.queue = q AND r.rank = v_rank AND r.run_at <= v_now
                        ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT v_left * 4
                    ) AS n
                    ORDER BY n.run_at, n.id LIMIT v_left * 4
                ) AS first
                JOIN {schema}.ready AS r ON r.suspect = p_suspects AND r.queue = first.queue
                    AND r.rank = v_rank AND r.run_at = first.run_at AND r.id = first.id
                ORDER BY first.run_at, first.id LIMIT v_left FOR UPDATE OF r SKIP LOCKED
            ), counted AS (
                SELECT *, count(*) FILTER (WHERE delivery = 'at_most_once')
                    OVER (ORDER BY run_at, id ROWS UNBOUNDED PRECEDING) AS once
                FROM locked
            )
            SELECT array_agg(at) AS at, array_agg(id) AS ids, array_agg(number + 1) AS numbers,
                   array_agg(attempts) AS attempts, array_agg(first_number) AS first_numbers,
                   array_agg(run_at) AS run_ats, array_agg(queue) AS queues, array_agg(due_at) AS due_ats,
                   array_agg(expires_at) AS expires_ats, array_agg(delivery) AS deliveries,
                   max(once) AS once, (SELECT count(*) FROM locked) AS found
            INTO c FROM counted WHERE once <= v_once_left;
        END IF;

        v_taken := coalesce(cardinality(c.ids), 0);
        IF v_taken > 0 THEN
            DELETE FROM {schema}.ready WHERE ctid = ANY (c.at);
            v_ids := v_ids || c.ids;
            v_numbers := v_numbers || c.numbers;
            v_attempts := v_attempts || c.attempts;
            v_first_numbers := v_first_numbers || c.first_numbers;
            v_run_ats := v_run_ats || c.run_ats;
            v_lane_queues := v_lane_queues || c.queues;
            v_due_ats := v_due_ats || c.due_ats;
            v_expires_ats := v_expires_ats || c.expires_ats;
            v_deliveries := v_deliveries || c.deliveries;
            v_once_left := v_once_left - c.once;
            v_left := v_left - v_taken;
        END IF;
        -- What comes after an at_most_once job too many must not overtake it.
        EXIT WHEN v_taken < c.found;
    END LOOP;

    IF v_ids <> '{}' THEN
        INSERT INTO {schema}.leases (token, origin, worker, expires_at, alone, supervised, open)
        VALUES (p_token, p_token, p_worker, v_expires_at, p_suspects, p_supervised, cardinality(v_ids));
        INSERT INTO {schema}.claims (token, ids, numbers, attempts, first_numbers, run_ats, queues, due_ats,
                                     expires_ats, deliveries)
        VALUES (p_token, v_ids, v_numbers, v_attempts, v_first_numbers, v_run_ats, v_lane_queues, v_due_ats,
                v_expires_ats, v_deliveries);
        IF v_once_left = greatest(p_once_limit, 0) THEN
            -- A server that crashes may forget such a claim: its jobs are still to be claimed, and a number
            -- that it gave out proves nothing without its lease. With an at_most_once job it must not.
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
    END IF;

    IF cardinality(v_ids) < p_limit THEN
        SELECT min(due.run_at) INTO v_next_due
        FROM unnest(v_queues) AS q
        CROSS JOIN LATERAL (
            WITH RECURSIVE ranks AS (
                (SELECT r.rank FROM {schema}.ready AS r WHERE r.suspect = p_suspects AND r.queue = q
                 ORDER BY r.suspect, r.queue, r.rank LIMIT 1)
                UNION ALL
                SELECT (SELECT r.rank FROM {schema}.ready AS r
                        WHERE r.suspect = p_suspects AND r.queue = q AND r.rank > ranks.rank
                        ORDER BY r.suspect, r.queue, r.rank LIMIT 1)
                FROM ranks WHERE ranks.rank IS NOT NULL
            )
            SELECT rank FROM ranks WHERE rank IS NOT NULL
        ) AS lane
        CROSS JOIN LATERAL (
            SELECT r.run_at FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = q AND r.rank = lane.rank AND r.run_at > v_now
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
        ) AS due;
    END IF;
    IF NOT p_suspects THEN
        -- The suspects' place is small: a scan of it is.
        v_suspects := EXISTS (
            SELECT FROM {schema}.ready AS r
            WHERE r.suspect AND r.run_at <= v_now AND (p_queues IS NULL OR r.queue = ANY (p_queues))
              AND r.queue <> ALL (v_paused)
        );
    END IF;

    RETURN QUERY SELECT v_now, v_expires_at, v_next_due, v_suspects, false,
        NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer, NULL::integer,
        NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
        NULL::timestamptz, NULL::text, NULL::text, NULL::integer;
    IF v_ids <> '{}' THEN
        RETURN QUERY SELECT NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::boolean, NULL::boolean,
            e.id::text, j.task, j.payload, e.queue, j.priority::integer, e.number, e.attempts,
            e.first_number, e.run_at, j.enqueued_at, e.due_at,
            e.expires_at, e.delivery, j.options, j.version
        FROM unnest(v_ids, v_numbers, v_attempts, v_first_numbers, v_run_ats, v_lane_queues, v_due_ats,
                    v_expires_ats, v_deliveries) WITH ORDINALITY
            AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery, position)
        -- LIMIT keeps the planner from turning this into a join with all of the jobs.
        CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = e.id LIMIT 1) AS j
        ORDER BY e.position;
    END IF;
END
$$;

-- Settle a batch of plain successes under live leases, nobody depending on any: nearly every batch there is.
-- The caller has seen by the claim that the leases cover these attempts; a lease that anything was struck out
-- of since is refused. Gives the store's time; NULL, with nothing done, if anything about it is not plain;
-- unique_violation if one of the attempts has its row already.
CREATE FUNCTION {schema}.settle_successes(
    p_tokens text[], p_counts integer[], p_ids uuid[], p_numbers integer[], p_tokens_at integer[],
    p_retry_counts integer[], p_attempts integer[], p_started_ats timestamptz[], p_results text[],
    p_tally_queues text[], p_tally_counts integer[], p_now timestamptz
) RETURNS timestamptz LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_live integer;
    v_gone text[];
BEGIN
    PERFORM FROM {schema}.leases WHERE token = ANY (p_tokens) ORDER BY token FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT count(*) INTO v_live FROM {schema}.leases
    WHERE token = ANY (p_tokens) AND struck = 0 AND expires_at > v_now;
    IF v_live < cardinality(p_tokens) THEN
        RETURN NULL;
    END IF;
    -- Also a dependant that was cancelled meanwhile counts: it may be requeued, and must find what has succeeded. One
    -- whose transaction is still open cannot be seen here: catch_up finds it.
    IF EXISTS (SELECT FROM {schema}.dependencies WHERE NOT done)
       AND EXISTS (SELECT FROM {schema}.dependencies WHERE NOT done AND member_id = ANY (p_ids)) THEN
        RETURN NULL;
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
        DELETE FROM {schema}.leases USING unnest(p_tokens, p_counts) AS t (token, settled)
        WHERE leases.token = t.token AND leases.open = t.settled
        RETURNING leases.token
    )
    SELECT coalesce(array_agg(token), '{}') INTO v_gone FROM gone;
    IF v_gone <> '{}' THEN
        DELETE FROM {schema}.claims WHERE token = ANY (v_gone);
    END IF;
    IF cardinality(v_gone) < cardinality(p_tokens) THEN
        UPDATE {schema}.leases SET open = leases.open - t.settled, cancels = CASE
            WHEN cancels = '{}' THEN cancels
            ELSE ARRAY(SELECT c FROM unnest(cancels) AS c WHERE c <> ALL (p_ids)) END
        FROM unnest(p_tokens, p_counts) AS t (token, settled) WHERE leases.token = t.token;
    END IF;
    INSERT INTO {schema}.tallies (queue, state, jobs)
    SELECT t.queue, 'succeeded', t.jobs FROM unnest(p_tally_queues, p_tally_counts) AS t (queue, jobs);
    RETURN v_now;
END
$$;
