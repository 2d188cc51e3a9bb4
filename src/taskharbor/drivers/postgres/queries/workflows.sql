-- name: insert_workflow
INSERT INTO {schema}.workflows (id, last_id, total, enqueued_at, idempotency_key, about)
VALUES ($1::text::uuid, $2::text::uuid, $3::integer, $4::timestamptz, $5::text, $6::text)
ON CONFLICT DO NOTHING RETURNING true

-- name: known_workflow
SELECT id::text AS id, enqueued_at FROM {schema}.workflows WHERE id = $1::text::uuid OR idempotency_key = $2::text

-- name: insert_members
-- The jobs of a workflow: all of them new, and each either in the order or waiting for others of them.
WITH given AS MATERIALIZED (
    SELECT g.*, coalesce($14::timestamptz + g.delay * interval '1 microsecond', g.run_at, $14::timestamptz) AS place
    FROM unnest($1::text[]::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[],
                $7::bigint[], $8::timestamptz[], $9::text[], $10::text[], $11::text[], $12::boolean[])
        AS g (id, queue, task, payload, priority, run_at, delay, expires_at, delivery, options, meta, waits)
), placed AS (
    INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at, delivery)
    SELECT false, queue, -priority, place, id, 0, 0, 1, expires_at, delivery FROM given WHERE NOT waits
), waiting AS (
    INSERT INTO {schema}.waiting (job_id, number, attempts, first_number, expires_at, delivery)
    SELECT id, 0, 0, 1, expires_at, delivery FROM given WHERE $13::boolean AND waits
)
INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at, delivery, options, meta)
SELECT id, queue, task, payload, priority, place, $14::timestamptz, expires_at, delivery, options, meta FROM given

-- name: insert_member_dependencies
-- Who depends on whom, told by their places among all of the ids.
WITH ids AS MATERIALIZED (SELECT $1::text[]::uuid[] AS ids)
INSERT INTO {schema}.dependencies (job_id, position, member_id, done, fatal)
SELECT ids.ids[d.job], d.position, ids.ids[d.member], false, d.fatal
FROM ids CROSS JOIN unnest($2::integer[], $3::integer[], $4::integer[], $5::boolean[])
    AS d (job, position, member, fatal)

-- name: insert_many_dependencies
-- Of one that waits for many, in their order.
INSERT INTO {schema}.dependencies (job_id, position, member_id, done, fatal)
SELECT $1::text::uuid, (m.position - 1)::integer, m.id, false, $3::boolean
FROM unnest($2::text[]::uuid[]) WITH ORDINALITY AS m (id, position)

-- name: workflows_by_id
SELECT w.id::text AS id, w.last_id::text AS last_id, w.total, w.enqueued_at, w.idempotency_key, w.about
FROM {schema}.workflows AS w WHERE w.id = ANY ($1::text[]::uuid[])

-- name: workflows_before
SELECT w.id::text AS id, w.last_id::text AS last_id, w.total, w.enqueued_at, w.idempotency_key, w.about
FROM {schema}.workflows AS w
WHERE w.id < coalesce($1::text, 'ffffffff-ffff-ffff-ffff-ffffffffffff')::uuid ORDER BY w.id DESC LIMIT $2

-- name: workflow_numbers
-- How many of each range of jobs stand where. The places that are ranges of a key are counted, the rest is active.
-- (What is a range and nothing else is read by the key, and by no other index.)
SELECT r.id::text AS id,
       (SELECT count(*) FROM {schema}.jobs AS j WHERE j.id > r.id AND j.id <= r.last_id) AS kept,
       (SELECT count(*) FILTER (WHERE a.status = 'succeeded' AND a.next_at IS NULL)
        FROM {schema}.history AS a WHERE a.job_id > r.id AND a.job_id <= r.last_id) AS succeeded,
       (SELECT count(*) FILTER (WHERE e.state = 'dead')
        FROM {schema}.ended AS e WHERE e.job_id > r.id AND e.job_id <= r.last_id) AS dead,
       (SELECT count(*) FILTER (WHERE e.state = 'cancelled')
        FROM {schema}.ended AS e WHERE e.job_id > r.id AND e.job_id <= r.last_id) AS cancelled,
       (SELECT count(*) FROM {schema}.waiting AS w WHERE w.job_id > r.id AND w.job_id <= r.last_id) AS waiting
