"""What a pull returns shows its version, and is otherwise a dict."""

from __future__ import annotations

import copy
import pickle

import zmqps


def test_pulled_values_show_their_version() -> None:
    params = zmqps.Params({"w": [1.0, 2.0]}, version=3)
    assert repr(params) == "Params(version=3, {'w': [1.0, 2.0]})"
    assert params == {"w": [1.0, 2.0]}
    for copied in (copy.copy(params), pickle.loads(pickle.dumps(params))):
        assert repr(copied) == repr(params)
