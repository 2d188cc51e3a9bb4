-- Settling, in one round trip. Why this is a function with settings of its own: see 3_dependants.sql.

-- Settle a batch of plain successes under live leases, and release the dependants of these jobs: nearly every batch there
-- is. The caller has seen by the claim that the leases cover these attempts; a lease that has lost a job since is
-- refused. The first row has the store's time and no job; the others have a released job and a member of it. No row at
-- all, and nothing done, if anything about the batch is not plain; unique_violation if an attempt has its row already.
-- It looks at no request to cancel: a success wins, as `rules.settling.cancel_wins` says.
--
-- The ids and numbers are in the leases already, and the caller says only where: small numbers, quickly sent.
--
-- p_counts     how many jobs of each lease
-- p_runs       the position of each lease's first job, from 1, if the others follow it one by one, as they mostly do
-- p_positions  otherwise those of all jobs: of the first lease, then of the second, and so on
-- p_firsts     of the jobs of each lease: the position of the one with the smallest id, …
-- p_first_ids  … and this id. They prove that the caller and the lease count alike.
-- p_lasts, p_last_ids  the same of the largest id
-- p_apart      of each lease: whether its ids are far apart, so that pruning needs them all
-- p_started    microseconds since 1970, in the order of the positions; NULL for an attempt that never started
-- p_results    in the same order; NULL if there are none
-- p_shared     from how many successes of a lease on they share a row of `settles`
CREATE FUNCTION {schema}.settle_and_release(
    p_tokens text[], p_counts integer[], p_runs integer[], p_positions integer[], p_firsts integer[],
    p_first_ids uuid[], p_lasts integer[], p_last_ids uuid[], p_apart boolean[], p_started bigint[], p_results text[],
    p_tally_queues text[], p_tally_counts integer[], p_shared integer, p_now timestamptz
) RETURNS TABLE (now_at timestamptz, id text, member text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_micros bigint;
    v_live integer;
    v_cancels boolean;
    v_released boolean;
    v_ids uuid[];         -- what a lease covers, by position
    v_numbers integer[];
    v_attempts integer[];  -- empty for zeros
    v_positions integer[];
    v_from integer;
    v_to integer := 0;
    v_settle bigint;
    v_done uuid[] := '{}';
    v_gone text[];
BEGIN
    PERFORM FROM {schema}.leases AS l WHERE l.token = ANY (p_tokens) ORDER BY l.token FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT count(*), bool_or(l.cancels <> '{}') INTO v_live, v_cancels FROM {schema}.leases AS l
    WHERE l.token = ANY (p_tokens) AND l.struck = 0 AND l.expires_at > v_now;
    IF v_live < cardinality(p_tokens) THEN
        RETURN;
    END IF;
    v_micros := round(extract(epoch FROM v_now) * 1000000);
    -- A dependant whose transaction is still open is invisible here: catch_up finds it.
    v_released := EXISTS (SELECT FROM {schema}.dependencies AS d WHERE NOT d.done);

    FOR i IN 1 .. cardinality(p_tokens) LOOP
        v_from := v_to + 1;
        v_to := v_to + p_counts[i];
        v_positions := coalesce(
            p_positions[v_from:v_to], ARRAY(SELECT generate_series(p_runs[i], p_runs[i] + p_counts[i] - 1)));
        SELECT c.ids, c.numbers, c.attempts INTO v_ids, v_numbers, v_attempts
        FROM {schema}.claims AS c WHERE c.token = p_tokens[i];
        IF (v_ids[p_firsts[i]], v_ids[p_lasts[i]]) IS DISTINCT FROM (p_first_ids[i], p_last_ids[i]) THEN
            RAISE unique_violation USING MESSAGE = 'the lease ' || p_tokens[i] || ' holds other jobs than its claim said';
        END IF;
        IF v_cancels OR v_released THEN
            v_done := v_done || ARRAY(SELECT v_ids[p] FROM unnest(v_positions) AS p);
        END IF;
        IF p_counts[i] < p_shared THEN
            INSERT INTO {schema}.attempts (job_id, number, retry_count, attempts, started_at, finished_at, status,
                                           token, result)
            SELECT v_ids[s.position], v_numbers[s.position], coalesce(v_attempts[s.position], 0),
                   coalesce(v_attempts[s.position], 0), timestamptz 'epoch' + s.started * interval '1 microsecond',
                   v_now, 'succeeded', p_tokens[i], s.result
            FROM unnest(v_positions, p_started[v_from:v_to], p_results[v_from:v_to])
                AS s (position, started, result);
            CONTINUE;
        END IF;
        INSERT INTO {schema}.settles (finished_at, first_id, last_id, token, ids)
        VALUES (v_now, p_first_ids[i], p_last_ids[i], p_tokens[i],
                CASE WHEN p_apart[i] THEN ARRAY(SELECT v_ids[p] FROM unnest(v_positions) AS p) END)
        RETURNING id INTO v_settle;
        INSERT INTO {schema}.attempts (job_id, settle_id, number, ran, retry_count, attempts, started_at, result)
        SELECT v_ids[s.position], v_settle, v_numbers[s.position],
               CASE WHEN abs(v_micros - s.started) <= 2000000000 THEN v_micros - s.started END,
               nullif(v_attempts[s.position], 0), nullif(v_attempts[s.position], 0),
               CASE WHEN abs(v_micros - s.started) > 2000000000
                    THEN timestamptz 'epoch' + s.started * interval '1 microsecond' END,
               s.result
        FROM unnest(v_positions, p_started[v_from:v_to], p_results[v_from:v_to]) AS s (position, started, result);
    END LOOP;

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
            ELSE ARRAY(SELECT c FROM unnest(l.cancels) AS c WHERE c <> ALL (v_done)) END
        FROM unnest(p_tokens, p_counts) AS t (token, settled) WHERE l.token = t.token;
    END IF;
    INSERT INTO {schema}.tallies (queue, state, jobs)
    SELECT t.queue, 'succeeded', t.jobs FROM unnest(p_tally_queues, p_tally_counts) AS t (queue, jobs);
    RETURN QUERY SELECT v_now, NULL::text, NULL::text;
    IF v_released THEN
        -- A dependant that was cancelled meanwhile counts too: it may be requeued, and then must find what has succeeded.
        RETURN QUERY SELECT NULL::timestamptz, r.id, r.member FROM {schema}.release_dependants(v_done) AS r;
    END IF;
END
$$;

-- The jobs that have succeeded before an instant, by narrow rows: the oldest endings first, then by id, as many as asked
-- for. It leaves out the same jobs as the query `prunable`. A settle of which nothing is left goes here: a look finds out
-- anyway, and the delete waits for no other.
CREATE FUNCTION {schema}.old_successes(p_before timestamptz, p_limit bigint)
RETURNS TABLE (finished_at timestamptz, job_id uuid) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz;
    v_last timestamptz;
    v_found integer;
    v_left bigint := p_limit;
BEGIN
    FOR v_at IN
        SELECT s.finished_at FROM {schema}.settles AS s WHERE s.finished_at < p_before ORDER BY s.finished_at, s.id
    LOOP
        EXIT WHEN v_left <= 0;
        CONTINUE WHEN v_at = v_last;
        v_last := v_at;
        RETURN QUERY SELECT v_at, m.job_id
        FROM (
            SELECT a.job_id FROM {schema}.settles AS s CROSS JOIN LATERAL (
                SELECT * FROM {schema}.attempts
                WHERE s.ids IS NULL AND attempts.job_id BETWEEN s.first_id AND s.last_id
                UNION ALL
                SELECT * FROM {schema}.attempts WHERE attempts.job_id = ANY (s.ids)
            ) AS a
            WHERE s.finished_at = v_at AND a.settle_id = s.id AND a.next_at IS NULL
            ORDER BY a.job_id OFFSET 0  -- in this order first: what follows is looked at only until there are enough
        ) AS m
        WHERE coalesce((SELECT w.last_id FROM {schema}.workflows AS w WHERE w.id < m.job_id
                        ORDER BY w.id DESC LIMIT 1) < m.job_id, true)
          AND NOT EXISTS (SELECT FROM {schema}.dependencies AS d WHERE d.member_id = m.job_id
              AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = d.job_id)
              AND NOT EXISTS (SELECT FROM {schema}.history AS o
                              WHERE o.job_id = d.job_id AND o.status = 'succeeded' AND o.next_at IS NULL))
        LIMIT v_left;
        GET DIAGNOSTICS v_found = ROW_COUNT;
        v_left := v_left - v_found;
        IF v_found = 0 THEN
            DELETE FROM {schema}.settles WHERE id = ANY (ARRAY(
                SELECT s.id FROM {schema}.settles AS s
                WHERE s.finished_at = v_at AND NOT EXISTS (
                    SELECT FROM {schema}.attempts AS a
                    WHERE s.ids IS NULL AND a.job_id BETWEEN s.first_id AND s.last_id AND a.settle_id = s.id
                ) AND NOT EXISTS (
                    SELECT FROM {schema}.attempts AS a WHERE a.job_id = ANY (s.ids) AND a.settle_id = s.id
                )
                FOR UPDATE SKIP LOCKED
            ));
        END IF;
    END LOOP;
END
$$;
