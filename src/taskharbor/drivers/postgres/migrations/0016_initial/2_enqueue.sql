-- Enqueueing inside the transaction of an application: from its own connection, from plain SQL, from a trigger, from
-- another language. One round trip. It leaves nothing behind but the jobs, and those only if that transaction commits.
--
-- {schema}.enqueue is the documented function. The others serve it and the driver, and may change.

-- The channel that workers listen on. The driver computes the same name.
CREATE FUNCTION {schema}.channel() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'taskharbor_' || CASE WHEN length(s.name) <= 52 THEN s.name
                                 ELSE left(encode(sha256(convert_to(s.name, 'UTF8')), 'hex'), 32) END
    FROM (SELECT trim(BOTH '"' FROM '{schema}') AS name) AS s
$$;

-- What this transaction notifies with; NULL for no notification. Every commit that notifies waits for a lock of the whole
-- server, so that many of them at once commit one after the other: only the first 25 in a tenth of a second notify. The
-- later ones of these say "more", and a worker that hears it looks again a little later for the jobs that came without a
-- notification. A sequence counts, because it belongs to no transaction: its value is the tenth of a second, and how many
-- asked in it. (Two transactions that begin a tenth at the same instant may both set it; then a few more notify.)
-- It runs with the rights of its owner: its callers need no right to the sequence. `taskharbor roles` grants it.
CREATE FUNCTION {schema}.announcement() RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tenth bigint := floor(extract(epoch FROM clock_timestamp()) * 10)::bigint;
    v_asked bigint := nextval('{schema}.announcements');
BEGIN
    IF v_asked / 1000000 <> v_tenth THEN
        PERFORM setval('{schema}.announcements', v_tenth * 1000000);
        RETURN '';
    END IF;
    RETURN CASE WHEN v_asked % 1000000 < 12 THEN '' WHEN v_asked % 1000000 < 25 THEN 'more' END;
END
$$;
REVOKE ALL ON FUNCTION {schema}.announcement FROM PUBLIC;

-- A UUIDv7: 48 bits of milliseconds, 12 bits of the rest of the time, then random bits. Ids sort by their time.
CREATE FUNCTION {schema}.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT encode(substring(int8send(t.micros / 1000) FROM 3)
                  || substring(int8send(28672 + (t.micros % 1000) * 4096 / 1000) FROM 7)
                  || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS micros) AS t
$$;

-- Store jobs without dependencies; `p_jobs` is an array of objects with the columns' names. A job whose id or key
-- exists, also earlier in the same array, is not stored: `existing` has the job that stands for it at its position,
-- and NULL for a new one; it is NULL itself when all are new. `p_distinct` promises that no id and no key comes twice.
-- The original of the rule is `rules.idempotency.resolve_batch`.
--
-- No conflict is an error: the caller's transaction goes on. A snapshot that must not see what others have committed
-- since (REPEATABLE READ) makes a conflict a serialization failure, which the caller handles.
CREATE FUNCTION {schema}.store_jobs(
    p_jobs json, p_now timestamptz, p_distinct boolean, p_notify boolean, OUT now_at timestamptz, OUT existing uuid[]
) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_count integer := json_array_length(p_jobs);
    v_pending integer[];        -- positions without an answer; NULL stands for all
    v_leaders integer[];        -- those of them that come before their like; NULL stands for all
    v_stored uuid[];
    v_first timestamptz;        -- when the first of those stored is due
    v_at integer[] := '{}';
    v_found uuid[] := '{}';
    v_at_now integer[];
    v_found_now uuid[];
