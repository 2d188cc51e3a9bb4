-- name: next_queue
-- A skip scan over the primary key: one seek for each queue, however many rows it holds.
SELECT queue FROM taskharbor_ready WHERE suspect = ? AND queue > ? ORDER BY queue LIMIT 1

-- name: next_rank
-- The same for priorities. A million future jobs at the top priority cost this one seek.
SELECT rank FROM taskharbor_ready WHERE suspect = ? AND queue = ? AND rank > ? ORDER BY rank LIMIT 1

-- name: due_rows
-- A range of the primary key; CROSS JOIN keeps the planner from starting at the jobs. The rows come as one
-- JSON text: reading them one by one would give up the interpreter's lock for each. The columns are those of
-- Claimed, in its order. They begin after the place given: a long line is read in pieces, since a text has an end.
-- And whether all of the numbers and instants are possible ones, as `unreadable.is_readable` says; what else can be wrong
-- shows when the text is decoded. The driver fills in the limits.
SELECT json_group_array(json_array(
    id, task, payload, queue, priority, number + 1, attempts, first_number, run_at, enqueued_at, due_at,
    expires_at, delivery, options, version, meta
)), min(
    number BETWEEN 0 AND {number_max} AND attempts BETWEEN 0 AND {number_max}
    AND first_number BETWEEN 0 AND {first_number_max}
    AND run_at >= {instant_min}
    AND enqueued_at BETWEEN {instant_min} AND {instant_max}
    AND (due_at IS NULL OR due_at BETWEEN {instant_min} AND {instant_max})
    AND (expires_at IS NULL OR expires_at BETWEEN {instant_min} AND {instant_max})
)
FROM (
    SELECT r.id, j.task, j.payload, r.queue, j.priority, r.number, r.attempts, r.first_number, r.run_at,
           j.enqueued_at, r.due_at, r.expires_at, r.delivery, j.options, j.version, j.meta
    FROM taskharbor_ready AS r CROSS JOIN taskharbor_jobs AS j ON j.id = r.id
    WHERE r.suspect = ? AND r.queue = ? AND r.rank = ? AND r.run_at <= ? AND (r.run_at, r.id) > (?, ?)
    ORDER BY r.run_at, r.id
    LIMIT ?
)

-- name: due_values
-- The same rows value by value, to find the one that cannot be read.
SELECT r.suspect, r.queue, r.rank, r.run_at, r.id, r.number, r.attempts, r.first_number, r.due_at, r.expires_at,
       r.delivery, j.task, j.payload, j.priority, j.enqueued_at, j.options, j.version, j.meta
FROM taskharbor_ready AS r CROSS JOIN taskharbor_jobs AS j ON j.id = r.id
WHERE r.suspect = ? AND r.queue = ? AND r.rank = ? AND r.run_at <= ? AND (r.run_at, r.id) > (?, ?)
ORDER BY r.run_at, r.id
LIMIT ?

-- name: odd_keys
-- Rows whose place in the order cannot be one: a scan. Each by its bytes, which name it whatever they are.
SELECT hex(suspect), hex(queue), hex(rank), hex(run_at), hex(id),
       suspect, queue, rank, run_at, id, number, attempts, first_number, due_at, expires_at, delivery
FROM taskharbor_ready
WHERE typeof(suspect) <> 'integer' OR typeof(queue) <> 'text' OR typeof(rank) <> 'integer'
   OR typeof(run_at) <> 'integer' OR typeof(id) <> 'text' OR queue = CAST(? AS TEXT)
LIMIT ?

-- name: delete_odd_key
DELETE FROM taskharbor_ready
WHERE hex(suspect) = ? AND hex(queue) = ? AND hex(rank) = ? AND hex(run_at) = ? AND hex(id) = ?

-- name: delete_place
-- By the bytes of its id, which need not be text.
DELETE FROM taskharbor_ready WHERE suspect = ? AND queue = ? AND rank = ? AND run_at = ? AND hex(id) = ?

-- name: delete_strays
-- Of a job that was put under another key than its own by hand: a scan.
DELETE FROM taskharbor_ready WHERE id = ?

