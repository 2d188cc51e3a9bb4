-- name: append
INSERT INTO taskharbor_rollups_appended (at, queue, task, figures) VALUES (?, ?, ?, ?)

-- name: take_appended
SELECT rowid, at, queue, task, figures FROM taskharbor_rollups_appended WHERE at <= ? ORDER BY at LIMIT ?

-- name: delete_appended
DELETE FROM taskharbor_rollups_appended WHERE rowid = ?

-- name: old_periods
SELECT at, queue, task, figures FROM taskharbor_rollups_folded
WHERE period = ? AND at < ? ORDER BY at, queue, task LIMIT ?

-- name: delete_folded
DELETE FROM taskharbor_rollups_folded WHERE period = ? AND at = ? AND queue = ? AND task = ?

-- name: of_period
SELECT queue, task, figures FROM taskharbor_rollups_folded WHERE period = ? AND at = ?

-- name: put
INSERT INTO taskharbor_rollups_folded (period, at, queue, task, figures) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (period, at, queue, task) DO UPDATE SET figures = excluded.figures

-- name: read
SELECT at, queue, task, figures FROM taskharbor_rollups_appended
WHERE at >= ?1 AND at < ?2 AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR task = ?4)
UNION ALL
SELECT at, queue, task, figures FROM taskharbor_rollups_folded
WHERE period IN (?5, 'minute') AND at >= ?1 AND at < ?2 AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR task = ?4)
