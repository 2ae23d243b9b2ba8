"""What a server does about stale gradients: one policy per file, chosen by the job's ``treatment``.

A gradient is *stale* when the values it was computed from have changed since: by others' updates and by earlier pushes
of its own worker. The staleness of a slice's gradient is the number of those updates. A treatment changes such a
gradient, or drops it, before the optimizer gets it. Treatments are pure: they know arrays and a count, no workers and
no shards. In synchronous mode no gradient is stale, and there is nothing to treat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from zmqps import checks
from zmqps.core.treatments.base import Treatment
from zmqps.core.treatments.compensate import Compensate
from zmqps.core.treatments.copies import ReadCopies
from zmqps.core.treatments.divide import Divide
from zmqps.core.treatments.drop import Drop
from zmqps.errors import ConfigurationError

__all__ = ["TREATMENTS", "Compensate", "Divide", "Drop", "ReadCopies", "Treatment", "make_treatment"]

#: By their names on the wire.
TREATMENTS: dict[str, type[Treatment]] = {cls.name: cls for cls in (Compensate, Divide, Drop)}


def make_treatment(wire: Mapping[str, Any] | None) -> Treatment | None:
    """Return the treatment of a job; None: gradients are applied unchanged.

    Raises
    ------
    ConfigurationError
        There is no such treatment, or it does not take these options.
    """
    if wire is None:
        return None
    name = wire.get("name")
    cls = TREATMENTS[checks.one_of("treatment", name, sorted(TREATMENTS))]
    options = {field.name.rstrip("_"): field.name for field in fields(cls)}
    if set(wire) != {"name", *options}:
        raise ConfigurationError(f"treatment {name!r} takes {sorted(options)}, not {sorted(set(wire) - {'name'})[:8]}")
    return cls(**{field: wire[option] for option, field in options.items()})