-- name: delete_ready_up_to
-- What a claim took of one queue and priority is a prefix of its range, so one statement removes it.
DELETE FROM taskharbor_ready
WHERE suspect = ? AND queue = ? AND rank = ? AND (run_at, id) <= (?, ?)

-- name: next_run_at
SELECT run_at FROM taskharbor_ready
WHERE suspect = ? AND queue = ? AND rank = ? AND run_at > ?
ORDER BY run_at LIMIT 1

-- name: suspects_due
-- The suspects' place is small: a scan of it is.
SELECT DISTINCT queue FROM taskharbor_ready WHERE suspect = 1 AND run_at <= ?

-- name: paused_queues
SELECT queue FROM taskharbor_paused

-- name: stops
-- What keeps jobs from being claimed: the paused queues and the holds; and for each queue of a JSON array whether any job
-- of it stands aside, by a seek in its range of the primary key. One statement, since each claim pays for it.
SELECT 'queue', queue FROM taskharbor_paused
UNION ALL SELECT kind, name FROM taskharbor_holds
UNION ALL
SELECT 'aside', q.value FROM json_each(?1) AS q
WHERE EXISTS (SELECT 1 FROM taskharbor_ready AS r
              WHERE r.suspect = 0 AND r.queue > q.value || char(31, 31) AND r.queue < q.value || char(31, 32))
   OR EXISTS (SELECT 1 FROM taskharbor_ready AS r
              WHERE r.suspect = 1 AND r.queue > q.value || char(31, 31) AND r.queue < q.value || char(31, 32))

-- name: insert_lease
INSERT INTO taskharbor_leases (token, origin, worker, expires_at, alone, supervised, max_losses, open)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_entries
INSERT INTO taskharbor_claims (token, entries) VALUES (?, ?)

-- name: lease
SELECT token, origin, worker, expires_at, expired_at, alone, supervised, max_losses, worker_survived, open,
       cancels, running
FROM taskharbor_leases WHERE token = ?

-- name: leases
SELECT token, origin, worker, expires_at, expired_at, alone, supervised, max_losses, worker_survived, open,
       cancels, running
FROM taskharbor_leases ORDER BY token

-- name: leases_with_cancels
-- One seek for each token of a JSON array: a worker looks at its own leases twice a second.
SELECT token, origin, worker, expires_at, expired_at, alone, supervised, max_losses, worker_survived, open,
       cancels, running
FROM json_each(?) AS asked CROSS JOIN taskharbor_leases ON token = asked.value
WHERE cancels <> '[]'

-- name: entries
SELECT entries FROM taskharbor_claims WHERE token = ?

-- name: update_entries
UPDATE taskharbor_claims SET entries = ? WHERE token = ?

-- name: extend_lease
UPDATE taskharbor_leases SET expires_at = ?, running = ? WHERE token = ?

-- name: mark_at_most_once
UPDATE taskharbor_jobs SET delivery = 'at_most_once' WHERE id = ? AND delivery IS NOT 'at_most_once'

-- name: first_expired
SELECT token, origin, worker, expires_at, expired_at, alone, supervised, max_losses, worker_survived, open,
       cancels, running
FROM taskharbor_leases WHERE expires_at <= ? ORDER BY expires_at, token LIMIT 1

-- name: retoken_lease
UPDATE taskharbor_leases SET token = ?, expires_at = ?, expired_at = coalesce(expired_at, expires_at)
WHERE token = ?

-- name: retoken_entries
UPDATE taskharbor_claims SET token = ? WHERE token = ?

-- name: mark_survived_lease
-- Only a lease that is over: a live one may still be lost with its worker.
UPDATE taskharbor_leases SET worker_survived = 1 WHERE origin = ? AND (token <> origin OR expires_at <= ?)

-- name: mark_survived_attempts
UPDATE taskharbor_attempts SET worker_survived = 1 WHERE origin = ?

-- name: request_cancel
UPDATE taskharbor_leases SET cancels = ? WHERE token = ?

-- name: job_for_claim
SELECT task, payload, queue, priority, enqueued_at, options, version, meta FROM taskharbor_jobs WHERE id = ?
