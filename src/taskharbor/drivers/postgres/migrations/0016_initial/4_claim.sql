-- Claiming, in one round trip. Why this is a function with settings of its own: see 3_dependants.sql.

-- Say whether a claim can hand out this row of `ready`. It can hand out everything that the domains accept; an owner may
-- have dropped their CHECKs. The limits are those of `drivers.stored`, as in the domains; a test compares them.
CREATE FUNCTION {schema}.is_claimable(
    p_number integer, p_attempts integer, p_first_number integer, p_run_at timestamptz, p_due_at timestamptz,
    p_expires_at timestamptz, p_delivery text
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT p_number BETWEEN 0 AND 2000000000 AND p_attempts BETWEEN 0 AND 2000000000
       AND p_first_number BETWEEN 0 AND 2000000001
       AND p_run_at >= '0001-01-01 00:00:00+00' AND p_run_at < '10000-01-01 00:00:00+00'
       AND (p_due_at IS NULL OR p_due_at >= '0001-01-01 00:00:00+00' AND p_due_at < '10000-01-01 00:00:00+00')
       AND (p_expires_at IS NULL
            OR p_expires_at >= '0001-01-01 00:00:00+00' AND p_expires_at < '10000-01-01 00:00:00+00')
       AND (p_delivery IS NULL OR p_delivery IN ('at_least_once', 'at_most_once'))
$$;

-- Take those of these rows out of `ready` that a claim cannot hand out. Their jobs are dead, reason `unreadable`, and keep
-- the row as it was. Returns the jobs. The caller has locked the rows.
CREATE FUNCTION {schema}.set_aside(p_at tid[], p_now timestamptz) RETURNS uuid[] LANGUAGE plpgsql
SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_dead uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.ready AS r WHERE r.ctid = ANY (p_at) AND NOT {schema}.is_claimable(
            r.number, r.attempts, r.first_number, r.run_at, r.due_at, r.expires_at, r.delivery)
        RETURNING r.*
    ), dead AS (
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery, raw, queue,
                                    task, fingerprint, error, code_version)
        SELECT DISTINCT ON (g.id) g.id, 'dead', 'unreadable', p_now, greatest(0, least(g.number, 2000000000)),
               greatest(0, least(g.attempts, 2000000000)),
               CASE WHEN g.delivery IN ('at_least_once', 'at_most_once') THEN g.delivery END, row_to_json(g)::text,
               e.*
        FROM gone AS g CROSS JOIN LATERAL {schema}.ending(g.id, 'dead', 'unreadable') AS e
        ON CONFLICT DO NOTHING
        RETURNING job_id
    ), tallied AS (
        INSERT INTO {schema}.tallies (queue, state, jobs)
        SELECT j.queue, 'dead', count(*)
        FROM dead AS d CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = d.job_id LIMIT 1) AS j
        GROUP BY j.queue
    )
    SELECT coalesce(array_agg(d.job_id), '{}') INTO v_dead FROM dead AS d;
    PERFORM {schema}.cancel_dependants(v_dead, p_now);
    RETURN v_dead;
END
$$;

