"""A worker's job trains one model."""

from __future__ import annotations

import pytest

from zmqps.client.frameworks import claim, claimed, release
from zmqps.errors import ConfigurationError


class Thing:
    """A worker or a model."""


def test_a_second_model_is_refused_and_the_error_says_how_to_have_two() -> None:
    worker, model = Thing(), Thing()
    claim(worker, model)
    with pytest.raises(ConfigurationError, match=r"already trains another model.*connect\(job="):
        claim(worker, Thing())
    claim(Thing(), Thing())


def test_the_same_model_may_be_claimed_again() -> None:
    worker, model = Thing(), Thing()
    claim(worker, model)
    claim(worker, model)


def test_a_job_that_was_released_trains_another_model() -> None:
    worker, model, other = Thing(), Thing(), Thing()
    claim(worker, model)
    release(worker, other)
    with pytest.raises(ConfigurationError):
        claim(worker, other)
    release(worker, model)
    claim(worker, other)
    release(Thing(), model)


def test_a_model_that_nobody_has_any_more_does_not_stand_in_the_way() -> None:
    worker, model = Thing(), Thing()
    claim(worker, model)
    del model
    claim(worker, Thing())


def test_a_job_that_could_not_be_begun_is_free_for_another_model() -> None:
    worker, model, other = Thing(), Thing(), Thing()
    with pytest.raises(OSError, match="lost"), claimed(worker, model):
        raise OSError("lost")
    with claimed(worker, other):
        pass
    with pytest.raises(ConfigurationError), claimed(worker, model):
        pass


def test_a_model_that_trains_keeps_its_job_where_it_is_begun_once_more_and_that_fails() -> None:
    worker, model = Thing(), Thing()
    claim(worker, model)
    with pytest.raises(OSError, match="lost"), claimed(worker, model):
        raise OSError("lost")
    with pytest.raises(ConfigurationError):
        claim(worker, Thing())