BEGIN
    now_at := coalesce(p_now, clock_timestamp());
    FOR v_round IN 1 .. 50 LOOP
        IF NOT p_distinct THEN
            SELECT array_agg(n.position) INTO v_leaders FROM (
                SELECT g.position, row_number() OVER (PARTITION BY g.id ORDER BY g.position) AS of_id,
                       row_number() OVER (PARTITION BY g.queue, g.idempotency_key ORDER BY g.position) AS of_key,
                       g.idempotency_key
                FROM ROWS FROM (json_to_recordset(p_jobs) AS (id uuid, queue text, idempotency_key text))
                    WITH ORDINALITY AS g (id, queue, idempotency_key, position)
                WHERE v_pending IS NULL OR g.position = ANY (v_pending)
            ) AS n WHERE n.of_id = 1 AND (n.of_key = 1 OR n.idempotency_key IS NULL);
        ELSE
            v_leaders := v_pending;
        END IF;

        -- By key: an insert waits for another transaction that inserts the same key, and two must not wait crosswise.
        WITH given AS MATERIALIZED (
            SELECT g.*, coalesce(now_at + g.delay * interval '1 microsecond', g.run_at, now_at) AS place
            FROM ROWS FROM (json_to_recordset(p_jobs) AS (
                id uuid, queue text, task text, payload text, priority smallint, run_at timestamptz, delay bigint,
                expires_at timestamptz, idempotency_key text, delivery text, options text, meta text, tags json
            )) WITH ORDINALITY AS g (id, queue, task, payload, priority, run_at, delay, expires_at, idempotency_key,
                                     delivery, options, meta, tags, position)
            WHERE v_leaders IS NULL OR g.position = ANY (v_leaders)
        ), stored AS (
            INSERT INTO {schema}.jobs (id, queue, task, payload, priority, run_at, enqueued_at, expires_at,
                                       idempotency_key, delivery, options, meta)
            SELECT id, queue, task, payload, priority, place, now_at, expires_at, idempotency_key, delivery, options,
                   meta
            FROM given ORDER BY queue COLLATE "C", idempotency_key COLLATE "C" NULLS FIRST, position
            ON CONFLICT DO NOTHING
            RETURNING id, run_at
        ), placed AS (
            INSERT INTO {schema}.ready (suspect, queue, rank, run_at, id, number, attempts, first_number, expires_at,
                                        delivery)
            SELECT false, g.queue, -g.priority, g.place, g.id, 0, 0, 1, g.expires_at, g.delivery
            FROM given AS g JOIN stored AS s ON s.id = g.id
        ), tagged AS (
            INSERT INTO {schema}.tags (tag, job_id)
            SELECT DISTINCT t.tag, g.id
            FROM given AS g JOIN stored AS s ON s.id = g.id
            CROSS JOIN LATERAL json_array_elements_text(g.tags) AS t (tag)
        )
        SELECT coalesce(array_agg(s.id), '{}'), least(v_first, min(s.run_at)) INTO v_stored, v_first FROM stored AS s;
        EXIT WHEN v_round = 1 AND cardinality(v_stored) = v_count;

        -- The others exist, or repeat an earlier one. One that is found nowhere was deleted since, or the one that it
        -- repeats has itself another job that stands for it: look once more.
        SELECT coalesce(array_agg(l.position) FILTER (WHERE l.found IS NULL), '{}'),
               coalesce(array_agg(l.position) FILTER (WHERE l.found IS NOT NULL), '{}'),
               coalesce(array_agg(l.found) FILTER (WHERE l.found IS NOT NULL), '{}')
        INTO v_pending, v_at_now, v_found_now
        FROM (
            SELECT g.position, coalesce(
                (SELECT j.id FROM {schema}.jobs AS j WHERE j.id = g.id LIMIT 1),
                (SELECT j.id FROM {schema}.jobs AS j
                 WHERE j.queue = g.queue AND j.idempotency_key = g.idempotency_key AND j.idempotency_key IS NOT NULL
                 LIMIT 1)) AS found
            FROM ROWS FROM (json_to_recordset(p_jobs) AS (id uuid, queue text, idempotency_key text))
                WITH ORDINALITY AS g (id, queue, idempotency_key, position)
            WHERE (v_pending IS NULL OR g.position = ANY (v_pending))
              AND NOT ((v_leaders IS NULL OR g.position = ANY (v_leaders))
                       AND EXISTS (SELECT FROM unnest(v_stored) AS s WHERE s = g.id))
        ) AS l;
        v_at := v_at || v_at_now;
        v_found := v_found || v_found_now;
        EXIT WHEN v_pending = '{}';
    END LOOP;
    IF v_pending <> '{}' THEN
        RAISE 'others stored and deleted the same jobs every time this looked'
            USING ERRCODE = 'serialization_failure';
    END IF;
    IF v_at <> '{}' THEN
        existing := ARRAY(
            SELECT f.id FROM generate_series(1, v_count) AS p (position)
            LEFT JOIN unnest(v_at, v_found) AS f (at, id) ON f.at = p.position ORDER BY p.position
        );
    END IF;
    -- PostgreSQL sends it when the transaction commits. A job that is far ahead needs none: workers look by themselves
    -- several times a minute.
    IF p_notify AND v_first <= now_at + interval '15 seconds' THEN
        PERFORM pg_notify({schema}.channel(), a.payload) FROM {schema}.announcement() AS a (payload)
        WHERE a.payload IS NOT NULL;
    END IF;
