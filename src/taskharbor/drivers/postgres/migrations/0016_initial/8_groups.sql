-- Error groups: how many dead jobs each has, by queue, task and version. To count them would be a scan, of the heap as well where
-- no vacuum has been. As in `tallies`, one row for each change, summed when read and folded now and then: one row for
-- each sum would make every settle of a failure wait for every other. Triggers, so that nothing that changes `ended` can
-- forget it.
CREATE TABLE {schema}.dead_groups (
    fingerprint  text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    task         text COLLATE "C" NOT NULL,
    code_version text COLLATE "C",
    jobs         bigint NOT NULL
);
ALTER TABLE {schema}.dead_groups SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- Says when a group was first and last seen, on each queue and by each task.
CREATE INDEX ended_seen ON {schema}.ended (fingerprint, queue, task, finished_at) WHERE state = 'dead';

CREATE FUNCTION {schema}.count_added_groups() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO {schema}.dead_groups (fingerprint, queue, task, code_version, jobs)
    SELECT a.fingerprint, a.queue, a.task, a.code_version, count(*) FROM added AS a
    WHERE a.state = 'dead' AND a.fingerprint IS NOT NULL GROUP BY 1, 2, 3, 4;
    RETURN NULL;
END
$$;

CREATE FUNCTION {schema}.count_removed_groups() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO {schema}.dead_groups (fingerprint, queue, task, code_version, jobs)
    SELECT r.fingerprint, r.queue, r.task, r.code_version, -count(*) FROM removed AS r
    WHERE r.state = 'dead' AND r.fingerprint IS NOT NULL GROUP BY 1, 2, 3, 4;
    RETURN NULL;
END
$$;

CREATE FUNCTION {schema}.count_changed_groups() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO {schema}.dead_groups (fingerprint, queue, task, code_version, jobs)
    SELECT c.fingerprint, c.queue, c.task, c.code_version, sum(c.jobs) FROM (
        SELECT fingerprint, queue, task, code_version, 1 AS jobs FROM added WHERE state = 'dead'
        UNION ALL
        SELECT fingerprint, queue, task, code_version, -1 FROM removed WHERE state = 'dead'
    ) AS c
    WHERE c.fingerprint IS NOT NULL GROUP BY 1, 2, 3, 4 HAVING sum(c.jobs) <> 0;
    RETURN NULL;
END
$$;

CREATE FUNCTION {schema}.forget_groups() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM {schema}.dead_groups;
    RETURN NULL;
END
$$;

CREATE TRIGGER ended_added AFTER INSERT ON {schema}.ended REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_added_groups();
CREATE TRIGGER ended_removed AFTER DELETE ON {schema}.ended REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_removed_groups();
CREATE TRIGGER ended_changed AFTER UPDATE ON {schema}.ended REFERENCING OLD TABLE AS removed NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_changed_groups();
CREATE TRIGGER ended_emptied AFTER TRUNCATE ON {schema}.ended
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.forget_groups();
