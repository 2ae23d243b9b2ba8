"""Where the coordinator is, by variables of several launchers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.net.system.environment import find_address

TF = '{"cluster": {"chief": ["c:1000"], "ps": ["p:1"], "worker": ["w:2"]}, "task": {"type": "worker", "index": 0}}'
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
NAMES = (
    "ZMQPS_COORDINATOR", "TF_CONFIG", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "RANK", "WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_RANK",
)  # fmt: skip


@for_each(
    "env, address",
    [
        ({"ZMQPS_COORDINATOR": "tcp://z:1", "TF_CONFIG": TF}, "tcp://z:1"),
        (TORCH | {"ZMQPS_COORDINATOR": "tcp://z:1"}, "tcp://z:1"),
        (TORCH | {"TF_CONFIG": TF, "SLURM_PROCID": "1"}, "tcp://m:29500"),
        ({"TF_CONFIG": TF, "DMLC_PS_ROOT_URI": "d"}, "tcp://c:1000"),
        ({"DMLC_PS_ROOT_URI": "d", "OMPI_COMM_WORLD_RANK": "1"}, "tcp://d:5570"),
        (OPEN_MPI, "tcp://127.0.0.1:5570"),
        ({"JOB_COMPLETION_INDEX": "3"}, "tcp://job-0.svc:5570"),
        ({"TF_CONFIG": TF}, "tcp://c:1000"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["w:2"]}}'}, "tcp://w:2"),
        ({"DMLC_PS_ROOT_URI": "d", "DMLC_PS_ROOT_PORT": "9000"}, "tcp://d:9000"),
        ({"DMLC_PS_ROOT_URI": "d"}, "tcp://d:5570"),
        (TORCH, "tcp://m:29500"),
        (TORCH | {"TORCHELASTIC_RUN_ID": "x"}, "tcp://m:5570"),  # torch's own store has that port
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "n[3-4]"},
            "tcp://n3:15000",
        ),
    ],
)
def test_the_address_is_what_the_launcher_says(env: dict[str, str], address: str) -> None:
    assert find_address(env, lambda: "job-3.svc")[0] == address


def test_no_name_server_is_asked_where_the_name_is_not_needed() -> None:
    def fqdn() -> str:
        raise AssertionError

    assert find_address({"ZMQPS_COORDINATOR": "tcp://z:1"}, fqdn) == ("tcp://z:1", "ZMQPS_COORDINATOR")


@for_each("name", ["ZMQPS_COORDINATOR", "TF_CONFIG"])
def test_a_malformed_variable_is_named_with_its_value(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is 'nonsense'"):
        find_address({name: "nonsense"})


def test_where_nothing_says_it_the_error_lists_what_was_looked_for() -> None:
    with pytest.raises(ConfigurationError, match=r"ZMQPS_COORDINATOR.*MASTER_ADDR.*TF_CONFIG.*DMLC_PS_ROOT_URI.*Slurm"):
        find_address({})


@given(st.dictionaries(st.sampled_from(NAMES), st.text() | st.sampled_from(["0", "7", "[]", '{"cluster": 1}', TF])))
@example({"MASTER_ADDR": "host-a", "RANK": "first", "WORLD_SIZE": "2"})
def test_whatever_the_values_are_there_is_an_endpoint_or_a_typed_error(env: dict[str, str]) -> None:
    try:
        address, source = find_address(env)
    except ConfigurationError:
        return
    assert source
    assert "://" in address
