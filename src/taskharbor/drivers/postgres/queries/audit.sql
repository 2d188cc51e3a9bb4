-- name: record_action
SELECT {schema}.record_action($1::text::uuid, $2::timestamptz, $3, $4, $5, $6, $7, $8, $9, $10::text[]::uuid[], $11, $12,
                              $13)

-- name: pause
INSERT INTO {schema}.paused (queue, paused_by, paused_at)
VALUES ($1, $2, coalesce($3::timestamptz, clock_timestamp())) ON CONFLICT DO NOTHING RETURNING true

-- name: resume
DELETE FROM {schema}.paused WHERE queue = $1 RETURNING true

-- name: pauses
SELECT queue, paused_by, paused_at FROM {schema}.paused ORDER BY queue

-- name: get_actions
SELECT id::text AS id, at, verb, actor, job_id, subject, filter, details, count FROM {schema}.actions
WHERE id = ANY ($1::text[]::uuid[])

-- name: list_actions
-- A scan of at most the ten thousand that are kept, from the latest on. A cursor that is no longer kept is older than all
-- that are.
SELECT id::text AS id, at, verb, actor, job_id, subject, filter, details, count FROM {schema}.actions
WHERE ($1::text IS NULL OR number < (SELECT number FROM {schema}.actions WHERE id = $1::text::uuid))
  AND ($2::text IS NULL OR actor = $2)
  AND ($3::text IS NULL OR verb = $3)
  AND ($4::text IS NULL OR job_id = $4 OR id = (SELECT action_id FROM {schema}.jobs WHERE id = $5::text::uuid))
  AND ($6::timestamptz IS NULL OR at >= $6)
  AND ($7::timestamptz IS NULL OR at < $7)
  AND ($8::text IS NULL OR NOT starts_with(verb, $8))
ORDER BY number DESC LIMIT $9
