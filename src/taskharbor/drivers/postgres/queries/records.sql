-- Each kind has a table of its own, because the right to read and write it is granted by table.

-- name: put_{kind}
-- What this puts is not deleted as well: one statement cannot do both to a row.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, clock_timestamp()) AS now
), expired AS (
    DELETE FROM {schema}.{kind} AS r USING clock WHERE r.expires_at <= clock.now AND r.key <> ALL ($1::text[])
)
INSERT INTO {schema}.{kind} (key, about, expires_at)
SELECT s.key, s.about, clock.now + $3::bigint * interval '1 microsecond'
FROM unnest($1::text[], $2::text[]) AS s (key, about) CROSS JOIN clock ORDER BY s.key
ON CONFLICT (key) DO UPDATE SET about = excluded.about, expires_at = excluded.expires_at

-- name: read_{kind}
SELECT key, about, expires_at FROM {schema}.{kind}
WHERE expires_at IS NULL OR expires_at > coalesce($1::timestamptz, clock_timestamp()) ORDER BY key

-- name: drop_{kind}
WITH dropped AS (DELETE FROM {schema}.{kind} WHERE key = ANY ($1::text[]) RETURNING key)
SELECT count(*)::integer FROM dropped
