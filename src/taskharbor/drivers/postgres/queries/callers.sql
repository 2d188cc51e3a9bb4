-- Statements that run on a caller's own connection. Every argument is text there, whatever the library, and so is
-- the answer: nothing that an application has registered for other types can be in the way.

-- name: identity
-- Which database this is: the cluster's own number, and the database's in it.
SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) AS identity
FROM pg_control_system()

-- name: announce
-- Delivered when the caller's transaction commits.
SELECT pg_notify({schema}.channel(), a.payload) FROM {schema}.announcement() AS a (payload) WHERE a.payload IS NOT NULL

-- name: store
-- Nothing, if this is not the database that the harbor's workers look into. NULL: the caller knows that it is.
SELECT CASE WHEN $1::text IS NULL OR $1::text = (
    SELECT system_identifier::text || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
    FROM pg_control_system()
) THEN (
    SELECT json_build_object('now_at', s.now_at, 'existing', s.existing)::text
    FROM {schema}.store_jobs($2::json, $3::timestamptz, $4::boolean, $5::boolean) AS s
) END
