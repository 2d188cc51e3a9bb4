-- Claiming, settling and cancelling, each in one round trip. Why these are functions with settings of their own:
-- see the file before this one.

-- Say whether a claim can hand out this row of `ready`. It can hand out everything that the CHECKs of the table accept; an
-- owner may have dropped them. The limits are those of `drivers.stored`, as in the CHECKs; a test compares them.
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
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery, raw)
        SELECT DISTINCT ON (g.id) g.id, 'dead', 'unreadable', p_now, greatest(0, least(g.number, 2000000000)),
               greatest(0, least(g.attempts, 2000000000)),
               CASE WHEN g.delivery IN ('at_least_once', 'at_most_once') THEN g.delivery END, row_to_json(g)::text
        FROM gone AS g WHERE EXISTS (SELECT FROM {schema}.jobs AS j WHERE j.id = g.id)
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
-- p_bytes   how many bytes of payloads and options the answer may hold; the first job is in it whatever its size
-- p_max_losses  the worker's setting; the lease keeps it for the process that settles the losses
-- The last row is no job. Only this row has: the times, trail (NULL after a search that was not far), searched (how many
-- microseconds the claim took), more (whether the claim ended because of p_bytes), and aside (jobs whose rows cannot be
-- read: they are dead now).
CREATE FUNCTION {schema}.claim_on_trail(
    p_token text, p_worker text, p_lease bigint, p_limit integer, p_queues text[], p_once_limit integer,
    p_suspects boolean, p_supervised boolean, p_now timestamptz, p_trail text, p_search boolean, p_far bigint,
    p_late bigint, p_bytes bigint, p_max_losses integer
) RETURNS TABLE (
    now_at timestamptz, lease_expires_at timestamptz, next_due timestamptz, suspects_waiting boolean,
    repeated boolean,
    id text, task text, payload text, queue text, priority integer, number integer, attempts integer,
    first_number integer, run_at timestamptz, enqueued_at timestamptz, due_at timestamptz,
    expires_at timestamptz, delivery text, options text, version integer, trail text, searched bigint, more boolean,
    aside text[]
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
    v_searched bigint;
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
    v_fitting integer;
    v_bytes bigint := 0;      -- of the first …
    v_measured integer := 0;  -- … of those that were taken: as many as the ranks before have
    v_more boolean := false;
    v_aside uuid[] := '{}';
    v_next_due timestamptz;
    v_suspects boolean := false;
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
BEGIN
    IF EXISTS (SELECT FROM {schema}.leases WHERE token = p_token) THEN
        -- The answer to this very claim was lost: the caller asks for the lease again.
        RETURN QUERY SELECT v_now, NULL::timestamptz, NULL::timestamptz, false, true,
            NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer, NULL::integer,
            NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
            NULL::timestamptz, NULL::text, NULL::text, NULL::integer, NULL::text, NULL::bigint, false,
            '{}'::text[];
        RETURN;
    END IF;

    -- Where each queue begins: found one time in a claim, and everything else starts from there.
    SELECT coalesce(array_agg(p.queue), '{}') INTO v_paused FROM {schema}.paused AS p;
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
        FROM (SELECT DISTINCT q AS queue FROM unnest(p_queues) AS q WHERE q <> ALL (v_paused)) AS q
        CROSS JOIN LATERAL (
            SELECT r.rank, r.run_at FROM {schema}.ready AS r
            WHERE r.suspect = p_suspects AND r.queue = q.queue
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
        ) AS n;
    ELSE
        -- A skip scan over the primary key: one seek for each queue, however many rows it holds.
        SELECT r.queue, r.rank, r.run_at INTO v_first FROM {schema}.ready AS r WHERE r.suspect = p_suspects
        ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1;
        WHILE v_first.queue IS NOT NULL LOOP
            IF v_first.queue <> ALL (v_paused) THEN
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
                        SELECT r.rank::integer, r.run_at FROM {schema}.ready AS r
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
        SELECT l.rank, array_agg(l.queue), array_agg(l.from_at) INTO v_rank, v_lanes, v_lane_froms
        FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at)
        WHERE l.rank IS NOT NULL GROUP BY l.rank ORDER BY l.rank LIMIT 1;
        EXIT WHEN NOT FOUND;

        v_entries := pg_stat_get_xact_tuples_returned(v_index);
        IF cardinality(v_lanes) = 1 THEN
            -- One queue: its rows in the order of the key, locked one after the other until there are enough.
            WITH locked AS MATERIALIZED (
                SELECT r.ctid AS at, r.queue, r.run_at, r.id, r.number, r.attempts, r.first_number, r.due_at,
                       r.expires_at, r.delivery
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
                SELECT r.ctid AS at, r.queue, r.run_at, r.id, r.number, r.attempts, r.first_number, r.due_at,
                       r.expires_at, r.delivery
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
        IF v_taken > 0 THEN
            IF v_ids <> '{}' THEN
                SELECT v_bytes + coalesce(sum(octet_length(j.payload) + coalesce(octet_length(j.options), 0)), 0)
                INTO v_bytes FROM unnest(v_ids[v_measured + 1:]) AS e (id)
                CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = e.id LIMIT 1) AS j;
                v_measured := cardinality(v_ids);
            END IF;
            -- As many as fit are handed out here, where their sizes are at hand. (The length of a value that is stored
            -- out of line is known without reading it.)
            RETURN QUERY SELECT NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::boolean, NULL::boolean,
                t.id::text, t.task, t.payload, t.queue, t.priority::integer, t.number, t.attempts,
                t.first_number, t.run_at, t.enqueued_at, t.due_at,
                t.expires_at, t.delivery, t.options, t.version, NULL::text, NULL::bigint, NULL::boolean,
                NULL::text[]
            FROM (
                SELECT e.*, j.task, j.payload, j.priority, j.enqueued_at, j.options, j.version,
                       sum(coalesce(octet_length(j.payload), 0) + coalesce(octet_length(j.options), 0))
                           OVER (ORDER BY e.position ROWS UNBOUNDED PRECEDING) AS bytes
                FROM unnest(c.ids, c.numbers, c.attempts, c.first_numbers, c.run_ats, c.queues, c.due_ats,
                            c.expires_ats, c.deliveries) WITH ORDINALITY
                    AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery, position)
                -- LIMIT keeps the planner from turning this into a join with all of the jobs.
                LEFT JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = e.id LIMIT 1) AS j ON true
            ) AS t
            WHERE v_bytes + t.bytes <= p_bytes OR (t.position = 1 AND v_ids = '{}')
            ORDER BY t.position;
            GET DIAGNOSTICS v_fitting = ROW_COUNT;
            IF v_fitting < v_taken THEN
                v_more := true;
                v_taken := v_fitting;
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
        END IF;
        IF v_taken > 0 THEN
            DELETE FROM {schema}.ready WHERE ctid = ANY (c.at);
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
        IF v_keeps OR v_goes_on THEN
            -- Where nothing due is left, nothing is before now; elsewhere, before the last one taken.
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

        IF NOT v_listed THEN
            v_entries := pg_stat_get_xact_tuples_returned(v_index);
            SELECT array_agg(CASE l.rank WHEN v_rank THEN n.rank ELSE l.rank END ORDER BY l.position),
                   array_agg(CASE l.rank WHEN v_rank THEN n.run_at ELSE l.from_at END ORDER BY l.position)
            INTO v_ranks, v_froms
            FROM unnest(v_queues, v_ranks, v_froms) WITH ORDINALITY AS l (queue, rank, from_at, position)
            LEFT JOIN LATERAL (
                SELECT r.rank, r.run_at FROM {schema}.ready AS r
                WHERE l.rank = v_rank AND r.suspect = p_suspects AND r.queue = l.queue AND r.rank > v_rank
                ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
            ) AS n ON true;
            v_walked := v_walked + pg_stat_get_xact_tuples_returned(v_index) - v_entries;
        ELSE
            SELECT array_agg(l.queue), array_agg(l.rank), array_agg(l.from_at) INTO v_queues, v_ranks, v_froms
            FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at) WHERE l.rank > v_rank;
        END IF;
    END LOOP;

    IF v_ids <> '{}' THEN
        INSERT INTO {schema}.leases (token, origin, worker, expires_at, alone, supervised, max_losses, open)
        VALUES (p_token, p_token, p_worker, v_expires_at, p_suspects, p_supervised, p_max_losses, cardinality(v_ids));
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
        NULL;  -- the caller comes again anyway
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
    ELSE
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
    IF NOT p_suspects THEN
        -- The suspects' place is small: a scan of it is.
        v_suspects := EXISTS (
            SELECT FROM {schema}.ready AS r
            WHERE r.suspect AND r.run_at <= v_now AND (p_queues IS NULL OR r.queue = ANY (p_queues))
              AND r.queue <> ALL (v_paused)
        );
    END IF;

    v_keeps := v_keeps AND (NOT v_searches OR v_walked >= p_far);
    IF v_keeps THEN
        -- Each queue and rank by what is known best: where it was looked at, where its first row is, where it was
        -- left the last time, unless a list of everything had nothing there. If there are too many, and looking at each would take
        -- as long as a search make no trail.
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

    v_searched := extract(epoch FROM clock_timestamp() - v_began) * 1000000;
    RETURN QUERY SELECT v_now, v_expires_at, v_next_due, v_suspects, false,
        NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer, NULL::integer,
        NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
        NULL::timestamptz, NULL::text, NULL::text, NULL::integer, v_trail, v_searched, v_more,
        v_aside::text[];
