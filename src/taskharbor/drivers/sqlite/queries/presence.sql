-- name: sign_on
INSERT INTO taskharbor_workers (name, about, expires_at) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET about = excluded.about, expires_at = excluded.expires_at

-- name: forget_expired
DELETE FROM taskharbor_workers WHERE expires_at <= ?

-- name: sign_off
DELETE FROM taskharbor_workers WHERE name = ?

-- name: workers
SELECT about, expires_at FROM taskharbor_workers WHERE expires_at > ? ORDER BY name
