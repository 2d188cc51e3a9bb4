-- name: next_lane
-- The places aside of one queue: a skip scan of their range of the primary key, one seek for each.
SELECT queue FROM taskharbor_ready WHERE suspect = ? AND queue > ? AND queue < ? ORDER BY queue LIMIT 1

-- name: ahead
-- What waits for its time in one lane, the first of the order first.
SELECT rank, run_at, id FROM taskharbor_ready
WHERE suspect = ? AND queue = ? AND run_at > ? ORDER BY rank, run_at, id LIMIT ?

-- name: make_due
UPDATE OR REPLACE taskharbor_ready SET run_at = ?
WHERE suspect = ? AND queue = ? AND rank = ? AND run_at = ? AND id = ?

-- name: hold
INSERT INTO taskharbor_holds (kind, name, since, held_by) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: release
DELETE FROM taskharbor_holds WHERE kind = ? AND name = ?

-- name: holds
SELECT kind, name, since, held_by FROM taskharbor_holds ORDER BY kind, name
