-- name: enqueue
-- Jobs that depend on no other job and have no tags, nearly all there are: one statement, one round trip. An id or a
-- key that exists already is a unique violation, and nothing is stored: then each is looked at by itself.
WITH clock AS MATERIALIZED (
    SELECT coalesce($13::timestamptz, clock_timestamp()) AS now
), given AS MATERIALIZED (
    SELECT g.*, coalesce(clock.now + g.delay * interval '1 microsecond', g.run_at, clock.now) AS place, clock.now
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[],
                $7::bigint[], $8::timestamptz[], $9::text[], $10::text[], $11::text[], $12::text[])
        AS g (id, queue, task, payload, priority, run_at, delay, expires_at, idempotency_key, delivery, options, meta)
    CROSS JOIN clock
), stored AS (
    INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at,
                               idempotency_key, delivery, options, meta)
    SELECT id, queue, task, payload, priority, place, now, expires_at, idempotency_key, delivery, options, meta
    FROM given
), placed AS (
    INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at, delivery)
    SELECT false, queue, -priority, place, id, 0, 0, 1, expires_at, delivery FROM given
)
SELECT now FROM clock

-- name: enqueue_one
-- The same for one job. Values instead of arrays make half of the server's work.
WITH stored AS (
    INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at,
                               idempotency_key, delivery, options, meta)
    SELECT $1::uuid, $2, $3, $4, $5::smallint,
           coalesce(clock.now + $7::bigint * interval '1 microsecond', $6::timestamptz, clock.now), clock.now,
           $8::timestamptz, $9, $10::text, $11, $12
    FROM (SELECT coalesce($13::timestamptz, clock_timestamp()) AS now OFFSET 0) AS clock
    RETURNING id, queue, priority, run_at, enqueued_at, expires_at, delivery
), placed AS (
    INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at, delivery)
    SELECT false, queue, -priority, run_at, id, 0, 0, 1, expires_at, delivery FROM stored
)
SELECT enqueued_at FROM stored

-- name: enqueue_announced
-- The same, and its commit announces the job: workers hear of it with no second round trip. For a producer that has been
-- quiet: a commit that notifies waits for a lock of the whole server, so announcement() says whether it may.
WITH stored AS (
    INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at,
                               idempotency_key, delivery, options, meta)
    SELECT $1::uuid, $2, $3, $4, $5::smallint,
           coalesce(clock.now + $7::bigint * interval '1 microsecond', $6::timestamptz, clock.now), clock.now,
           $8::timestamptz, $9, $10::text, $11, $12
    FROM (SELECT coalesce($13::timestamptz, clock_timestamp()) AS now OFFSET 0) AS clock
    RETURNING id, queue, priority, run_at, enqueued_at, expires_at, delivery
), placed AS (
    INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at, delivery)
    SELECT false, queue, -priority, run_at, id, 0, 0, 1, expires_at, delivery FROM stored
), announced AS MATERIALIZED (
    SELECT pg_notify($14, CASE WHEN a.payload = '' THEN $15 ELSE a.payload END)
    FROM {schema}.announcement() AS a (payload) WHERE a.payload IS NOT NULL
)
SELECT enqueued_at, (SELECT count(*) > 0 FROM announced) AS announced FROM stored

-- name: enqueue_alike
-- The same for many jobs that differ in their ids and payloads only: packing an array costs the client, and
-- unpacking it the server, half of all that storing a job takes. Nothing is joined, and nothing is kept aside: both
-- arrays become rows as they are inserted.
WITH shared AS MATERIALIZED (
    SELECT clock.now, coalesce(clock.now + $7::bigint * interval '1 microsecond', $6::timestamptz, clock.now) AS place
    FROM (SELECT coalesce($12::timestamptz, clock_timestamp()) AS now OFFSET 0) AS clock
), stored AS (
    INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at, delivery, options,
                               meta)
    SELECT unnest($1::uuid[]), $2::text, $3::text, unnest($4::text[]), $5::smallint, (SELECT place FROM shared),
           (SELECT now FROM shared), $8::timestamptz, $9::text, $10::text, $11::text
), placed AS (
    INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at, delivery)
    SELECT false, $2::text, -$5::smallint, (SELECT place FROM shared), unnest($1::uuid[]), 0, 0, 1, $8::timestamptz,
           $9::text
)
SELECT now FROM shared

