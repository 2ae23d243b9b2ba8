"""A group of options: the keys, the token and the secret of a closed cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from zmqps import checks
from zmqps.errors import ConfigurationError


@checks.options_of("Security")
@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The keys or the secret of a closed cluster; an option of `zmqps.connect`, and of what starts a cluster.

    A cluster that was started with them asks for them, and a worker shows them when it connects.

    Parameters
    ----------
    keys : path, optional
        A directory of keys, as ``zmqps keys create`` makes it; for a worker one with its own key is enough. In
        `zmqps.connect`, ``ZMQPS_KEYS`` is the default.
    token : str, optional
        Of workers only: a key in one string, as ``zmqps keys token`` prints it; by default ``ZMQPS_TOKEN``.
    job_secret : path, optional
        A file with a secret of 16 bytes or more, required to join or end a job. In `zmqps.connect`,
        ``ZMQPS_JOB_SECRET`` is the default.
    """

    keys: str | os.PathLike[str] | None = None
    token: str | None = field(default=None, repr=False)
    job_secret: str | os.PathLike[str] | None = None

    def of_cluster(self) -> Security:
        """Return what a cluster is started with; a token is a worker's."""
        if self.token is not None:
            raise ConfigurationError(
                "a cluster is started with security=zmqps.Security(keys=DIR); a token is what its workers connect with"
            )
        return self