FROM unnest($1::text[]::uuid[], $2::text[]::uuid[]) AS r (id, last_id)

-- name: member_results
-- (The length of a result that is stored out of line is known without reading it.)
SELECT t.position, t.member, t.succeeded, CASE WHEN NOT t.left_out THEN t.result END AS result, t.left_out
FROM (
    SELECT i.position, r.place, r.member, r.succeeded, r.result,
           coalesce(sum(octet_length(r.result)) OVER (ORDER BY i.position) > $2::bigint, false) AS left_out
    FROM unnest($1::text[]::uuid[]) WITH ORDINALITY AS i (id, position)
    CROSS JOIN LATERAL {schema}.results_of(i.id) WITH ORDINALITY AS r (member, succeeded, result, place)
) AS t
ORDER BY t.position, t.place

-- name: cancel_dependants
SELECT cancelled::text AS id FROM {schema}.cancel_dependants($1::text[]::uuid[], $2) AS cancelled ORDER BY cancelled

-- name: fatal_dependencies
-- Which of these members each of these jobs ends with.
SELECT d.job_id::text AS id, d.member_id::text AS member FROM {schema}.dependencies AS d
WHERE d.member_id = ANY ($1::text[]::uuid[]) AND d.job_id = ANY ($2::text[]::uuid[]) AND d.fatal AND NOT d.done

-- name: restore_dependants
SELECT {schema}.restore_dependants($1::text[]::uuid[], $2)

-- name: workflows_around
-- For each id the only workflow whose range could hold it, if it does.
SELECT j.id::text AS job_id, w.id::text AS id, w.last_id::text AS last_id
FROM unnest($1::text[]::uuid[]) AS j (id) CROSS JOIN LATERAL (
    SELECT * FROM {schema}.workflows WHERE workflows.id < j.id ORDER BY workflows.id DESC LIMIT 1
) AS w WHERE w.last_id >= j.id

-- name: workflow_is_unfinished
SELECT EXISTS (
    SELECT FROM {schema}.jobs AS j WHERE j.id > $1::text::uuid AND j.id <= $2::text::uuid
      AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = j.id)
      AND NOT EXISTS (SELECT FROM {schema}.history AS a
                      WHERE a.job_id = j.id AND a.status = 'succeeded' AND a.next_at IS NULL)
)

-- name: forget_workflows
-- Of which nothing has to stay: no job that has not succeeded, died or been cancelled long enough ago.
DELETE FROM {schema}.workflows WHERE id = ANY (ARRAY(
    SELECT w.id FROM {schema}.workflows AS w
    WHERE w.enqueued_at < greatest($1::timestamptz, $2::timestamptz, $3::timestamptz) AND CASE w.total
        WHEN 0 THEN w.enqueued_at < $1
        ELSE NOT EXISTS (
            SELECT FROM {schema}.jobs AS j WHERE j.id > w.id AND j.id <= w.last_id
              AND NOT EXISTS (SELECT FROM {schema}.history AS a WHERE a.job_id = j.id
                              AND a.status = 'succeeded' AND a.next_at IS NULL AND a.finished_at < $1)
              AND NOT EXISTS (SELECT FROM {schema}.ended AS e WHERE e.job_id = j.id
                              AND e.finished_at < CASE e.state WHEN 'dead' THEN $2 ELSE $3 END)
        ) END
    ORDER BY w.id LIMIT $4 FOR UPDATE SKIP LOCKED
))

-- name: cancel_jobs
SELECT * FROM {schema}.cancel_jobs($1::text[]::uuid[], $2)

-- name: catch_up
SELECT * FROM {schema}.catch_up($1, $2)