-- name: enqueue_messages
-- The same for messages of a log: they differ in where they stand, too, which is in their metas.
WITH shared AS MATERIALIZED (
    SELECT clock.now, coalesce(clock.now + $7::bigint * interval '1 microsecond', $6::timestamptz, clock.now) AS place
    FROM (SELECT coalesce($12::timestamptz, clock_timestamp()) AS now OFFSET 0) AS clock
), stored AS (
    INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at, delivery, options,
                               meta)
    SELECT unnest($1::uuid[]), $2::text, $3::text, unnest($4::text[]), $5::smallint, (SELECT place FROM shared),
           (SELECT now FROM shared), $8::timestamptz, $9::text, $10::text, unnest($11::text[])
), placed AS (
    INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at, delivery)
    SELECT false, $2::text, -$5::smallint, (SELECT place FROM shared), unnest($1::uuid[]), 0, 0, 1, $8::timestamptz,
           $9::text
)
SELECT now FROM shared

-- name: lock_offsets
SELECT 1 FROM {schema}.ingested AS i JOIN unnest($1::text[], $2::integer[]) AS g (log, partition) USING (log, partition)
ORDER BY i.log, i.partition FOR UPDATE OF i

-- name: move_offsets
-- Compare and set: an offset that another reader has moved meanwhile is not the expected one any more.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, clock_timestamp()) AS now
), given AS MATERIALIZED (
    SELECT g.*, clock.now FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::bigint[])
        AS g (log, partition, expected, next) CROSS JOIN clock
), moved AS (
    UPDATE {schema}.ingested AS i SET next = g.next, moved_at = g.now FROM given AS g
    WHERE i.log = g.log AND i.partition = g.partition AND i.next = g.expected
    RETURNING i.log, i.partition
), begun AS (
    INSERT INTO {schema}.ingested (log, partition, next, moved_at)
    SELECT log, partition, next, now FROM given WHERE expected IS NULL ORDER BY log, partition
    ON CONFLICT DO NOTHING
    RETURNING log, partition
)
SELECT done.*, clock.now FROM (SELECT * FROM moved UNION ALL SELECT * FROM begun) AS done CROSS JOIN clock

-- name: ingested
SELECT partition, next FROM {schema}.ingested WHERE log = $1 AND partition = ANY ($2::integer[])

-- name: known_ids
SELECT id::text FROM {schema}.jobs WHERE id = ANY ($1::text[]::uuid[])

-- name: known_keys
SELECT k.position, j.id::text AS id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (queue, key, position)
CROSS JOIN LATERAL (
    SELECT jobs.id FROM {schema}.jobs
    WHERE jobs.queue = k.queue AND jobs.idempotency_key = k.key AND jobs.idempotency_key IS NOT NULL LIMIT 1
) AS j

-- name: insert_jobs
-- Conflicts on the id and on (queue, key) alike, also with what others have not committed yet.
INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at,
                           idempotency_key, delivery, options, meta)
SELECT g.id, g.queue, g.task, g.payload, g.priority, g.run_at, $12::timestamptz, g.expires_at, g.idempotency_key,
       g.delivery, g.options, g.meta
FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[],
            $7::timestamptz[], $8::text[], $9::text[], $10::text[], $11::text[])
    AS g (id, queue, task, payload, priority, run_at, expires_at, idempotency_key, delivery, options, meta)
ON CONFLICT DO NOTHING
RETURNING id::text

-- name: insert_ready
-- A queue and a priority are the job's own.
INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, due_at, expires_at,
                            delivery)
SELECT g.suspect, j.queue, -least(100, greatest(-100, j.priority)), g.run_at, g.id, g.number, g.attempts, g.first_number, g.due_at,
       g.expires_at, g.delivery
FROM unnest($1::text[]::uuid[], $2::timestamptz[], $3::integer[], $4::integer[], $5::integer[], $6::timestamptz[],
            $7::timestamptz[], $8::text[], $9::boolean[])
    AS g (id, run_at, number, attempts, first_number, due_at, expires_at, delivery, suspect)
CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = g.id LIMIT 1) AS j

-- name: insert_waiting
INSERT INTO {schema}.waiting (job_id, number, attempts, first_number, expires_at, delivery)
SELECT * FROM unnest($1::text[]::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::timestamptz[], $6::text[])

-- name: insert_dependencies
INSERT INTO {schema}.dependencies (job_id, position, member_id, done, fatal, late, was_ended)
SELECT * FROM unnest($1::text[]::uuid[], $2::integer[], $3::text[]::uuid[], $4::boolean[], $5::boolean[], $6::boolean[],
                     $7::boolean[])

-- name: insert_tags
INSERT INTO {schema}.tags (tag, job_id) SELECT * FROM unnest($1::text[], $2::text[]::uuid[]) ON CONFLICT DO NOTHING

-- name: hold_members
SELECT {schema}.hold_members($1::text[]::uuid[])

-- name: keys_between
SELECT idempotency_key AS key FROM {schema}.jobs
WHERE queue = $1 AND idempotency_key IS NOT NULL AND idempotency_key BETWEEN $2 AND $3
ORDER BY idempotency_key LIMIT $4
