-- What a producer has to lock, without the right to change it: PostgreSQL grants the one only with the other.
-- So this one function runs with the rights of its owner. It locks rows until the caller's transaction ends, and
-- tells and changes nothing. `taskharbor roles` grants it; whoever is not named there may not call it.
--
-- For each of the jobs that new ones depend on, the row that its next step would change: until the end of the
-- transaction nobody settles under these leases, deletes these jobs, claims, releases or requeues them. In the
-- order in which everybody locks: leases by token, jobs by id, and then their places. Each statement sees what
-- was committed while the one before it waited.
CREATE FUNCTION {schema}.hold_members(
    p_tokens text[], p_ids uuid[], p_suspects boolean[], p_queues text[], p_ranks smallint[],
    p_run_ats timestamptz[], p_ready_ids uuid[], p_waiting_ids uuid[], p_ended_ids uuid[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM {schema}.leases WHERE token = ANY (p_tokens) ORDER BY token FOR SHARE;
    PERFORM FROM {schema}.jobs WHERE id = ANY (p_ids) ORDER BY id FOR KEY SHARE;
    PERFORM FROM unnest(p_suspects, p_queues, p_ranks, p_run_ats, p_ready_ids) AS k (suspect, queue, rank, run_at, id)
        JOIN {schema}.ready AS r ON r.suspect = k.suspect AND r.queue = k.queue AND r.rank = k.rank
            AND r.run_at = k.run_at AND r.id = k.id
        ORDER BY r.id FOR KEY SHARE OF r;
    PERFORM FROM {schema}.waiting WHERE job_id = ANY (p_waiting_ids) ORDER BY job_id FOR KEY SHARE;
    PERFORM FROM {schema}.ended WHERE job_id = ANY (p_ended_ids) ORDER BY job_id FOR KEY SHARE;
END
$$;
REVOKE ALL ON FUNCTION {schema}.hold_members FROM PUBLIC;
