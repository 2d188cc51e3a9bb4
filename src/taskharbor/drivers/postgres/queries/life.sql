-- name: now
SELECT clock_timestamp() AS now

-- name: schema_exists
SELECT to_regclass('{schema}.schema_versions') IS NOT NULL

-- name: schema_version
SELECT version, serves FROM {schema}.schema_versions ORDER BY version DESC LIMIT 1

-- name: namespace_exists
SELECT to_regnamespace('{schema}') IS NOT NULL

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: drop_empty_schema
-- Others may keep tables of their own in it, or own it.
DO $$ BEGIN
    DROP SCHEMA IF EXISTS {schema};
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN NULL;
END $$

-- name: create_versions
-- `serves` is the oldest version of the schema whose code still works with this one: older workers go on
-- while newer ones roll in.
CREATE TABLE IF NOT EXISTS {schema}.schema_versions (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    serves     integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: record_version
INSERT INTO {schema}.schema_versions (version, name, serves) VALUES ($1::integer, $2::text, $3::integer)

-- name: lock_migrations
-- One process at a time; the key stands for the schema's name. It goes with the transaction.
SELECT pg_advisory_xact_lock(hashtext('taskharbor migrate'), hashtext($1))

-- name: notify
-- Nothing is lost with a notification: it need not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)

-- name: wait_when_idle
-- How long the server waits for the next statement of this transaction.
SELECT set_config('idle_in_transaction_session_timeout', $1, true)

-- name: settings
-- That there are replicas is visible to every role; which of them are synchronous is not.
SELECT current_setting('server_version_num')::integer AS version, current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, pg_is_in_recovery() AS standby,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       current_setting('autovacuum') AS autovacuum,
       -- Those that are kept for superusers are no places for us.
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           AS max_connections,
       -- What kind another user's session is does not show; those of the server itself have no database.
       (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL) AS connections,
       (SELECT count(*) FROM pg_stat_replication) AS replicas

-- name: health
-- A session of another user shows neither its state nor its transaction, unless ours may read all statistics.
WITH sessions AS MATERIALIZED (
    SELECT xact_start AS since, state IS NULL AS hidden,
           format('a transaction of %s (pid %s, %s, %s)', usename, pid,
                  coalesce(nullif(application_name, ''), 'no name'), state) AS whose,
           format('SELECT pg_terminate_backend(%s)', pid) AS remedy
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND coalesce(backend_type, 'client backend') = 'client backend'
    UNION ALL
    SELECT prepared, false, format('the prepared transaction %s of %s', quote_literal(gid), owner),
           format('ROLLBACK PREPARED %s', quote_literal(gid))
    FROM pg_prepared_xacts WHERE database = current_database()
), oldest AS (
    SELECT * FROM sessions WHERE since IS NOT NULL ORDER BY since LIMIT 1
), ready AS (
    SELECT count(*) FILTER (WHERE run_at <= clock_timestamp()) AS depth,
           count(*) FILTER (WHERE run_at > clock_timestamp()) AS scheduled, min(run_at) FILTER (WHERE isfinite(run_at)) AS first_at
    FROM {schema}.ready
)
SELECT (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1
          AND relname IN ('ready', 'leases', 'claims', 'tallies')) AS dead_rows,
       (SELECT extract(epoch FROM clock_timestamp() - since)::float8 FROM oldest) AS oldest_seconds,
       (SELECT whose FROM oldest) AS oldest_whose,
       (SELECT remedy FROM oldest) AS oldest_remedy,
       (SELECT count(*) FROM sessions WHERE hidden) AS hidden_sessions,
       (SELECT count(*) FROM {schema}.ended WHERE state = 'dead' AND reason = 'unreadable') AS unreadable,
       ready.depth, ready.scheduled,
       CASE WHEN ready.depth > 0 THEN extract(epoch FROM clock_timestamp() - ready.first_at)::float8 END
           AS oldest_ready_seconds
FROM ready

-- name: user_rights
-- By the catalogue's own numbers: asking about a name would take the very right that may be missing.
SELECT current_user::text AS name,
       EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = $1) AS exists,
       coalesce((SELECT has_schema_privilege(n.oid, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = $1), false) AS usage

-- name: table_rights
SELECT c.relname::text AS name, ARRAY(
    SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r WHERE has_table_privilege(c.oid, r)
) AS rights
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v')

-- name: function_rights
-- Those that the user may execute.
SELECT p.proname::text AS name FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = $1 GROUP BY p.proname HAVING bool_and(has_function_privilege(p.oid, 'EXECUTE'))
