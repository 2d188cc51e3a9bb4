-- name: hold
INSERT INTO {schema}.holds (kind, name, since, held_by)
VALUES ($1, $2, coalesce($4::timestamptz, clock_timestamp()), $3) ON CONFLICT DO NOTHING RETURNING true

-- name: release
DELETE FROM {schema}.holds WHERE kind = $1 AND name = $2 RETURNING true

-- name: holds
SELECT kind, name, since, held_by FROM {schema}.holds ORDER BY kind, name

-- name: hold_labels
SELECT 'hold:' || kind || ':' || name AS label FROM {schema}.holds
