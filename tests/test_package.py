"""What `import zmqps` gives, and what scripts may import from its modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.pace import allow

pytestmark = pytest.mark.processes

#: Public module -> what scripts use of it. These paths are promised: a name may come, none may go.
PUBLIC = {
    "zmqps": "LocalCluster PSError Statistics Worker connect aio codecs data errors local optim pipeline stale",
    "zmqps.aio": "AsyncWorker connect",
    "zmqps.codecs": "Codec bf16 fp16 int8 onebit parse raw topk twobit",
    "zmqps.data": "DataRange split",
    "zmqps.errors": "PSError ClosedError ConfigurationError DeadlineError JobMismatchError PeerLostError",
    "zmqps.local": "LocalSteps ElasticAveraging",
    "zmqps.optim": "OptimizerSpec Rule Schedule adadelta adagrad adam adamw amsgrad constant cosine_decay custom "
    "exponential_decay flag ftrl group linear_decay linear_warmup lion number one_cycle piecewise "
    "polynomial_decay rmsprop rowwise_adagrad scale_linearly sgd step_decay",
    "zmqps.pipeline": "Channel bind connect",
    "zmqps.stale": "Treatment compensate divide drop",
    "zmqps.worker": "Worker connect",
}


def run(program: str) -> str:
    """Run it where nothing else has been imported."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=allow(60))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there_without_another_import() -> None:
    code = "import zmqps; [getattr(zmqps, name) for name in zmqps.__all__]; print(zmqps.codecs.topk(0.05).spec)"
    assert run(code) == "topk:fraction=0.05\n"


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_modules_names_can_be_imported_first_and_alone(module: str) -> None:
    run(f"from {module} import {', '.join(PUBLIC[module].split())}")
