-- Settling, in one round trip. Why this is a function with settings of its own: see 3_dependants.sql.

-- Settle a batch of plain successes under live leases, and release the dependants of these jobs: nearly every batch there
-- is. The caller has seen by the claim that the leases cover these attempts; a lease that has lost a job since is
-- refused. The first row has the store's time and no job; the others have a released job and a member of it. No row at
-- all, and nothing done, if anything about the batch is not plain; unique_violation if an attempt has its row already.
-- It looks at no request to cancel: a success wins, as `rules.settling.cancel_wins` says.
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
    -- A dependant that was cancelled meanwhile counts too: it may be requeued, and then must find what has succeeded. A
    -- dependant whose transaction is still open is invisible here: catch_up finds it.
    IF EXISTS (SELECT FROM {schema}.dependencies AS d WHERE NOT d.done) THEN
        RETURN QUERY SELECT NULL::timestamptz, r.id, r.member FROM {schema}.release_dependants(p_ids) AS r;
    END IF;
END
$$;
