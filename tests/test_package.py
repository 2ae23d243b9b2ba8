"""What `import zmqps` gives."""

import subprocess
import sys


def test_every_public_name_is_there_without_another_import() -> None:
    code = "import zmqps; [getattr(zmqps, name) for name in zmqps.__all__]; print(zmqps.codecs.topk(0.05).spec)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "topk:fraction=0.05\n"
