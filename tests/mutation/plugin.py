"""Takes the place of `conftest.py` in the tests of a mutant, which are pure: nothing they leave behind need be sought.

The same few examples for each mutant, and a failure is enough: what fails need not be small.
"""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutation",
    deadline=None,
    max_examples=15,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("mutation")
