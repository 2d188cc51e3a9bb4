-- The audit: who did what and when. The newest 10,000 actions are kept.
CREATE TABLE {schema}.actions (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the order of the list
    id      uuid NOT NULL UNIQUE,
    at      timestamptz NOT NULL,
    verb    text COLLATE "C" NOT NULL,
    actor   text COLLATE "C",            -- NULL: not known
    job_id  text COLLATE "C",            -- of an action on one job
    subject text COLLATE "C",            -- the queue, schedule, workflow, token or task that it concerns
    filter  text,                        -- JSON, of a bulk action
    details text,                        -- JSON; no payload, no secret
    count   bigint NOT NULL              -- jobs that it changed
);

-- Keep an action, or add to what it has changed already, in the transaction of the change; and mark the jobs that it
-- changed. Now and then it deletes a slice of those that are too old. It runs with the rights of its owner: an operator
-- may add to the audit, and not rewrite it. `taskharbor roles` grants it; no other role may call it. The caller's
-- transaction holds the locks of all of these jobs, those of the dependants as well, so that this waits for no one.
CREATE FUNCTION {schema}.record_action(
    p_id uuid, p_now timestamptz, p_verb text, p_actor text, p_job_id text, p_subject text, p_filter text,
    p_details text, p_count bigint, p_jobs uuid[], p_kept integer, p_trim_every integer, p_trimmed integer
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_number bigint;
BEGIN
    UPDATE {schema}.actions SET count = count + p_count WHERE id = p_id;
    IF NOT FOUND THEN
        INSERT INTO {schema}.actions (id, at, verb, actor, job_id, subject, filter, details, count)
        VALUES (p_id, coalesce(p_now, clock_timestamp()), p_verb, p_actor, p_job_id, p_subject, p_filter, p_details, p_count)
        RETURNING number INTO v_number;
    END IF;
    UPDATE {schema}.jobs SET action_id = p_id WHERE id = ANY (p_jobs);
    IF v_number % p_trim_every = 0 THEN
        DELETE FROM {schema}.actions WHERE number IN (
            SELECT number FROM {schema}.actions
            WHERE number <= (SELECT number FROM {schema}.actions ORDER BY number DESC OFFSET p_kept LIMIT 1)
            ORDER BY number LIMIT p_trimmed FOR UPDATE SKIP LOCKED);
    END IF;
END
$$;
REVOKE ALL ON FUNCTION {schema}.record_action FROM PUBLIC;
