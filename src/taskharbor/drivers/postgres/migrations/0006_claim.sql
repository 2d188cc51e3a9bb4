-- The claim beside a snapshot that somebody holds open. What it takes and what it gives is as before, so that workers of
-- either version go on with it; only where it begins to look is another place.

CREATE OR REPLACE FUNCTION {schema}.claim(
    p_token text, p_worker text, p_lease bigint, p_limit integer, p_queues text[], p_once_limit integer,
    p_suspects boolean, p_supervised boolean, p_now timestamptz
) RETURNS TABLE (
    now_at timestamptz, lease_expires_at timestamptz, next_due timestamptz, suspects_waiting boolean,
    repeated boolean,
    id text, task text, payload text, queue text, priority integer, number integer, attempts integer,
    first_number integer, run_at timestamptz, enqueued_at timestamptz, due_at timestamptz,
    expires_at timestamptz, delivery text, options text, version integer
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_expires_at timestamptz := v_now + p_lease * interval '1 microsecond';
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
    v_once_left integer := greatest(p_once_limit, 0);
    v_found integer;
    v_taken integer;
    v_next_due timestamptz;
    v_suspects boolean := false;
    v_at tid[];
    v_once integer;
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
            NULL::timestamptz, NULL::text, NULL::text, NULL::integer;
        RETURN;
    END IF;

    -- Where each queue begins. While somebody holds an old snapshot, the rows that were claimed since lie before
    -- its first live one, dead but not removable, and to find that one is to walk past all of them. So it is found
    -- one time in a claim, and everything else starts from there.
    SELECT coalesce(array_agg(p.queue), '{}') INTO v_paused FROM {schema}.paused AS p;
    IF p_queues IS NOT NULL THEN
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
    v_first_ranks := v_ranks;

    WHILE v_left > 0 LOOP
        -- The next rank that any of the queues holds, and which of them do. A million future jobs at the top
        -- priority cost one seek.
        SELECT l.rank, array_agg(l.queue), array_agg(l.from_at) INTO v_rank, v_lanes, v_lane_froms
        FROM unnest(v_queues, v_ranks, v_froms) AS l (queue, rank, from_at)
        WHERE l.rank IS NOT NULL GROUP BY l.rank ORDER BY l.rank LIMIT 1;
        EXIT WHEN NOT FOUND;

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
            SELECT array_agg(at) AS at, array_agg(id) AS ids, array_agg(number + 1) AS numbers,
                   array_agg(attempts) AS attempts, array_agg(first_number) AS first_numbers,
                   array_agg(run_at) AS run_ats, array_agg(queue) AS queues, array_agg(due_at) AS due_ats,
                   array_agg(expires_at) AS expires_ats, array_agg(delivery) AS deliveries,
                   max(once) AS once, (SELECT count(*) FROM locked) AS found
            INTO c FROM counted WHERE once <= v_once_left;
        ELSE
            -- Several queues: the first rows of each, merged. They are looked at without locking them, since
            -- most of them will not be taken; more of them than needed, since others may hold some.
            WITH locked AS MATERIALIZED (
                SELECT r.ctid AS at, r.queue, r.run_at, r.id, r.number, r.attempts, r.first_number, r.due_at,
                       r.expires_at, r.delivery
                FROM (
                    SELECT l.queue, n.run_at, n.id FROM unnest(v_lanes, v_lane_froms) AS l (queue, from_at)
                    CROSS JOIN LATERAL (
                        SELECT r.run_at, r.id FROM {schema}.ready AS r
                        WHERE r.suspect = p_suspects AND r.queue = l.queue AND r.rank = v_rank
                          AND r.run_at BETWEEN l.from_at AND v_now
                        ORDER BY r.suspect, r.queue, r.rank, r.run_at, r.id LIMIT v_left * 4
                    ) AS n
                    ORDER BY n.run_at, n.id LIMIT v_left * 4
                ) AS first
                JOIN {schema}.ready AS r ON r.suspect = p_suspects AND r.queue = first.queue
                    AND r.rank = v_rank AND r.run_at = first.run_at AND r.id = first.id
                ORDER BY first.run_at, first.id LIMIT v_left FOR UPDATE OF r SKIP LOCKED
            ), counted AS (
                SELECT *, count(*) FILTER (WHERE delivery = 'at_most_once')
                    OVER (ORDER BY run_at, id ROWS UNBOUNDED PRECEDING) AS once
                FROM locked
            )
            SELECT array_agg(at) AS at, array_agg(id) AS ids, array_agg(number + 1) AS numbers,
                   array_agg(attempts) AS attempts, array_agg(first_number) AS first_numbers,
                   array_agg(run_at) AS run_ats, array_agg(queue) AS queues, array_agg(due_at) AS due_ats,
                   array_agg(expires_at) AS expires_ats, array_agg(delivery) AS deliveries,
                   max(once) AS once, (SELECT count(*) FROM locked) AS found
            INTO c FROM counted WHERE once <= v_once_left;
        END IF;

        v_taken := coalesce(cardinality(c.ids), 0);
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
        -- What comes after an at_most_once job too many must not overtake it.
        EXIT WHEN v_taken < c.found OR v_left = 0;

        SELECT array_agg(CASE l.rank WHEN v_rank THEN n.rank ELSE l.rank END ORDER BY l.position),
               array_agg(CASE l.rank WHEN v_rank THEN n.run_at ELSE l.from_at END ORDER BY l.position)
        INTO v_ranks, v_froms
        FROM unnest(v_queues, v_ranks, v_froms) WITH ORDINALITY AS l (queue, rank, from_at, position)
        LEFT JOIN LATERAL (
            SELECT r.rank, r.run_at FROM {schema}.ready AS r
            WHERE l.rank = v_rank AND r.suspect = p_suspects AND r.queue = l.queue AND r.rank > v_rank
            ORDER BY r.suspect, r.queue, r.rank, r.run_at LIMIT 1
        ) AS n ON true;
    END LOOP;

    IF v_ids <> '{}' THEN
        INSERT INTO {schema}.leases (token, origin, worker, expires_at, alone, supervised, open)
        VALUES (p_token, p_token, p_worker, v_expires_at, p_suspects, p_supervised, cardinality(v_ids));
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

    IF cardinality(v_ids) < p_limit THEN
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

    RETURN QUERY SELECT v_now, v_expires_at, v_next_due, v_suspects, false,
        NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::integer, NULL::integer,
        NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz,
        NULL::timestamptz, NULL::text, NULL::text, NULL::integer;
    IF v_ids <> '{}' THEN
        RETURN QUERY SELECT NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::boolean, NULL::boolean,
            e.id::text, j.task, j.payload, e.queue, j.priority::integer, e.number, e.attempts,
            e.first_number, e.run_at, j.enqueued_at, e.due_at,
            e.expires_at, e.delivery, j.options, j.version
        FROM unnest(v_ids, v_numbers, v_attempts, v_first_numbers, v_run_ats, v_lane_queues, v_due_ats,
                    v_expires_ats, v_deliveries) WITH ORDINALITY
            AS e (id, number, attempts, first_number, run_at, queue, due_at, expires_at, delivery, position)
        -- LIMIT keeps the planner from turning this into a join with all of the jobs.
        CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs WHERE jobs.id = e.id LIMIT 1) AS j
        ORDER BY e.position;
    END IF;
END
$$;
