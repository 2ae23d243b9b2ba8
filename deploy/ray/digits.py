"""Train on handwritten digits on Ray: `RAY_ADDRESS=HOST:PORT python deploy/ray/digits.py`, from the root."""

import sys

import zmqps.ray

if __name__ == "__main__":
    command = ["python", "examples/digits.py", *sys.argv[1:]]
    placement = zmqps.ray.Placement(strategy="SPREAD", restart_workers=1)
    with zmqps.ray.start(servers=2, workers=4, command=command, placement=placement) as cluster:
        sys.exit(cluster.wait())
