"""Gradients encoded on a GPU: the bytes of this host, residuals kept there, nothing taken in that is not finite."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.codecs.cases import PORTABLE
from tests.devices import NewDevice, on_device, on_every_device
from tests.producers import Tensor
from tests.simulator.host_device import HostDevice
from tests.tables import for_each
from zmqps import codecs
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import compress
from zmqps.core.worker.transfer import Cargo, plan
from zmqps.errors import DeviceError, NonFiniteGradientError
from zmqps.gpu.device import Device
from zmqps.gpu.encoder import Encoder
from zmqps.gpu.handover import Handover, Port, Remote
from zmqps.optim import sgd

SHAPES = {"w": (1000,), "b": (3,), "v": (700,)}
#: A slice of the first part of w; one of the rest of w, all of b and a part of v; and a small one.
SLICE_NBYTES = 3000


class Bench:
    """An encoder, what it is given, and the same done by this host."""

    def __init__(self, device: Device, nonfinite: str = "reject") -> None:
        parameters = tuple(Parameter(name, shape, "float32") for name, shape in SHAPES.items())
        job = JobSpec(parameters=parameters, optimizer=sgd(1.0).to_wire(), mode="async", nonfinite=nonfinite)
        self.device = device
        self.cargoes = plan(Placement.balance(KeySpace(parameters), 2, SLICE_NBYTES))
        self.handover = Handover(lambda _: device)
        self.encoder = Encoder(job, self.handover)
        self.port: Port = self.handover._port("cuda:0")
        self._left_out: dict[Cargo, Array] = {}

    def gradients(self, seed: int) -> dict[int, Array]:
        rng = np.random.default_rng(seed)
        return {i: rng.standard_normal(shape).astype("f4") for i, shape in enumerate(SHAPES.values())}

    def remote(self, arrays: dict[int, Any]) -> dict[int, Any]:
        self.device.use()
        return {i: Remote(self.port, on_device(self.device, array)) for i, array in arrays.items()}

    def encode(self, codec: str, arrays: dict[int, Any], *, atomic: bool = False) -> Any:
        return self.encoder.encode(self.port, codec, arrays, self.cargoes, atomic=atomic)

    def expected(self, codec: str, arrays: dict[int, Array], cargo: Cargo, seed: int = 0) -> Array:
        pieces = [arrays[i][start:stop] for i, start, stop in cargo.extents]
        residual = self._left_out.setdefault(cargo, np.zeros(cargo.nbytes // 4, "f4"))
        return compress(codecs.parse(codec), [pieces], [[residual]], seed)[0]

    @property
    def all_cargoes(self) -> list[Cargo]:
        return [cargo for shard in self.cargoes for cargo in shard]


@on_every_device
@for_each("codec", [spec for spec in PORTABLE if spec != "raw"])
def test_blobs_are_those_of_this_host_step_after_step(codec: str, new_device: NewDevice) -> None:
    bench, seeds = Bench(new_device()), count(1)
    for step in range(3):
        arrays = bench.gradients(step)
        bad, encoded = bench.encode(codec, bench.remote(arrays))
        assert bad == []
        assert list(encoded) == bench.all_cargoes
        for cargo, (name, blob) in encoded.items():
            if cargo.nbytes < codecs.MIN_NBYTES:
                assert name == "raw"
                raw = np.concatenate([arrays[i][start:stop] for i, start, stop in cargo.extents])
                assert blob.tobytes() == raw.tobytes()
            else:
                assert name == codecs.parse(codec).spec
                assert blob.tobytes() == bench.expected(codec, arrays, cargo, next(seeds)).tobytes()


def test_every_blob_has_random_numbers_of_its_own() -> None:
    bench = Bench(HostDevice())
    array = bench.remote(bench.gradients(0))
    first, second = (bench.encode("int8:stochastic", array)[1] for _ in range(2))
    large = next(cargo for cargo in bench.all_cargoes if cargo.nbytes >= codecs.MIN_NBYTES)
    assert first[large][1].tobytes() != second[large][1].tobytes()


def test_what_goes_in_one_message_has_one_codec() -> None:
    bench = Bench(HostDevice())
    arrays = bench.remote(bench.gradients(0))
    assert {name for name, _ in bench.encode("bf16", arrays)[1].values()} == {"raw", "bf16"}
    assert {name for name, _ in bench.encode("bf16", arrays, atomic=True)[1].values()} == {"bf16"}


def test_arrays_of_this_host_are_taken_along() -> None:
    bench = Bench(HostDevice())
    arrays = bench.gradients(0)
    mixed = bench.remote({0: arrays[0]}) | {1: arrays[1], 2: arrays[2].astype("f8")}
    _, encoded = bench.encode("bf16", mixed)
    for cargo, (name, blob) in encoded.items():
        assert name == "raw" or blob.tobytes() == bench.expected("bf16", arrays, cargo).tobytes()


@on_every_device
@for_each("value", [np.nan, np.inf])
def test_what_is_not_finite_is_named_and_not_taken_in(value: float, new_device: NewDevice) -> None:
    bench = Bench(new_device())
    arrays = bench.gradients(0)
    broken = {**arrays, 0: np.where(np.arange(1000) == 17, np.float32(value), arrays[0]), 1: np.full(3, 1e300)}
    assert bench.encode("topk:fraction=0.05", bench.remote(broken)) == (["w", "b"], {})  # 1e300 is none as float32
    _, encoded = bench.encode("topk:fraction=0.05", bench.remote(arrays))
    for cargo, (name, blob) in encoded.items():
        assert name == "raw" or blob.tobytes() == bench.expected("topk:fraction=0.05", arrays, cargo).tobytes()
    bad, encoded = Bench(new_device(), nonfinite="allow").encode("bf16", bench.remote(broken))
    assert bad == []
    assert encoded


def test_where_is_decided_by_the_codec_and_the_devices() -> None:
    bench = Bench(HostDevice())
    here, there = bench.gradients(0), bench.remote(bench.gradients(0))
    other = HostDevice()
    other.spec = "cuda:1"
    elsewhere = Remote(Port(other, other.new_stream(), other.new_stream()), here[1])
    port_for = bench.encoder.port_for
    assert port_for("bf16", there) is bench.port
    assert port_for("bf16", {**here, 1: there[1]}) is bench.port
    assert port_for("raw", there) is None
    assert port_for("onebit", there) is None
    assert port_for("bf16", here) is None
    assert port_for("bf16", {**there, 1: elsewhere}) is None


def test_a_full_device_says_so() -> None:
    class Full(HostDevice):
        def empty(self, size: int, dtype: Any) -> Any:
            raise MemoryError("out of memory allocating 4,000 bytes")

    bench = Bench(Full())
    with pytest.raises(DeviceError, match=r"lacks the memory to encode gradients .*out of memory"):
        bench.encode("bf16", bench.gradients(0))


@pytest.mark.processes
def test_tensors_and_arrays_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    device = HostDevice()
    monkeypatch.setattr("zmqps.client.connection.Handover", lambda: Handover(lambda _: device))
    start = np.zeros(5000, "f4")
    with (
        zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy"), limits=zmqps.Limits(slice_size=8192)) as cluster,
        zmqps.connect(cluster.address) as worker,
    ):
        worker.init({"a": start, "b": start}, optimizer=sgd(1.0), mode="async", push_codec=codecs.topk(0.1))
        for step in range(4):
            gradient = np.random.default_rng(step).standard_normal(5000).astype("f4")
            worker.push({"a": gradient})
            worker.push({"b": Tensor(gradient)}, atomic=step % 2 == 0)
        with pytest.raises(NonFiniteGradientError, match="'b'"):
            worker.push({"b": Tensor(np.full(5000, np.nan, "f4"))})
        params = worker.push_pull({"b": Tensor(np.zeros(5000, "f4"))})
        worker.push({"a": np.zeros(5000, "f4")})
        np.testing.assert_allclose(worker.pull()["a"], params["b"], rtol=1e-6)
        assert np.count_nonzero(params["b"]) > 1000
        assert worker.statistics().nonfinite == 1