END
$$;

-- Settle a batch of plain successes under live leases, and release the dependants of these jobs: nearly every batch there
-- is. The caller has seen by the claim that the leases cover these attempts; a lease that has lost a job since is
-- refused. The first row has the store's time and no job; the others have a released job and a member of it. No row at
-- all, and nothing done, if anything about the batch is not plain; unique_violation if an attempt has its row already.
-- It looks at no request to cancel: a success wins, as `rules.settling.cancel_wins` says.
CREATE FUNCTION {schema}.settle_and_release(
    p_tokens text[], p_counts integer[], p_ids uuid[], p_numbers integer[], p_tokens_at integer[],
    p_retry_counts integer[], p_attempts integer[], p_started_ats timestamptz[], p_results text[],
    p_tally_queues text[], p_tally_counts integer[], p_now timestamptz
) RETURNS TABLE (now_at timestamptz, id text, member text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_live integer;
    v_gone text[];
BEGIN
    PERFORM FROM {schema}.leases AS l WHERE l.token = ANY (p_tokens) ORDER BY l.token FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT count(*) INTO v_live FROM {schema}.leases AS l
    WHERE l.token = ANY (p_tokens) AND l.struck = 0 AND l.expires_at > v_now;
    IF v_live < cardinality(p_tokens) THEN
        RETURN;
    END IF;
    IF p_results IS NULL THEN
        INSERT INTO {schema}.attempts (job_id, number, retry_count, attempts, started_at, finished_at, status, token)
        SELECT s.id, s.number, s.retry_count, s.attempts, s.started_at, v_now, 'succeeded', p_tokens[s.token_at]
        FROM unnest(p_ids, p_numbers, p_retry_counts, p_attempts, p_started_ats, p_tokens_at)
            AS s (id, number, retry_count, attempts, started_at, token_at);
    ELSE
        INSERT INTO {schema}.attempts (job_id, number, retry_count, attempts, started_at, finished_at, status, token,
                                       result)
        SELECT s.id, s.number, s.retry_count, s.attempts, s.started_at, v_now, 'succeeded', p_tokens[s.token_at],
               s.result
        FROM unnest(p_ids, p_numbers, p_retry_counts, p_attempts, p_started_ats, p_tokens_at, p_results)
            AS s (id, number, retry_count, attempts, started_at, token_at, result);
    END IF;
    WITH gone AS (
        DELETE FROM {schema}.leases AS l USING unnest(p_tokens, p_counts) AS t (token, settled)
        WHERE l.token = t.token AND l.open = t.settled
        RETURNING l.token
    )
    SELECT coalesce(array_agg(g.token), '{}') INTO v_gone FROM gone AS g;
    IF v_gone <> '{}' THEN
        DELETE FROM {schema}.claims AS c WHERE c.token = ANY (v_gone);
    END IF;
    IF cardinality(v_gone) < cardinality(p_tokens) THEN
        UPDATE {schema}.leases AS l SET open = l.open - t.settled, cancels = CASE
            WHEN l.cancels = '{}' THEN l.cancels
            ELSE ARRAY(SELECT c FROM unnest(l.cancels) AS c WHERE c <> ALL (p_ids)) END
        FROM unnest(p_tokens, p_counts) AS t (token, settled) WHERE l.token = t.token;
    END IF;
    INSERT INTO {schema}.tallies (queue, state, jobs)
    SELECT t.queue, 'succeeded', t.jobs FROM unnest(p_tally_queues, p_tally_counts) AS t (queue, jobs);
    RETURN QUERY SELECT v_now, NULL::text, NULL::text;
    -- A dependant that was cancelled meanwhile counts too: it may be requeued, and then must find what has succeeded. A
    -- dependant whose transaction is still open is invisible here: catch_up finds it.
    IF EXISTS (SELECT FROM {schema}.dependencies AS d WHERE NOT d.done) THEN
        RETURN QUERY SELECT NULL::timestamptz, r.id, r.member FROM {schema}.release_dependants(p_ids) AS r;
    END IF;
END
$$;

-- Cancel those of these jobs that have not begun, and ask those that run to end. Returns what it did to each job, and the
-- state that the job was in. It leaves out a job that moved between two looks, and does nothing to it.
CREATE FUNCTION {schema}.cancel_jobs(p_ids uuid[], p_now timestamptz)
RETURNS TABLE (id text, verdict text, state text) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_tokens text[];
    v_now timestamptz;
    v_done uuid[];
    v_was text[];
    v_left uuid[];
    v_running uuid[];
    v_running_under text[];
BEGIN
    -- In the order of all locks: leases by token, then jobs by id.
    SELECT coalesce(array_agg(c.token), '{}') INTO v_tokens FROM {schema}.claims AS c WHERE c.ids && p_ids;
    PERFORM FROM {schema}.leases AS l WHERE l.token = ANY (v_tokens) ORDER BY l.token FOR NO KEY UPDATE;
    PERFORM FROM {schema}.jobs AS j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    -- Delete the rows of their places. A row that is gone already was claimed or released by another transaction.
    WITH keys AS MATERIALIZED (
        SELECT j.id, j.queue, -least(100, greatest(-100, j.priority)) AS rank, coalesce(a.next_at, j.run_at) AS run_at
        FROM unnest(p_ids) AS i (id)
        CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = i.id LIMIT 1) AS j
        LEFT JOIN LATERAL (
            SELECT * FROM {schema}.attempts WHERE attempts.job_id = i.id ORDER BY number DESC LIMIT 1
        ) AS a ON true
    ), placed AS (
        DELETE FROM {schema}.ready AS r USING keys AS k
        WHERE r.suspect IN (false, true) AND r.queue = k.queue AND r.rank = k.rank AND r.run_at = k.run_at
          AND r.id = k.id
        RETURNING r.id, r.queue, r.number, r.attempts, r.delivery,
                  CASE WHEN r.run_at <= v_now THEN 'ready' ELSE 'scheduled' END AS was
    ), waited AS (
        DELETE FROM {schema}.waiting AS w USING {schema}.jobs AS j
        WHERE w.job_id = ANY (p_ids) AND j.id = w.job_id
        RETURNING w.job_id AS id, j.queue, w.number, w.attempts, w.delivery, 'waiting' AS was
    ), gone AS MATERIALIZED (
        SELECT * FROM placed UNION ALL SELECT * FROM waited
    ), ended AS (
        INSERT INTO {schema}.ended (job_id, state, reason, finished_at, number, attempts, delivery)
        SELECT g.id, 'cancelled', 'cancelled', v_now, g.number, g.attempts, g.delivery FROM gone AS g
        ON CONFLICT DO NOTHING
    ), tallied AS (
        INSERT INTO {schema}.tallies (queue, state, jobs)
        SELECT g.queue, 'cancelled', count(*) FROM gone AS g GROUP BY g.queue
    )
    SELECT coalesce(array_agg(g.id), '{}'), array_agg(g.was) INTO v_done, v_was FROM gone AS g;
    RETURN QUERY SELECT d.id::text, 'done', d.was FROM unnest(v_done, v_was) AS d (id, was);
    IF cardinality(v_done) = cardinality(p_ids) THEN
        RETURN;
    END IF;
    SELECT array_agg(i) INTO v_left FROM unnest(p_ids) AS i
    WHERE NOT EXISTS (SELECT FROM unnest(v_done) AS d WHERE d = i);
    -- A job that a locked lease names, and whose attempt has no row, runs under that lease.
    SELECT array_agg(e.id), array_agg(c.token) INTO v_running, v_running_under
    FROM {schema}.claims AS c CROSS JOIN LATERAL unnest(c.ids, c.numbers) AS e (id, number)
    WHERE c.token = ANY (v_tokens) AND e.id = ANY (v_left)
      AND NOT EXISTS (SELECT FROM {schema}.attempts AS a WHERE a.job_id = e.id AND a.number = e.number);
    IF v_running IS NOT NULL THEN
        UPDATE {schema}.leases AS l SET cancels = l.cancels || ARRAY(
            SELECT c.id FROM unnest(v_running, v_running_under) AS c (id, token)
            WHERE c.token = l.token AND c.id <> ALL (l.cancels)
        )
        WHERE l.token = ANY (v_running_under);
        RETURN QUERY SELECT r::text, 'requested', 'running' FROM unnest(v_running) AS r;
    END IF;
    RETURN QUERY SELECT i::text,
        CASE WHEN j.id IS NULL THEN 'not_found' ELSE 'conflict' END,
        CASE WHEN j.id IS NULL THEN NULL ELSE coalesce(e.state, 'succeeded') END
    FROM unnest(v_left) AS i
    LEFT JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = i LIMIT 1) AS j ON true
    LEFT JOIN LATERAL (SELECT * FROM {schema}.ended WHERE ended.job_id = i LIMIT 1) AS e ON true
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.attempts WHERE attempts.job_id = i ORDER BY number DESC LIMIT 1
    ) AS a ON true
    WHERE j.id IS NULL OR e.job_id IS NOT NULL OR (a.status = 'succeeded' AND a.next_at IS NULL);
END
$$;
