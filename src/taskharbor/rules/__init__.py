"""The rules of a job's life, as pure functions over values.

A driver reads what its store knows of a job, asks here what becomes of it, and writes the answer. So every store obeys
the same rules, and each rule exists once. Nothing here knows a store, a worker or a clock.

- `standing`: where a job stands, and how a reader sees it.
- `settling`: the fence around an attempt, and where a transition takes the job.
- `operating`: what an operator's verb makes of a job.
"""
