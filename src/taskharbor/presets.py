"""Retry policies for common kinds of work, and the error texts that policies are often made of.

    @harbor.task(retry=presets.EMAIL)
    async def send_email(to: str, subject: str) -> None: ...

`dataclasses.replace(presets.NETWORK, max_attempts=3)` gives a changed copy.
"""

from __future__ import annotations

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError
from taskharbor.rules.retry import RetryPolicy

RETRYABLE_ERRORS = (
    "timeout",
    "connection refused",
    "unavailable",
    "deadlock",
    "connection closed",
    "too many open files",
    "temporary failure",
)
"""Texts of transient errors: `RetryPolicy(retry_on=presets.RETRYABLE_ERRORS)`."""

NON_RETRYABLE_ERRORS = (
    "validation error",
    "unauthorized",
    "forbidden",
    "not found",
    "invalid request",
    "bad credentials",
    "rate limit exceeded",
    "request too large",
    "duplicate key error",
)
"""Texts of permanent errors: `RetryPolicy(never_retry_on=presets.NON_RETRYABLE_ERRORS)`."""

# The default of a worker: quick first retries, patient later ones, with jitter.
DEFAULT = RetryPolicy(max_attempts=25, initial=0.2, maximum=5, multiplier=2, jitter=0.2)

# With jitter over the whole delay, against stampedes: a general one, one for work that must get through, and one for
# work that must be quick.
FULL_JITTER = RetryPolicy(max_attempts=4, initial=0.5, maximum=30, multiplier=2, jitter="full")
CONSERVATIVE = RetryPolicy(max_attempts=6, initial=1, maximum=60, multiplier=2, jitter="full")
AGGRESSIVE = RetryPolicy(max_attempts=3, initial=0.1, maximum=5, multiplier=2, jitter="full")

# By what the task calls.
STANDARD = RetryPolicy(max_attempts=4, initial=1, maximum=60, multiplier=2, jitter=0.1)
NETWORK = RetryPolicy(
    max_attempts=6,
    initial=0.1,
    maximum=10,
    multiplier=2,
    jitter=0.1,
    retry_on=("timeout", "unavailable", "connection"),
)
EXTERNAL_API = RetryPolicy(
    max_attempts=8,
    initial=2,
    maximum=120,
    multiplier=1.5,
    jitter=0.2,
    never_retry_on=("404", "authentication failed", "invalid request"),
)
DATABASE = RetryPolicy(
    max_attempts=4,
    initial=0.05,
    maximum=5,
    multiplier=2,
    jitter=0.05,
    retry_on=("deadlock", "connection closed"),
)
EMAIL = RetryPolicy(
    max_attempts=11,
    initial=5,
    maximum=300,
    multiplier=1.3,
    jitter=0.1,
    never_retry_on=("invalid email", "unsubscribed"),
)

# For recurring jobs: the delays are exact, so that a log can say when the next attempt is.
SCHEDULE = RetryPolicy(max_attempts=4, initial=1, maximum=300, multiplier=2, jitter=None)

# The first failure is final.
NONE = RetryPolicy(max_attempts=1, initial=0, maximum=0, multiplier=1, jitter=None)


def named(name: str) -> RetryPolicy:
    """Return the preset of this name, in upper or lower case: `named("email")` is `EMAIL`."""
    found = globals().get(name.upper())
    if not isinstance(found, RetryPolicy):
        names = sorted(each.lower() for each, value in globals().items() if isinstance(value, RetryPolicy))
        raise ConfigurationError(f"no preset is called {shorten(name)}; the presets are {', '.join(names)}")
    return found