END
$$;

-- -- what an option may be: the rules of the Python interface ------------------------------------

CREATE FUNCTION {schema}.refuse(p_what text, p_hint text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'enqueue: ' || p_what, HINT = p_hint;
END
$$;

CREATE FUNCTION {schema}.checked_name(p_kind text, p_value jsonb, p_limit integer) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := p_value #>> '{}';
    v_size integer := octet_length(convert_to(v_text, 'UTF8'));
    v_shown text := concat(p_kind, ' (', left(p_value::text, 60), ' …)');
BEGIN
    IF jsonb_typeof(p_value) IS DISTINCT FROM 'string' THEN
        PERFORM {schema}.refuse(concat(p_kind, ' must be text, not ', left(coalesce(p_value::text, 'NULL'), 60)),
                                'Give it as a JSON string.');
    ELSIF v_text = '' THEN
        PERFORM {schema}.refuse(concat(p_kind, ' is empty'), 'Give it at least one character.');
    ELSIF v_size > p_limit THEN
        PERFORM {schema}.refuse(concat(v_shown, ' takes ', v_size, ' bytes of UTF-8, and the limit is ', p_limit),
                                'Shorten it, or use a hash of it.');
    ELSIF v_text ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM {schema}.refuse(v_shown || ' holds a control character (a newline, a tab, …)', 'Remove it.');
    ELSIF v_text ~ '^[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]'
       OR v_text ~ '[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]$' THEN
        PERFORM {schema}.refuse(v_shown || ' begins or ends with whitespace', 'Strip it.');
    END IF;
    RETURN v_text;
END
$$;

CREATE FUNCTION {schema}.checked_integer(p_name text, p_value jsonb, p_least integer, p_most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_value IS NULL THEN
        RETURN NULL;
    END IF;
    IF jsonb_typeof(p_value) <> 'number' OR p_value::text !~ '^-?[0-9]+$'
       OR p_value::numeric NOT BETWEEN p_least AND p_most THEN
        PERFORM {schema}.refuse(
            concat(p_name, ' must be a whole number from ', p_least, ' to ', p_most, ', not ', left(p_value::text, 60)),
            'Leave it out for the default.');
    END IF;
    RETURN p_value::integer;
END
$$;

-- A hundred years at most: beyond any use, and far from the last instant.
CREATE FUNCTION {schema}.checked_seconds(p_name text, p_value jsonb) RETURNS numeric
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_value IS NULL THEN
        RETURN NULL;
    END IF;
    IF jsonb_typeof(p_value) <> 'number' OR p_value::numeric NOT BETWEEN 0 AND 3153600000 THEN
        PERFORM {schema}.refuse(
            concat(p_name, ' must be a number of seconds from 0 to 3153600000, not ', left(p_value::text, 60)),
            'Give seconds as a number, for example 90 or 0.5.');
    END IF;
    RETURN p_value::numeric;
END
$$;

CREATE FUNCTION {schema}.checked_instant(p_name text, p_value jsonb) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := p_value #>> '{}';
    v_instant timestamptz;
BEGIN
    IF p_value IS NULL THEN
        RETURN NULL;
    END IF;
    -- With its offset: without one it means another instant in every session. Hour 24 and second 60, which PostgreSQL
    -- would take, are no time of day.
    IF jsonb_typeof(p_value) = 'string'
       AND v_text ~ ('^\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):\d\d(:[0-5]\d(\.\d{1,6})?)?'
                     || '(Z|[+-]\d\d(:?\d\d){0,2})$')
    THEN
        BEGIN
            v_instant := v_text::timestamptz;
        EXCEPTION WHEN data_exception THEN
            v_instant := NULL;
        END;
    END IF;
    IF v_instant IS NULL OR v_instant < '0001-01-01 00:00:00+00' OR v_instant >= '10000-01-01 00:00:00+00' THEN
        PERFORM {schema}.refuse(
            concat(p_name, ' must be a date, a time and an offset between the years 1 and 9999 in UTC, not ',
                   left(p_value::text, 60)),
            'For example 2030-01-31T08:00:00Z, or jsonb_build_object with now() + interval ''1 hour'' as the value.');
    END IF;
    RETURN v_instant;
END
$$;

CREATE FUNCTION {schema}.checked_tags(p_value jsonb) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tags text[];
    v_reserved text;
BEGIN
    IF p_value IS NULL THEN
        RETURN '{}';
    END IF;
    IF jsonb_typeof(p_value) <> 'array' THEN
        PERFORM {schema}.refuse(concat('tags must be a list of strings, not ', left(p_value::text, 60)),
                                'For example {"tags": ["a", "b"]}.');
    END IF;
    -- Each once, in the order given.
    SELECT coalesce(array_agg(t.tag ORDER BY t.position), '{}') INTO v_tags FROM (
        SELECT {schema}.checked_name('a tag', e.value, 255) AS tag, min(e.position) AS position
        FROM jsonb_array_elements(p_value) WITH ORDINALITY AS e (value, position) GROUP BY e.value
    ) AS t;
    SELECT t.tag INTO v_reserved FROM unnest(v_tags) AS t (tag) WHERE starts_with(t.tag, 'taskharbor:') LIMIT 1;
    IF v_reserved IS NOT NULL THEN
        PERFORM {schema}.refuse(
            concat('tags that begin with taskharbor: are TaskHarbor''s own, not ', left(v_reserved, 60)),
            'Give the tag another beginning.');
    END IF;
    IF cardinality(v_tags) > 32 THEN
        PERFORM {schema}.refuse(concat('a job takes at most 32 tags, not ', cardinality(v_tags)),
                                'Leave some out.');
    END IF;
    RETURN v_tags;
END
$$;

-- The original of these limits is `rules.meta.checked_meta`. Returns the text to store; NULL for an empty map.
CREATE FUNCTION {schema}.checked_meta(p_value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_entry record;
    v_entries integer;
    v_size integer;
BEGIN
    IF p_value IS NULL OR p_value IN ('null', '{}') THEN
        RETURN NULL;
    END IF;
    IF jsonb_typeof(p_value) <> 'object' THEN
        PERFORM {schema}.refuse(concat('meta must be a map of names to text, not ', left(p_value::text, 60)),
                                'For example {"meta": {"tenant": "acme"}}.');
    END IF;
    SELECT count(*) INTO v_entries FROM jsonb_object_keys(p_value);
    IF v_entries > 32 THEN
        PERFORM {schema}.refuse(concat('a job''s meta takes at most 32 entries, not ', v_entries), 'Leave some out.');
    END IF;
    FOR v_entry IN SELECT e.key AS name, e.value, e.value #>> '{}' AS content FROM jsonb_each(p_value) AS e LOOP
        IF v_entry.name !~ '^[a-zA-Z0-9_.-]{1,64}$' THEN
            PERFORM {schema}.refuse(
                concat('a name in meta has 1 to 64 letters of a-z and A-Z, digits, or any of _ . -; ',
                       left(to_json(v_entry.name)::text, 60), ' is none'),
                'Give the entry another name.');
        ELSIF jsonb_typeof(v_entry.value) <> 'string' THEN
            PERFORM {schema}.refuse(
                concat('meta[''', v_entry.name, '''] must be text, not ', left(v_entry.value::text, 60)),
                'Give it as a JSON string.');
        ELSIF length(v_entry.content) > 512 THEN
            PERFORM {schema}.refuse(
                concat('meta[''', v_entry.name, '''] takes at most 512 characters, not ', length(v_entry.content)),
                'Shorten it, or put it into the payload.');
        ELSIF v_entry.content ~ '[\u0001-\u001f\u007f-\u009f]' THEN
            PERFORM {schema}.refuse(
                concat('meta[''', v_entry.name, '''] has a control character (a newline, a tab, …)'), 'Remove it.');
        END IF;
    END LOOP;
    -- As compact JSON, without the spaces that jsonb puts after colons and commas.
    v_size := octet_length(convert_to(p_value::text, 'UTF8')) - (2 * v_entries - 1);
    IF v_size > 4096 THEN
        PERFORM {schema}.refuse(concat('a job''s meta takes at most 4096 bytes as JSON, not ', v_size),
                                'What a handler needs belongs into the payload.');
    END IF;
    RETURN p_value::text;
END
$$;

-- Refuses JSON that no handler can be called with.
CREATE FUNCTION {schema}.checked_payload(p_payload jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := p_payload::text;
BEGIN
    IF jsonb_typeof(p_payload) <> 'object' THEN
        PERFORM {schema}.refuse(concat('a payload is a JSON object, not ', left(v_text, 60)),
                                'Give parameter names and values, for example {"to": "a@b.c"}.');
    ELSIF octet_length(convert_to(v_text, 'UTF8')) > 1048576 THEN
        PERFORM {schema}.refuse(
            concat('the payload takes ', octet_length(convert_to(v_text, 'UTF8')), ' bytes as JSON, and the limit is ',
                   1048576),
            'Store the data elsewhere (a table, a file, a bucket) and pass its address.');
    ELSIF length(v_text) - length(translate(v_text, '[{', '')) > 100 AND jsonb_path_exists(
        p_payload, 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")')
    THEN
        PERFORM {schema}.refuse('the payload is nested deeper than 100 levels', 'Make it flatter.');
    ELSIF length(v_text) > 4300 AND jsonb_path_exists(
        p_payload, 'strict $.** ? (@.type() == "number" && (@ >= $most || @ <= -$most))',
        jsonb_build_object('most', 10::numeric ^ 4300))
    THEN
        PERFORM {schema}.refuse('the payload holds a number of more than 4300 digits', 'Pass it as text.');
    END IF;
    RETURN v_text;
END
$$;

-- Returns a job as `store_jobs` takes it. It checks the options as `client.options.checked_options` does.
CREATE FUNCTION {schema}.checked_job(task text, payload jsonb, options jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
DECLARE
    v_known constant text[] := ARRAY['queue', 'run_at', 'delay', 'priority', 'max_attempts', 'max_retries', 'timeout',
                                     'expires_at', 'expires_in', 'idempotency_key', 'delivery', 'correlation_id',
                                     'tags', 'meta', 'failure_task', 'id'];
    v_given jsonb := coalesce(options, '{}');
    v_unknown text;
    v_id uuid;
    v_task text;
    v_payload text;
    v_queue text := 'default';
    v_key text;
    v_delivery text;
    v_correlation text;
    v_timeout numeric;
    v_expires_in numeric;
    v_limit integer;
    v_tags text[];
    v_meta text;
    v_failure_task jsonb;
    v_kept jsonb;
BEGIN
    IF jsonb_typeof(v_given) <> 'object' THEN
        PERFORM {schema}.refuse(concat('options is a JSON object, not ', left(v_given::text, 60)),
                                'For example {"queue": "mail", "delay": 60}.');
    END IF;
    SELECT string_agg(o.name, ', ' ORDER BY o.name) INTO v_unknown FROM jsonb_object_keys(v_given) AS o (name)
    WHERE o.name <> ALL (v_known);
    IF v_unknown IS NOT NULL THEN
        PERFORM {schema}.refuse(concat('unknown options ', left(v_unknown, 200)),
                                concat('The options are ', array_to_string(v_known, ', '), '.'));
    END IF;
    v_meta := {schema}.checked_meta(v_given -> 'meta');
    IF v_given ? 'failure_task' THEN
        v_failure_task := {schema}.checked_failure_task(v_given -> 'failure_task');
    END IF;
    v_given := jsonb_strip_nulls(v_given);  -- an option that is null was not given
    IF v_given ?& ARRAY['run_at', 'delay'] THEN
        PERFORM {schema}.refuse('run_at and delay say the same thing', 'Give one of them.');
    ELSIF v_given ?& ARRAY['max_attempts', 'max_retries'] THEN
        PERFORM {schema}.refuse('max_attempts and max_retries say the same thing', 'Give one of them.');
    ELSIF v_given ?& ARRAY['expires_at', 'expires_in'] THEN
        PERFORM {schema}.refuse('expires_at and expires_in say the same thing', 'Give one of them.');
    END IF;

    v_task := {schema}.checked_name('a task', to_jsonb(task), 255);
    v_payload := {schema}.checked_payload(coalesce(payload, '{}'));
    IF v_given ? 'queue' THEN
        v_queue := {schema}.checked_name('a queue', v_given -> 'queue', 255);
    END IF;
    IF v_given ? 'idempotency_key' THEN
        v_key := {schema}.checked_name('an idempotency key', v_given -> 'idempotency_key', 1024);
    END IF;
    IF v_given ? 'correlation_id' THEN
        v_correlation := {schema}.checked_name('a correlation id', v_given -> 'correlation_id', 255);
    END IF;
    IF v_given ? 'delivery' THEN
        v_delivery := v_given ->> 'delivery';
        IF jsonb_typeof(v_given -> 'delivery') <> 'string' OR v_delivery NOT IN ('at_least_once', 'at_most_once') THEN
            PERFORM {schema}.refuse(
                concat('delivery must be at_least_once or at_most_once, not ', left((v_given -> 'delivery')::text, 60)),
                'Leave it out to let the worker''s declaration decide.');
        END IF;
    END IF;
    IF v_given ? 'id' THEN
        IF jsonb_typeof(v_given -> 'id') <> 'string'
           OR v_given ->> 'id' !~* '^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$' THEN
            PERFORM {schema}.refuse(concat('a job''s id is a UUID, not ', left((v_given -> 'id')::text, 60)),
                                    'Leave it out for a new one.');
        END IF;
        v_id := (v_given ->> 'id')::uuid;
    ELSE
        v_id := {schema}.new_id();
    END IF;
    v_timeout := {schema}.checked_seconds('timeout', v_given -> 'timeout');
    IF v_timeout = 0 THEN
        PERFORM {schema}.refuse('timeout must be more than 0 seconds', 'Leave it out for the default.');
    END IF;
    v_expires_in := {schema}.checked_seconds('expires_in', v_given -> 'expires_in');
    IF v_expires_in = 0 THEN
        PERFORM {schema}.refuse('expires_in must be more than 0 seconds', 'Leave it out for no expiry.');
    END IF;
    v_limit := coalesce({schema}.checked_integer('max_attempts', v_given -> 'max_attempts', 0, 10000),
                        {schema}.checked_integer('max_retries', v_given -> 'max_retries', 0, 9999) + 1);
    v_tags := {schema}.checked_tags(v_given -> 'tags');

    v_kept := jsonb_strip_nulls(jsonb_build_object(
        'max_attempts', v_limit, 'timeout', v_timeout, 'correlation_id', v_correlation,
        'tags', CASE WHEN v_tags <> '{}' THEN to_jsonb(v_tags) END, 'failure_task', v_failure_task));
    RETURN jsonb_build_object(
        'id', v_id, 'queue', v_queue, 'task', v_task, 'payload', v_payload,
        'priority', coalesce({schema}.checked_integer('priority', v_given -> 'priority', -100, 100), 0),
        'run_at', {schema}.checked_instant('run_at', v_given -> 'run_at'),
        'delay', round({schema}.checked_seconds('delay', v_given -> 'delay') * 1000000),
        'expires_at', coalesce({schema}.checked_instant('expires_at', v_given -> 'expires_at'),
                               clock_timestamp() + round(v_expires_in * 1000000) * interval '1 microsecond'),
        'idempotency_key', v_key, 'delivery', v_delivery,
        'options', CASE WHEN v_kept <> '{}' THEN v_kept::text END,
        'meta', v_meta,
        'tags', CASE WHEN v_tags <> '{}' THEN to_jsonb(v_tags) END);
END
$$;

-- Returns a failure task as it is stored with a job: a `records.FailureTask`, or false for none. The original of the
-- rules is `failure_tasks.named_failure_task`. No SQL knows the code of a task, so `parameter` has to be given.
CREATE FUNCTION {schema}.checked_failure_task(p_value jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_own constant text[] := ARRAY['run_at', 'expires_at', 'expires_in', 'idempotency_key', 'id', 'failure_task'];
    v_refused text;
    v_parameter text;
    v_job jsonb;
    v_hint text;
BEGIN
    IF p_value = 'null' THEN
        RETURN 'false'::jsonb;
    END IF;
    IF jsonb_typeof(p_value) <> 'object' OR NOT p_value ?& ARRAY['task', 'parameter'] THEN
        PERFORM {schema}.refuse(
            concat('failure_task must be an object with a task and the name of the parameter that takes what died, ',
                   'or null, not ', left(p_value::text, 60)),
            'For example {"failure_task": {"task": "alert", "parameter": "died"}}; a parameter of null takes nothing.');
    END IF;
    SELECT o.name INTO v_refused FROM jsonb_object_keys(p_value) AS o (name) WHERE o.name = ANY (v_own) LIMIT 1;
    IF v_refused IS NOT NULL THEN
        PERFORM {schema}.refuse(concat('a failure task takes no ', v_refused),
                                'Leave it out: each death enqueues a new job of it.');
    END IF;
    BEGIN
        IF jsonb_typeof(p_value -> 'task') <> 'string' THEN
            PERFORM {schema}.checked_name('a task', p_value -> 'task', 255);
        END IF;
        IF p_value -> 'parameter' <> 'null' THEN
            v_parameter := {schema}.checked_name('a parameter', p_value -> 'parameter', 255);
        END IF;
        v_job := {schema}.checked_job(p_value ->> 'task', nullif(p_value -> 'payload', 'null'),
                                      p_value - ARRAY['task', 'payload', 'parameter']);
    EXCEPTION WHEN invalid_parameter_value THEN
        GET STACKED DIAGNOSTICS v_hint = PG_EXCEPTION_HINT;
        PERFORM {schema}.refuse(concat('failure_task: ', replace(SQLERRM, 'enqueue: ', '')), v_hint);
    END;
    IF p_value -> 'payload' ? v_parameter THEN
        PERFORM {schema}.refuse(
            concat('failure_task: the parameter ', v_parameter, ' takes what died, and the payload has a value for it'),
            'Leave it out of the payload, or name another parameter.');
    END IF;
    -- Its own death enqueues nothing.
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'task', v_job -> 'task', 'payload', v_job -> 'payload', 'queue', v_job -> 'queue', 'parameter', v_parameter,
        'priority', v_job -> 'priority', 'delay', v_job -> 'delay', 'delivery', v_job -> 'delivery',
        'options', coalesce((v_job ->> 'options')::jsonb, '{}') || '{"failure_task": false}', 'meta', v_job -> 'meta'));
END
$$;

-- -- the documented function ----------------------------------------------------------------------

-- Store a job. Returns the id of the job that stands for it: the existing one when its id, or its key in its queue,
-- exists already. It is part of the transaction that calls it, and runs with the caller's rights.
CREATE FUNCTION {schema}.enqueue(task text, payload jsonb DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
AS $$
DECLARE
    v_job jsonb := {schema}.checked_job(task, payload, options);
    v_existing uuid[];
BEGIN
    SELECT s.existing INTO v_existing
    FROM {schema}.store_jobs(json_build_array(v_job), NULL, true, true) AS s;
    RETURN coalesce(v_existing[1], (v_job ->> 'id')::uuid);
END
$$;


COMMENT ON FUNCTION {schema}.enqueue(text, jsonb, jsonb) IS
    'Enqueue a job inside this transaction: task, payload (an object), options (an object). Returns the id of the job.';

-- Lock jobs that a producer must keep in place but may not change: PostgreSQL grants a row lock only with the right to
-- update. So this function runs with the rights of its owner. It locks rows until the caller's transaction ends, returns
-- nothing and changes nothing. `taskharbor roles` grants it; no other role may call it.
--
-- The lock keeps the jobs that new ones depend on from being deleted or pruned, and stops nothing else: it is compatible
-- with every lock of a claim, a heartbeat, a settle, a collector, or an operator who does not delete. A producer may keep
-- its transaction open for as long as it likes.
CREATE FUNCTION {schema}.hold_members(p_ids uuid[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM {schema}.jobs WHERE id = ANY (p_ids) ORDER BY id FOR KEY SHARE;
END
$$;
REVOKE ALL ON FUNCTION {schema}.hold_members FROM PUBLIC;
