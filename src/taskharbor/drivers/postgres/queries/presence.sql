-- name: sign_on
-- What this names is not deleted as well: one statement cannot do both to a row.
WITH clock AS MATERIALIZED (
    SELECT coalesce($4::timestamptz, clock_timestamp()) AS now
), expired AS (
    DELETE FROM {schema}.workers AS w USING clock WHERE w.expires_at <= clock.now AND w.name <> ALL ($1::text[])
)
INSERT INTO {schema}.workers (name, about, expires_at)
SELECT s.name, s.about, clock.now + $3::bigint * interval '1 microsecond'
FROM unnest($1::text[], $2::text[]) AS s (name, about) CROSS JOIN clock ORDER BY s.name
ON CONFLICT (name) DO UPDATE SET about = excluded.about, expires_at = excluded.expires_at

-- name: sign_off
DELETE FROM {schema}.workers WHERE name = ANY ($1::text[])

-- name: workers
SELECT about, expires_at FROM {schema}.workers
WHERE expires_at > coalesce($1::timestamptz, clock_timestamp()) ORDER BY name