-- The lanes of places aside that have a job, of these queues (NULL: of all): a skip scan over the primary key.
CREATE FUNCTION {schema}.lanes_aside(p_suspects boolean, p_queues text[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_lane text;
    v_lanes text[] := '{}';
BEGIN
    IF p_queues IS NULL THEN
        v_lane := '';
        LOOP
            SELECT r.queue INTO v_lane FROM {schema}.ready AS r WHERE r.suspect = p_suspects AND r.queue > v_lane
            ORDER BY r.suspect, r.queue LIMIT 1;
            EXIT WHEN v_lane IS NULL;
            IF strpos(v_lane, E'\x1f\x1f') > 0 THEN
                v_lanes := v_lanes || v_lane;
            END IF;
        END LOOP;
        RETURN v_lanes;
    END IF;
    FOREACH v_queue IN ARRAY p_queues LOOP
        v_lane := v_queue || E'\x1f\x1f';
        LOOP
            SELECT r.queue INTO v_lane FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue > v_lane AND r.queue < v_queue || E'\x1f '
            ORDER BY r.suspect, r.queue LIMIT 1;
            EXIT WHEN v_lane IS NULL;
            v_lanes := v_lanes || v_lane;
        END LOOP;
    END LOOP;
    RETURN v_lanes;
END
$$;

-- Make jobs due that wait in these lanes, at most p_limit of them: their delay was for the workers that do not know them.
CREATE FUNCTION {schema}.recall(p_suspects boolean, p_lanes text[], p_now timestamptz, p_limit integer)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_at tid[];
BEGIN
    SELECT array_agg(n.at) INTO v_at FROM (
        SELECT n.at FROM unnest(p_lanes) AS l (lane) CROSS JOIN LATERAL (
            SELECT r.ctid AS at, r.rank, r.run_at, r.id FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = l.lane AND r.run_at > p_now
            ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT p_limit
        ) AS n ORDER BY n.rank, n.run_at, n.id LIMIT p_limit
    ) AS n;
    WITH moved AS (
        UPDATE {schema}.ready SET run_at = p_now WHERE ctid = ANY (ARRAY(
            SELECT r.ctid FROM {schema}.ready AS r WHERE r.ctid = ANY (v_at) AND r.run_at > p_now
            FOR UPDATE SKIP LOCKED
        )) RETURNING id
    )
    UPDATE {schema}.attempts AS a SET next_at = p_now FROM moved AS m CROSS JOIN LATERAL (
        SELECT l.number FROM {schema}.attempts AS l WHERE l.job_id = m.id ORDER BY l.number DESC LIMIT 1
    ) AS latest
    WHERE a.job_id = m.id AND a.number = latest.number;
END
$$;

-- A claim of many jobs at once locks this table, which has no rows. Only a worker may lock it.
CREATE TABLE {schema}.claiming ();

-- Wait until no other transaction claims many jobs, and say whether it is this one's turn now. A second is enough for many
-- claims; a transaction that takes longer has lost its client.
CREATE FUNCTION {schema}.take_turn() RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '1s'
AS $$
BEGIN
    LOCK TABLE {schema}.claiming IN EXCLUSIVE MODE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Take the first due rows of one queue and rank without locking each of them first, and say what the claim answers.
--
-- It looks at the rows and at their jobs, and then deletes exactly what it has seen. `taken` is 0 where no row is due. Else
-- it takes all or nothing: `taken` is NULL where another transaction holds or has changed a row, where a row or a job is
-- not plain (it was attempted before, say), and where the payloads are too large. The caller then locks row by row. It
-- waits no longer than the lock_timeout for an operator who has locked a row between the look and the deletion. The
-- caller has taken its turn.
--
-- The separator is a control character, which JSON has none of. A text that has one anyway makes a piece too many, and the
-- driver then reads the jobs one by one.
CREATE FUNCTION {schema}.take_unlocked(
    p_suspects boolean, p_queue text, p_rank integer, p_from timestamptz, p_now timestamptz, p_limit integer,
    p_bytes bigint,
    OUT taken integer, OUT ids uuid[], OUT run_ats timestamptz[], OUT expires_ats timestamptz[], OUT id_texts text,
    OUT tasks text, OUT payloads text, OUT enqueued_ats timestamptz[], OUT options text[], OUT metas text,
    OUT bytes bigint
) LANGUAGE plpgsql
SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    v_bytes_each bigint := 4 * p_bytes / p_limit;  -- so that a look never reads much more than a claim may answer
    v_count integer;
    v_at tid[];
    v_gone tid[];
    v_is_plain boolean;
BEGIN
    SELECT count(*), array_agg(r.at), array_agg(r.id), array_agg(r.run_at),
           array_agg(r.expires_at),
           string_agg(r.id::text, E'\x1e'), string_agg(j.task, E'\x1e'),
           string_agg(CASE WHEN j.bytes <= v_bytes_each THEN j.payload END, E'\x1e'), array_agg(j.enqueued_at::timestamptz),
           CASE WHEN count(j.options) > 0
                THEN array_agg(CASE WHEN j.bytes <= v_bytes_each THEN j.options END) END,
           json_object_agg(r.id, j.meta) FILTER (WHERE j.meta IS NOT NULL AND j.bytes <= v_bytes_each),
           sum(j.bytes), bool_and(
               (r.xmax = 0 AND r.number = 0 AND r.attempts = 0 AND r.first_number = 1 AND r.due_at IS NULL
                AND (r.expires_at IS NULL
                     OR {schema}.is_claimable(0, 0, 1, r.run_at, NULL, r.expires_at, NULL))
                AND r.delivery IS NULL AND j.task IS NOT NULL AND j.bytes <= v_bytes_each
                AND j.priority = -p_rank AND j.version = 1) IS TRUE)
    INTO v_count, v_at, ids, run_ats, expires_ats, id_texts, tasks, payloads, enqueued_ats, options, metas, bytes,
         v_is_plain
    FROM (
        SELECT r.ctid AS at, r.xmax, r.id, r.run_at::timestamptz, r.number, r.attempts, r.first_number, r.due_at,
               r.expires_at::timestamptz, r.delivery
        FROM {schema}.ready AS r
        WHERE r.suspect = p_suspects AND r.queue = p_queue AND r.rank = p_rank AND r.run_at BETWEEN p_from AND p_now
        ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT p_limit
    ) AS r
    -- LIMIT keeps the planner from turning this into a join with all of the jobs.
    LEFT JOIN LATERAL (
        SELECT *, octet_length(payload) + coalesce(octet_length(options), 0)
            + coalesce(octet_length(meta), 0) AS bytes
        FROM {schema}.jobs WHERE jobs.id = r.id LIMIT 1
    ) AS j ON true;
    IF v_count = 0 THEN
        taken := 0;
        RETURN;
    END IF;
    IF v_is_plain IS NOT TRUE OR bytes > p_bytes
       OR NOT {schema}.is_claimable(0, 0, 1, run_ats[1], run_ats[v_count], NULL, NULL) THEN
        RETURN;
    END IF;
    WITH gone AS (DELETE FROM {schema}.ready AS r WHERE r.ctid = ANY (v_at) RETURNING r.ctid AS at)
    SELECT array_agg(gone.at) INTO v_gone FROM gone;
    -- A row that was changed meanwhile is not where it was: it is missing, or the server has deleted its new version.
    IF v_gone IS DISTINCT FROM v_at
       AND ARRAY(SELECT unnest(v_gone) AS at ORDER BY at) <> ARRAY(SELECT unnest(v_at) AS at ORDER BY at) THEN
        RAISE lock_not_available;
    END IF;
    taken := v_count;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    taken := NULL;  -- and what was deleted is back
END
$$;

-- Lease the first due jobs over all the queues, by priority, then due time, then id.
--
-- While any transaction of the server holds an old snapshot open, the rows that claims have deleted stay where they were,
-- and so do their entries in the index: the search for the first live row of a queue walks past all of them, and takes
-- the longer the more was claimed. So a claim whose search was far hands its trail to the next one: for each queue and
-- rank that held something, the due time before which nothing is left. With a trail and without p_search, a claim begins
-- there and walks past only what has died since. It then misses what lies behind the trail or beside it (another queue,
-- another rank): the caller searches again every now and then.
--
-- p_trail   what the last claim with this p_queues handed out, unchanged; NULL for none
-- p_search  whether to search the whole of the queues (as without a trail); the claim then brings the trail up to date
-- p_far     how many dead entries make a search a far one
-- p_late    microseconds: a job that a long transaction stored up to this long after the job's own due time is still
--           found on the trail
-- p_bytes   how many bytes of payloads, options and meta the answer may hold; the first job is in it whatever its size
-- p_max_losses  the worker's setting; the lease keeps it for the process that settles the losses
-- p_aside   the labels of places aside to look into as well; NULL for none. Such a claim is given no trail.
-- p_recall  those of them whose jobs this worker knows: see recall()
-- p_many    whether there are probably many jobs, and all of them plain: then see take_unlocked
--
-- The answer has one row for each rank that gave jobs, and most often one row in all. What differs from job to job is a
-- column: texts joined by a separator, or an array. An array that is NULL stands for jobs that all have the usual value
-- (see `drivers.postgres.leases`). `metas` is JSON: the meta of each job that has one, by its id; NULL if none has.
-- `nobodys` are rows of the order that have no job.
-- The last row may have no jobs. Only this row has: the times, trail (NULL after a search that was not far), searched
-- (how many microseconds the claim took), more (whether the claim ended because of p_bytes), aside (jobs whose rows
-- cannot be read: they are dead now), many (what the next claim should be given as p_many), labels (of the places aside
-- that have a job in the queues that are served, without those of a hold), and holds (the labels of those in force).
CREATE FUNCTION {schema}.claim_on_trail(
    p_token text, p_worker text, p_lease bigint, p_limit integer, p_queues text[], p_once_limit integer,
    p_suspects boolean, p_supervised boolean, p_now timestamptz, p_trail text, p_search boolean, p_far bigint,
    p_late bigint, p_bytes bigint, p_max_losses integer, p_many boolean,
    p_aside text[], p_recall text[]
) RETURNS TABLE (
    now_at timestamptz, lease_expires_at timestamptz, next_due timestamptz, suspects_waiting boolean,
    repeated boolean, trail text, searched bigint, more boolean, aside text[], many boolean,
    taken integer, ids text, tasks text, payloads text, queue text, queues text[], priority integer,
    priorities integer[], numbers integer[], attempts integer[], first_numbers integer[], run_ats bytea,
    enqueued_ats bytea, due_ats timestamptz[], expires_ats timestamptz[], deliveries text[], options text[],
    versions integer[], metas text, nobodys text[], labels text[], holds text[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_expires_at timestamptz := v_now + p_lease * interval '1 microsecond';
    v_began timestamptz := clock_timestamp();
    v_index oid := '{schema}.ready_pkey'::regclass;
    v_searches boolean := p_search OR p_trail IS NULL;
    v_listed boolean := NOT v_searches;  -- whether every rank of each queue is known, or only its first
    v_keeps boolean := p_trail IS NOT NULL;  -- a trail, for the next claim
    v_entries bigint;
    v_walked bigint := 0;  -- dead entries of the index, as far as is known
    v_edge timestamptz := v_now - p_late * interval '1 microsecond';  -- no trail goes beyond it
    v_known_queues text[];
    v_known_ranks integer[];
    v_known_froms timestamptz[];
    v_past_queues text[];
    v_past_ranks integer[];
    v_past_froms timestamptz[];
    v_trail text;
    v_exhausted boolean;
    v_goes_on boolean;
    v_paused text[];
    v_open text[];          -- what of p_aside no hold keeps closed
    v_open_lanes text[] := '{}';  -- … in the queues given
    v_beside text[];        -- lanes of places aside that have a job
    v_has_beside boolean := false;
    v_queues text[];
    v_ranks integer[];      -- of each queue: the rank, …
    v_froms timestamptz[];  -- … and the due time of the first row that is still to be looked at
    v_first_ranks integer[];
    v_first record;
    v_rank integer;
    v_lanes text[];
    v_lane_froms timestamptz[];
    v_left integer := greatest(p_limit, 0);
    v_once_left integer := greatest(p_once_limit, 0);  -- counted as `drivers.memory.leases._choose` counts it
    v_taken integer;
    v_is_small boolean := true;
    v_is_usual boolean := true;  -- nothing but numbers, due times and queues differs from job to job
    v_is_plain boolean := true;  -- every job so far
    v_is_taken boolean;       -- by take_unlocked
    v_is_complete boolean := false;  -- every rank of every queue was looked at
    v_bytes bigint := 0;      -- of what was taken
    v_part_bytes bigint;
    v_more boolean := false;
    v_aside uuid[] := '{}';
    v_next_due timestamptz;
    v_tries boolean := false;  -- to take rows without locking them first
    v_ids uuid[] := '{}';
    v_numbers integer[] := '{}';
    v_attempts integer[] := '{}';
    v_first_numbers integer[] := '{}';
    v_run_ats timestamptz[] := '{}';
    v_lane_queues text[] := '{}';
    v_due_ats timestamptz[] := '{}';
    v_expires_ats timestamptz[] := '{}';
    v_deliveries text[] := '{}';
    c record;
    u record;  -- what take_unlocked took
BEGIN
    SELECT EXISTS (SELECT FROM {schema}.leases WHERE token = p_token),
           ARRAY(SELECT p.queue FROM {schema}.paused AS p),
           -- The suspects' place is small: a scan of it is.
           NOT p_suspects AND EXISTS (
               SELECT FROM {schema}.ready AS r
               CROSS JOIN LATERAL (SELECT split_part(r.queue, E'\x1f\x1f', 1), split_part(r.queue, E'\x1f\x1f', 2)) AS l (queue, label)
               WHERE r.suspect AND r.run_at <= v_now AND (p_queues IS NULL OR l.queue = ANY (p_queues))
                 AND (l.label = '' OR l.label = ANY (p_aside) AND NOT EXISTS (
                     SELECT FROM {schema}.holds AS h WHERE l.label = 'hold:' || h.kind || ':' || h.name))
                 AND NOT EXISTS (SELECT FROM {schema}.paused AS p WHERE p.queue = l.queue)),
           ARRAY(SELECT 'hold:' || h.kind || ':' || h.name FROM {schema}.holds AS h),
           ARRAY(SELECT DISTINCT r.queue FROM {schema}.ready AS r WHERE r.suspect AND strpos(r.queue, E'\x1f\x1f') > 0)
    INTO repeated, v_paused, suspects_waiting, holds, v_beside;
    IF repeated THEN
        -- The answer to this very claim was lost: the caller asks for the lease again.
        RETURN NEXT;
        RETURN;
    END IF;

    IF p_many AND v_left > 0 THEN
        v_tries := {schema}.take_turn();
        v_began := clock_timestamp();
        v_now := coalesce(p_now, v_began);
        v_expires_at := v_now + p_lease * interval '1 microsecond';
        v_edge := v_now - p_late * interval '1 microsecond';
    END IF;

    IF p_aside IS NOT NULL THEN
        v_open := ARRAY(SELECT DISTINCT l FROM unnest(p_aside) AS l WHERE l <> ALL (holds));
        SELECT coalesce(array_agg(q.queue || E'\x1f\x1f' || l.label), '{}') INTO v_open_lanes
        FROM unnest(p_queues) AS q (queue) CROSS JOIN unnest(v_open) AS l (label) WHERE q.queue <> ALL (v_paused);
        IF p_recall IS NOT NULL AND v_left > 0 THEN
            PERFORM {schema}.recall(p_suspects, ARRAY(
                SELECT l.lane FROM unnest(
                    CASE WHEN p_queues IS NULL THEN {schema}.lanes_aside(p_suspects, NULL) ELSE v_open_lanes END
                ) AS l (lane)
                WHERE split_part(l.lane, E'\x1f\x1f', 2) = ANY (p_recall) AND split_part(l.lane, E'\x1f\x1f', 2) = ANY (v_open)
                  AND split_part(l.lane, E'\x1f\x1f', 1) <> ALL (v_paused)
            ), v_now, v_left);
        END IF;
    END IF;

    -- Where each queue begins: found one time in a claim, and everything else starts from there.
    IF p_trail IS NOT NULL THEN
        SELECT array_agg(t.queue), array_agg(t.rank), array_agg(t.from_at)
        INTO v_known_queues, v_known_ranks, v_known_froms
        FROM json_to_recordset(p_trail::json) AS t (queue text, rank integer, from_at timestamptz);
    END IF;
    -- What the statistics count is what was walked, on a busy machine too, where the time says little.
    v_entries := pg_stat_get_xact_tuples_returned(v_index);
    IF v_left = 0 THEN
        NULL;  -- only a lease that exists was asked for
    ELSIF NOT v_searches THEN
        SELECT array_agg(t.queue), array_agg(t.rank), array_agg(t.from_at) INTO v_queues, v_ranks, v_froms
        FROM unnest(v_known_queues, v_known_ranks, v_known_froms) AS t (queue, rank, from_at)
        WHERE t.queue <> ALL (v_paused);
    ELSIF p_queues IS NOT NULL THEN
        SELECT array_agg(q.queue), array_agg(n.rank), array_agg(n.run_at) INTO v_queues, v_ranks, v_froms
        FROM (SELECT DISTINCT q AS queue FROM unnest(p_queues || v_open_lanes) AS q WHERE q <> ALL (v_paused)) AS q
        CROSS JOIN LATERAL (
            SELECT r.rank::integer, r.run_at::timestamptz FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = q.queue
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
        ) AS n;
    ELSE
        -- A skip scan over the primary key: one seek for each queue, however many rows it holds.
        SELECT r.queue, r.rank, r.run_at INTO v_first FROM {schema}.ready AS r WHERE r.suspect = p_suspects
        ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1;
        WHILE v_first.queue IS NOT NULL LOOP
            IF strpos(v_first.queue, E'\x1f\x1f') > 0 THEN
                v_beside := v_beside || v_first.queue;
            END IF;
            IF split_part(v_first.queue, E'\x1f\x1f', 1) <> ALL (v_paused)
               AND (strpos(v_first.queue, E'\x1f\x1f') = 0 OR split_part(v_first.queue, E'\x1f\x1f', 2) = ANY (v_open)) THEN
                v_queues := v_queues || v_first.queue;
                v_ranks := v_ranks || v_first.rank::integer;
                v_froms := v_froms || v_first.run_at;
            END IF;
            SELECT r.queue, r.rank, r.run_at INTO v_first FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue > v_first.queue
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1;
        END LOOP;
    END IF;
    v_walked := pg_stat_get_xact_tuples_returned(v_index) - v_entries;
    v_first_ranks := v_ranks;

    -- What stands aside there, for the next claim. One probe for each queue, and mostly it finds nothing.
    IF p_queues IS NOT NULL THEN
        SELECT EXISTS (SELECT FROM unnest(p_queues) AS q (queue) CROSS JOIN LATERAL (
            SELECT FROM {schema}.ready AS r
            WHERE NOT r.suspect AND r.queue > q.queue || E'\x1f\x1f' AND r.queue < q.queue || E'\x1f ' LIMIT 1
        ) AS n) INTO v_has_beside;
        IF v_has_beside THEN
            v_beside := v_beside || {schema}.lanes_aside(false, p_queues);
        END IF;
    ELSIF NOT v_searches THEN
        v_beside := v_beside || {schema}.lanes_aside(false, ARRAY(SELECT DISTINCT q FROM unnest(v_known_queues) AS q));
    ELSIF p_suspects OR v_left = 0 THEN
        v_beside := v_beside || {schema}.lanes_aside(false, NULL);
    END IF;
    labels := '{}';
    IF v_beside <> '{}' THEN
        labels := ARRAY(
            SELECT DISTINCT split_part(l.lane, E'\x1f\x1f', 2) COLLATE "C" AS label FROM unnest(v_beside) AS l (lane)
            WHERE split_part(l.lane, E'\x1f\x1f', 1) <> ALL (v_paused)
              AND (p_queues IS NULL OR split_part(l.lane, E'\x1f\x1f', 1) = ANY (p_queues))
              AND split_part(l.lane, E'\x1f\x1f', 2) <> ALL (holds)
            ORDER BY label LIMIT 200);
    END IF;

    WHILE v_left > 0 LOOP
        IF NOT v_listed AND v_walked >= p_far THEN
            -- There will be a trail, and it names every rank that holds something.
            SELECT array_agg(l.queue), array_agg(lane.rank), array_agg(lane.run_at) INTO v_queues, v_ranks, v_froms
            FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at)
            CROSS JOIN LATERAL (
                WITH RECURSIVE lanes AS (
                    SELECT l.rank AS rank, l.from_at AS run_at
                    UNION ALL
                    SELECT n.rank, n.run_at FROM lanes CROSS JOIN LATERAL (
                        SELECT r.rank::integer, r.run_at::timestamptz FROM {schema}.ready AS r
                        WHERE r.suspect = p_suspects AND r.queue = l.queue AND r.rank > lanes.rank
                        ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
                    ) AS n
                )
                SELECT lanes.rank, lanes.run_at FROM lanes
            ) AS lane
            WHERE l.rank IS NOT NULL;
            v_listed := true;
            v_keeps := true;
        END IF;
        -- The next rank that any of the queues holds, and which of them do. A million future jobs at the top
        -- priority cost one seek.
        IF cardinality(v_queues) = 1 THEN
            v_rank := v_ranks[1];
            v_lanes := v_queues;
            v_lane_froms := v_froms;
        ELSE
            v_rank := NULL;
            SELECT l.rank, array_agg(l.queue), array_agg(l.from_at) INTO v_rank, v_lanes, v_lane_froms
            FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at)
            WHERE l.rank IS NOT NULL GROUP BY l.rank ORDER BY l.rank LIMIT 1;
        END IF;
        v_is_complete := v_rank IS NULL;
        EXIT WHEN v_is_complete;

        v_entries := pg_stat_get_xact_tuples_returned(v_index);
        v_is_taken := false;
        IF v_tries AND cardinality(v_lanes) = 1 THEN
            SELECT * INTO u FROM {schema}.take_unlocked(
                p_suspects, v_lanes[1], v_rank, v_lane_froms[1], v_now, v_left, p_bytes - v_bytes);
            v_is_taken := u.taken > 0;
            v_tries := u.taken IS NOT NULL;  -- a rank with nothing but future jobs says nothing about the next
        END IF;
        IF v_is_taken THEN
            SELECT NULL::tid[] AS at, u.ids, array_fill(1, size) AS numbers, array_fill(0, size) AS attempts,
                   array_fill(1, size) AS first_numbers, u.run_ats, array_fill(v_lanes[1], size) AS queues,
                   array_fill(NULL::timestamptz, size) AS due_ats, u.expires_ats,
                   array_fill(NULL::text, size) AS deliveries, 0::bigint AS once, u.taken::bigint AS found,
                   true AS claimable
            INTO c FROM (SELECT ARRAY[u.taken] AS size) AS s;
            v_exhausted := u.taken < v_left;
            v_walked := v_walked + pg_stat_get_xact_tuples_returned(v_index) - v_entries - u.taken;
        ELSIF cardinality(v_lanes) = 1 THEN
            -- One queue: its rows in the order of the key, locked one after the other until there are enough.
            WITH locked AS MATERIALIZED (
                SELECT r.ctid AS at, r.queue, r.run_at::timestamptz, r.id, r.number::integer, r.attempts::integer,
                       r.first_number::integer, r.due_at::timestamptz, r.expires_at::timestamptz, r.delivery::text
                FROM {schema}.ready AS r
                WHERE r.suspect = p_suspects AND r.queue = v_lanes[1] AND r.rank = v_rank
                  AND r.run_at BETWEEN v_lane_froms[1] AND v_now
                ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT v_left FOR UPDATE SKIP LOCKED
            ), counted AS (
                SELECT *, count(*) FILTER (WHERE delivery = 'at_most_once')
                    OVER (ORDER BY run_at, id ROWS UNBOUNDED PRECEDING) AS once
                FROM locked
            )
            SELECT array_agg(at) AS at, array_agg(id) AS ids, array_agg(least(number, 2000000000) + 1) AS numbers,
                   array_agg(attempts) AS attempts, array_agg(first_number) AS first_numbers,
                   array_agg(run_at) AS run_ats, array_agg(queue) AS queues, array_agg(due_at) AS due_ats,
                   array_agg(expires_at) AS expires_ats, array_agg(delivery) AS deliveries,
                   max(once) AS once, (SELECT count(*) FROM locked) AS found,
                   bool_and({schema}.is_claimable(number, attempts, first_number, run_at, due_at, expires_at,
                                                  delivery)) AS claimable
            INTO c FROM counted WHERE once <= v_once_left;
            v_exhausted := c.found < v_left;
            -- (Of several queues, most of what is read is alive.)
            v_walked := v_walked + pg_stat_get_xact_tuples_returned(v_index) - v_entries - c.found;
        ELSE
            -- Several queues: the first rows of each, merged. They are looked at without locking them, since
            -- most of them will not be taken; more of them than needed, since others may hold some.
            WITH first AS MATERIALIZED (
                SELECT l.queue, n.run_at, n.id FROM unnest(v_lanes, v_lane_froms) AS l (queue, from_at)
                CROSS JOIN LATERAL (
                    SELECT r.run_at, r.id FROM {schema}.ready AS r
                    WHERE r.suspect = p_suspects AND r.queue = l.queue AND r.rank = v_rank
                      AND r.run_at BETWEEN l.from_at AND v_now
                    ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT v_left * 4
                ) AS n
                ORDER BY n.run_at, n.id LIMIT v_left * 4
            ), locked AS MATERIALIZED (
                SELECT r.ctid AS at, r.queue, r.run_at::timestamptz, r.id, r.number::integer, r.attempts::integer,
                       r.first_number::integer, r.due_at::timestamptz, r.expires_at::timestamptz, r.delivery::text
                FROM first
                JOIN {schema}.ready AS r ON r.suspect = p_suspects AND r.queue = first.queue
                    AND r.rank = v_rank AND r.run_at = first.run_at AND r.id = first.id
                ORDER BY first.run_at, first.id LIMIT v_left FOR UPDATE OF r SKIP LOCKED
            ), counted AS (
                SELECT *, count(*) FILTER (WHERE delivery = 'at_most_once')
                    OVER (ORDER BY run_at, id ROWS UNBOUNDED PRECEDING) AS once
                FROM locked
            )
            SELECT array_agg(at) AS at, array_agg(id) AS ids, array_agg(least(number, 2000000000) + 1) AS numbers,
                   array_agg(attempts) AS attempts, array_agg(first_number) AS first_numbers,
                   array_agg(run_at) AS run_ats, array_agg(queue) AS queues, array_agg(due_at) AS due_ats,
                   array_agg(expires_at) AS expires_ats, array_agg(delivery) AS deliveries,
                   max(once) AS once, (SELECT count(*) FROM locked) AS found,
                   bool_and({schema}.is_claimable(number, attempts, first_number, run_at, due_at, expires_at,
                                                  delivery)) AS claimable,
                   (SELECT count(*) FROM first) AS seen
            INTO c FROM counted WHERE once <= v_once_left;
            v_exhausted := c.found < v_left AND c.seen < v_left * 4;
        END IF;

        IF NOT c.claimable THEN
            v_aside := v_aside || {schema}.set_aside(c.at, v_now);
            CONTINUE;  -- with what is left of this rank
        END IF;
        v_taken := coalesce(cardinality(c.ids), 0);
        IF v_taken > 0 AND taken IS NOT NULL THEN
            RETURN NEXT;  -- the jobs of the rank before
            taken := NULL;
        END IF;
        IF v_is_taken THEN
            SELECT u.taken, u.id_texts, u.tasks, u.payloads, split_part(v_lanes[1], E'\x1f\x1f', 1), NULL, -v_rank, NULL,
                   NULL, NULL, NULL, array_send(u.run_ats), array_send(u.enqueued_ats), NULL,
                   CASE WHEN array_remove(u.expires_ats, NULL) <> '{}' THEN u.expires_ats END, NULL, u.options, NULL,
                   u.metas, NULL
            INTO taken, ids, tasks, payloads, queue, queues, priority, priorities, numbers, attempts, first_numbers,
                 run_ats, enqueued_ats, due_ats, expires_ats, deliveries, options, versions, metas, nobodys;
            v_part_bytes := u.bytes;
        ELSIF v_taken > 0 THEN
            -- As many as fit are handed out. (The length of a value that is stored out of line is known without
            -- reading it.)
            SELECT count(*), string_agg(t.id::text, E'\x1e'), string_agg(coalesce(t.task, ''), E'\x1e'),
                   string_agg(coalesce(t.payload, ''), E'\x1e'), split_part(v_lanes[1], E'\x1f\x1f', 1),
                   CASE WHEN cardinality(v_lanes) > 1 THEN array_agg(split_part(t.queue, E'\x1f\x1f', 1)) END, -v_rank,
                   CASE WHEN NOT bool_and(t.priority = -v_rank) THEN array_agg(t.priority::integer) END,
                   CASE WHEN NOT bool_and(t.number = 1) THEN array_agg(t.number) END,
                   CASE WHEN NOT bool_and(t.attempts = 0) THEN array_agg(t.attempts) END,
                   CASE WHEN NOT bool_and(t.first_number = 1) THEN array_agg(t.first_number) END,
                   array_send(array_agg(t.run_at)), array_send(array_agg(coalesce(t.enqueued_at, t.run_at))),
                   CASE WHEN count(t.due_at) > 0 THEN array_agg(t.due_at) END,
                   CASE WHEN count(t.expires_at) > 0 THEN array_agg(t.expires_at) END,
                   CASE WHEN count(t.delivery) > 0 THEN array_agg(t.delivery) END,
                   CASE WHEN count(t.options) > 0 THEN array_agg(t.options) END,
                   CASE WHEN NOT bool_and(t.version = 1) THEN array_agg(t.version::integer) END,
                   json_object_agg(t.id, t.meta) FILTER (WHERE t.meta IS NOT NULL),
                   array_agg(t.id::text) FILTER (WHERE t.task IS NULL), coalesce(sum(t.size), 0),
                   coalesce(max(t.size), 0) <= 4 * p_bytes / p_limit
            INTO taken, ids, tasks, payloads, queue, queues, priority, priorities, numbers, attempts, first_numbers,
                 run_ats, enqueued_ats, due_ats, expires_ats, deliveries, options, versions, metas, nobodys,
                 v_part_bytes, v_is_small
            FROM (
                SELECT e.*, j.task, j.payload, j.priority, j.enqueued_at, j.options, j.version, j.meta, j.size,
                       sum(coalesce(j.size, 0)) OVER (ORDER BY e.position ROWS UNBOUNDED PRECEDING) AS bytes
                FROM unnest(c.ids, c.numbers, c.attempts, c.first_numbers, c.run_ats, c.queues, c.due_ats,
                            c.expires_ats, c.deliveries) WITH ORDINALITY
                    AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery, position)
                -- LIMIT keeps the planner from turning this into a join with all of the jobs.
                LEFT JOIN LATERAL (
                    SELECT *, octet_length(payload) + coalesce(octet_length(options), 0)
                        + coalesce(octet_length(meta), 0) AS size
                    FROM {schema}.jobs WHERE jobs.id = e.id LIMIT 1
                ) AS j ON true
            ) AS t
            WHERE v_bytes + t.bytes <= p_bytes OR (t.position = 1 AND v_ids = '{}');
            IF taken < v_taken THEN
                v_more := true;
                v_taken := taken;
                taken := nullif(taken, 0);
                c.at := c.at[:v_taken];
                c.ids := c.ids[:v_taken];
                c.numbers := c.numbers[:v_taken];
                c.attempts := c.attempts[:v_taken];
                c.first_numbers := c.first_numbers[:v_taken];
                c.run_ats := c.run_ats[:v_taken];
                c.queues := c.queues[:v_taken];
                c.due_ats := c.due_ats[:v_taken];
                c.expires_ats := c.expires_ats[:v_taken];
                c.deliveries := c.deliveries[:v_taken];
                c.once := cardinality(array_positions(c.deliveries, 'at_most_once'));
            END IF;
            DELETE FROM {schema}.ready WHERE ctid = ANY (c.at);
        END IF;
        IF v_taken > 0 THEN
            v_is_usual := v_is_usual AND attempts IS NULL AND first_numbers IS NULL AND due_ats IS NULL
                AND expires_ats IS NULL AND deliveries IS NULL;
            v_is_plain := v_is_plain AND v_is_small AND queues IS NULL AND priorities IS NULL AND numbers IS NULL
                AND attempts IS NULL AND first_numbers IS NULL AND due_ats IS NULL AND deliveries IS NULL
                AND versions IS NULL AND nobodys IS NULL;
            v_bytes := v_bytes + v_part_bytes;
            v_ids := v_ids || c.ids;
            v_numbers := v_numbers || c.numbers;
            v_attempts := v_attempts || c.attempts;
            v_first_numbers := v_first_numbers || c.first_numbers;
            v_run_ats := v_run_ats || c.run_ats;
            v_lane_queues := v_lane_queues || c.queues;
            v_due_ats := v_due_ats || c.due_ats;
            v_expires_ats := v_expires_ats || c.expires_ats;
            v_deliveries := v_deliveries || c.deliveries;
            v_once_left := v_once_left - c.once;
            v_left := v_left - v_taken;
        END IF;
        -- What comes after an at_most_once job too many, or one too large, must not overtake it.
        v_goes_on := v_taken = c.found AND v_left > 0;
        -- Where nothing due is left, nothing is before now; elsewhere, before the last one taken.
        IF NOT (v_keeps OR v_goes_on) THEN
            NULL;
        ELSIF cardinality(v_lanes) = 1 THEN
            v_past_queues := v_past_queues || v_lanes[1];
            v_past_ranks := v_past_ranks || v_rank;
            v_past_froms := v_past_froms || CASE WHEN v_exhausted AND v_taken = c.found THEN v_edge
                ELSE coalesce(c.run_ats[v_taken], v_lane_froms[1]) END;
        ELSE
            SELECT v_past_queues || array_agg(l.queue), v_past_ranks || array_agg(v_rank),
                   v_past_froms || array_agg(CASE
                       WHEN v_exhausted AND v_taken = c.found THEN v_edge
                       ELSE coalesce(t.last_at, l.from_at) END)
            INTO v_past_queues, v_past_ranks, v_past_froms
            FROM unnest(v_lanes, v_lane_froms) AS l (queue, from_at)
            LEFT JOIN (
                SELECT t.queue, max(t.run_at) AS last_at FROM unnest(c.queues, c.run_ats) AS t (queue, run_at)
                GROUP BY t.queue
            ) AS t ON t.queue = l.queue;
        END IF;
        EXIT WHEN NOT v_goes_on;

        IF v_listed THEN
            SELECT array_agg(l.queue), array_agg(l.rank), array_agg(l.from_at) INTO v_queues, v_ranks, v_froms
            FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at) WHERE l.rank > v_rank;
            CONTINUE;
        END IF;
        -- What this rank holds for later, and the next rank of these queues.
        IF cardinality(v_queues) = 1 THEN
            SELECT r.run_at INTO v_first FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = v_queues[1] AND r.rank = v_rank AND r.run_at > v_now
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1;
            v_next_due := least(v_next_due, v_first.run_at);
        END IF;
        v_entries := pg_stat_get_xact_tuples_returned(v_index);
        IF cardinality(v_queues) = 1 THEN
            SELECT r.rank, r.run_at INTO v_first FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = v_queues[1] AND r.rank > v_rank
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1;
            v_ranks := ARRAY[v_first.rank::integer];
            v_froms := ARRAY[v_first.run_at];
        ELSE
            SELECT array_agg(CASE l.rank WHEN v_rank THEN n.rank ELSE l.rank END ORDER BY l.position),
                   array_agg(CASE l.rank WHEN v_rank THEN n.run_at ELSE l.from_at END ORDER BY l.position)
            INTO v_ranks, v_froms
            FROM unnest(v_queues, v_ranks, v_froms) WITH ORDINALITY AS l (queue, rank, from_at, position)
            LEFT JOIN LATERAL (
                SELECT r.rank, r.run_at FROM {schema}.ready AS r
                WHERE l.rank = v_rank AND r.suspect = p_suspects AND r.queue = l.queue AND r.rank > v_rank
                ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
            ) AS n ON true;
        END IF;
        v_walked := v_walked + pg_stat_get_xact_tuples_returned(v_index) - v_entries;
    END LOOP;

    IF v_ids <> '{}' THEN
        IF v_is_usual THEN  -- what reads a claim takes an empty array for one of the usual values
            v_attempts := '{}';
            v_first_numbers := '{}';
            v_due_ats := '{}';
            v_expires_ats := '{}';
            v_deliveries := '{}';
        END IF;
        IF p_aside IS NOT NULL THEN  -- what the rows call their queue is their lane
            v_lane_queues := ARRAY(SELECT split_part(q.lane, E'\x1f\x1f', 1)
                                   FROM unnest(v_lane_queues) WITH ORDINALITY AS q (lane, position) ORDER BY q.position);
        END IF;
        WITH leased AS (
            INSERT INTO {schema}.leases (token, origin, worker, expires_at, alone, supervised, max_losses, open)
            VALUES (p_token, p_token, p_worker, v_expires_at, p_suspects, p_supervised, p_max_losses,
                    cardinality(v_ids))
        )
        INSERT INTO {schema}.claims (token, ids, numbers, attempts, first_numbers, run_ats, queues, due_ats,
                                     expires_ats, deliveries)
        VALUES (p_token, v_ids, v_numbers, v_attempts, v_first_numbers, v_run_ats, v_lane_queues, v_due_ats,
                v_expires_ats, v_deliveries);
        IF v_once_left = greatest(p_once_limit, 0) THEN
            -- A server that crashes may forget such a claim: its jobs are still to be claimed, and a number
            -- that it gave out proves nothing without its lease. With an at_most_once job it must not.
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
    END IF;

    IF v_more OR cardinality(v_ids) >= p_limit THEN
        v_next_due := NULL;  -- the caller comes again anyway
    ELSIF v_listed THEN
        SELECT min(due.run_at) INTO v_next_due
        FROM (
            SELECT * FROM unnest(v_past_queues, v_past_ranks)
            UNION
            SELECT * FROM unnest(v_queues, v_ranks)
        ) AS t (queue, rank)
        CROSS JOIN LATERAL (
            SELECT r.run_at FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = t.queue AND r.rank = t.rank AND r.run_at > v_now
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
        ) AS due;
    ELSIF v_queues IS NOT NULL AND NOT (v_is_complete AND cardinality(v_queues) = 1) THEN
        SELECT min(due.run_at) INTO v_next_due
        FROM unnest(v_queues, v_first_ranks) AS q (queue, rank)
        CROSS JOIN LATERAL (
            WITH RECURSIVE ranks AS (
                SELECT q.rank
                UNION ALL
                SELECT (SELECT r.rank::integer FROM {schema}.ready AS r
                        WHERE r.suspect = p_suspects AND r.queue = q.queue AND r.rank > ranks.rank
                        ORDER BY r.suspect, r.queue, r.rank LIMIT 1)
                FROM ranks WHERE ranks.rank IS NOT NULL
            )
            SELECT rank FROM ranks WHERE rank IS NOT NULL
        ) AS lane
        CROSS JOIN LATERAL (
            SELECT r.run_at FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = q.queue AND r.rank = lane.rank AND r.run_at > v_now
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
        ) AS due;
    END IF;
    v_keeps := v_keeps AND (NOT v_searches OR v_walked >= p_far);
    IF v_keeps THEN
        -- Each queue and rank by what is known best: where it was looked at, where its first row is, where it was
        -- left the last time, unless a list of everything had nothing there. If looking at each
        -- would take as long as a search, because they are too many, there is no trail.
        SELECT CASE WHEN count(*) <= 500 THEN coalesce(json_agg(t)::text, '[]') END INTO v_trail FROM (
            SELECT DISTINCT ON (t.queue, t.rank) t.queue, t.rank, least(t.from_at, v_edge) AS from_at
            FROM (
                SELECT 1 AS source, p.*
                FROM unnest(v_past_queues, v_past_ranks, v_past_froms) AS p (queue, rank, from_at)
                UNION ALL
                SELECT 2, l.* FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at)
                WHERE l.rank IS NOT NULL
                UNION ALL
                SELECT 3, k.queue, k.rank, CASE
                    WHEN v_searches AND v_listed AND k.queue <> ALL (v_paused) THEN v_edge ELSE k.from_at END
                FROM unnest(v_known_queues, v_known_ranks, v_known_froms) AS k (queue, rank, from_at)
            ) AS t
            ORDER BY t.queue, t.rank, t.source
        ) AS t;
    END IF;

    now_at := v_now;
    lease_expires_at := v_expires_at;
    next_due := v_next_due;
    trail := v_trail;
    searched := extract(epoch FROM clock_timestamp() - v_began) * 1000000;
    more := v_more;
    aside := v_aside;
    many := v_is_plain AND cardinality(v_ids) >= 64;
    RETURN NEXT;
END
$$;
