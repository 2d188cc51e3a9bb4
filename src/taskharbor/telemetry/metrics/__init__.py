"""Metrics: what a worker counts about its jobs, and how a scrape reads it.

    store's answer → Meter → Cells ─┐                      ┌→ WorkerCollector → text for Prometheus
    (in each worker process)        ├→ Totals → snapshot ──┤
                       other Cells ─┘                      └→ roll-ups (differences of two snapshots)

- `catalogue` lists every metric, once: the memory layout, the exported families and docs/metrics.md follow from it.
- `cells` is the memory: 64-bit words with one writer, private in a plain worker, shared with the supervisor in a child.
- `meter` records. It is called with whole batches, after the store has answered.
- `totals` adds up the cells of processes that have ended and of those that run.
- `store_gauges` reads what only the store knows: depths, ages, workers.
- `exposition` builds the families for prometheus_client, at scrape time only; `endpoint` serves them over HTTP.

Only `exposition` and `endpoint` need the extra `[metrics]`.

Where the rest of TaskHarbor calls it:

- The fetcher: `meter.claimed(claim.jobs, seconds)`, once for each answered claim, where it accepts the jobs.
- The committer, and what settles the jobs of dead workers (`rescue.settle_endings`): `meter.settled(jobs, transitions,
  answers)`, once for each batch, and `meter.store_settled` for each answer of the store; for plain successes
  `meter.succeeded`, which takes columns. Nothing may be awaited between such a call and the moment when the batch is
  forgotten: a batch that is settled again after a cancellation would count twice.
- What ends jobs that no worker began: `meter.ended_unbegun(record)`, once for each job that a claim could not read,
  that has expired, or that ended with a dependency.
- What extends leases: `meter.extension_refused()` for each lease that the store refused to extend.
- The worker's loop: a task that runs `watch_loop(meter)`.
- A child: `Meter(Cells(memory), …)` with `cells.SIZE` zeroed bytes of the memory that it shares with its supervisor.
- The supervisor: `totals.add(Cells(memory))` when a child starts; `totals.end(cells)` once its process is gone, before
  its memory is closed; and a `Meter` of its own for the losses that it settles, with `declared=totals.knows`.
- `worker --metrics-port`: `serving`, a `MetricsEndpoint` with an `exposition.Renderer`.
- `GET /metrics` of the server: a `Renderer` with the store's gauges.

Words in cells never fall, so that a reader may take differences at any time.
"""
