-- name: append_rollups
INSERT INTO {schema}.rollups_appended (at, queue, task, figures)
SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[])

-- name: lock_rollups
-- One fold at a time, for as long as its transaction; the key stands for the schema's name.
SELECT pg_try_advisory_xact_lock(hashtext('taskharbor rollups'), hashtext('{schema}'))

-- name: take_appended_rollups
DELETE FROM {schema}.rollups_appended WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.rollups_appended WHERE at <= $1::timestamptz ORDER BY at LIMIT $2::integer))
RETURNING at, queue, task, figures

-- name: take_old_rollups
DELETE FROM {schema}.rollups_folded AS f USING (
    SELECT period, at, queue, task FROM {schema}.rollups_folded
    WHERE period = $1::text AND at < $2::timestamptz ORDER BY at, queue, task LIMIT $3::integer
) AS old
WHERE (f.period, f.at, f.queue, f.task) = (old.period, old.at, old.queue, old.task)
RETURNING f.at, f.queue, f.task, f.figures

-- name: rollups_of_periods
SELECT f.period, f.at, f.queue, f.task, f.figures
FROM unnest($1::text[], $2::timestamptz[]) AS wanted (period, at) JOIN {schema}.rollups_folded AS f USING (period, at)

-- name: put_rollups
INSERT INTO {schema}.rollups_folded (period, at, queue, task, figures)
SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[])
ON CONFLICT (period, at, queue, task) DO UPDATE SET figures = excluded.figures

-- name: read_rollups
SELECT at, queue, task, figures FROM {schema}.rollups_appended
WHERE at >= $1::timestamptz AND at < $2::timestamptz
  AND ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR task = $4)
UNION ALL
SELECT at, queue, task, figures FROM {schema}.rollups_folded
WHERE period IN ($5::text, 'minute') AND at >= $1 AND at < $2
  AND ($3 IS NULL OR queue = $3) AND ($4 IS NULL OR task = $4)
