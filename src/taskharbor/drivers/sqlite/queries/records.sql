-- name: put
INSERT INTO taskharbor_records (kind, key, about, expires_at) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, key) DO UPDATE SET about = excluded.about, expires_at = excluded.expires_at

-- name: delete_expired
DELETE FROM taskharbor_records WHERE kind = ? AND expires_at <= ?

-- name: read
SELECT key, about, expires_at FROM taskharbor_records
WHERE kind = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key

-- name: drop
DELETE FROM taskharbor_records WHERE kind = ? AND key = ?
