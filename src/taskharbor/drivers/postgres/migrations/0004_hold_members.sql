-- What a producer has to lock, without the right to change it: PostgreSQL grants the one only with the other.
-- So this one function runs with the rights of its owner. It locks rows until the caller's transaction ends, and
-- tells and changes nothing. `taskharbor roles` grants it; whoever is not named there may not call it.
--
-- The lock keeps the jobs that new ones depend on from being deleted or pruned, and stops nothing else: it goes with
-- every lock that a claim, a heartbeat, a settle, a collector, or an operator who does not delete takes. A producer may keep
-- its transaction open for as long as it likes.
CREATE FUNCTION {schema}.hold_members(p_ids uuid[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM {schema}.jobs WHERE id = ANY (p_ids) ORDER BY id FOR KEY SHARE;
END
$$;
REVOKE ALL ON FUNCTION {schema}.hold_members FROM PUBLIC;
