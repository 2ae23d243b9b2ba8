"""Prometheus, and Grafana where it is installed, for a running cluster: `make observe`, or this file with ``--help``.

Both run until Ctrl-C, SIGTERM, or the end of this program, however that ends. What they write is below ``--directory``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from zmqps.errors import ConfigurationError, PSError
from zmqps.launch.processes import Process, all_exited, end, worker_command
from zmqps.net.identity import read_secret
from zmqps.web.server import WebPlace, url

HERE = Path(__file__).parent
#: What prometheus.yml has in the place of the coordinator's address, and of its token.
TARGET = "127.0.0.1:5580"
TOKEN = "    # authorization:\n    #   credentials_file: page.token\n"
#: Grafana's own files, which it does not find by itself: of its packages, and of Homebrew's.
HOMES = ("/usr/share/grafana", "/opt/homebrew/opt/grafana/share/grafana", "/usr/local/opt/grafana/share/grafana")
#: Seconds that a start may take, and an end.
START_S = 60.0
END_S = 10.0
POLL_S = 0.1
#: More is not kept, so that a disk does not fill up.
RETENTION = ("--storage.tsdb.retention.time=15d", "--storage.tsdb.retention.size=2GB")


def configure(directory: Path, target: str, token: Path | None, every: str) -> Path:
    """Write Prometheus's configuration into a directory; return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("recording.yml", "alerts.yml"):
        shutil.copyfile(HERE / name, directory / name)
    text = (HERE / "prometheus.yml").read_text()
    assert TARGET in text
    assert TOKEN in text
    text = text.replace(TARGET, target).replace("interval: 5s", f"interval: {every}")
    if token is not None:
        text = text.replace(TOKEN, f"    authorization:\n      credentials_file: {token.absolute()}\n")
    path = directory / "prometheus.yml"
    path.write_text(text)
    return path


def look(target: str, token: Path | None) -> None:
    """Raise `ConfigurationError` unless a node answers there."""
    place = WebPlace(target, insecure=True)
    place.check()
    request = urllib.request.Request(url(*place.host_and_port))
    if secret := read_secret(token, "token", "the token for metrics"):
        request.add_header("Authorization", f"Bearer {secret.decode()}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise ConfigurationError(f"{target} says: {error.read(500).decode(errors='replace').strip()}") from None
    except OSError as error:
        raise ConfigurationError(
            f"no node answers scrapes at {target} ({error}); start the cluster with --page {target}, for example "
            f'by make up ARGS="--page {target}"'
        ) from None


def program(*names: str) -> str | None:
    """Return the path of a program that is installed."""
    return next((path for name in names if (path := shutil.which(name))), None)


def run(name: str, command: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a program that does not outlive this one; what it says goes to a file."""
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        return Process(name, worker_command(command), stdout=output, log=log, env=env)


def prometheus(directory: Path, config: Path, port: int) -> Process:
    """Start Prometheus on this host's loopback."""
    path = program("prometheus")
    if path is None:
        raise ConfigurationError(
            "prometheus is not installed: apt install prometheus, or https://prometheus.io/download"
        )
    where = (f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={directory / 'data'}")
    return run("prometheus", [path, f"--config.file={config}", *where, *RETENTION], directory)


def grafana(directory: Path, port: int, source: str) -> Process | None:
    """Start Grafana on this host's loopback, with the dashboard; None: it is not installed."""
    path = program("grafana", "grafana-server")
    if path is None:
        return None
    provisioning = directory / "provisioning"
    for name, kind in (("datasource.yml", "datasources"), ("dashboards.yml", "dashboards")):
        (provisioning / kind).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HERE / "grafana" / name, provisioning / kind / name)
    home = next((home for home in HOMES if Path(home).is_dir()), None)
    env = {
        "PROMETHEUS_URL": source, "DASHBOARDS": str(HERE), "GF_PATHS_PROVISIONING": str(provisioning),
        "GF_PATHS_DATA": str(directory / "grafana"), "GF_PATHS_LOGS": str(directory / "grafana"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1", "GF_SERVER_HTTP_PORT": str(port),
        "GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Editor",
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(HERE / "dashboard.json"),
        "GF_ANALYTICS_REPORTING_ENABLED": "false", "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }  # fmt: skip
    server = ["server"] if Path(path).name == "grafana" else []
    command = [path, *server, *(["--homepath", home] if home else [])]
    return run("grafana", command, directory, {**os.environ, **env})


def ready(address: str) -> bool:
    """Return whether Prometheus answers queries there: it listens before it has read what it keeps."""
    try:
        with urllib.request.urlopen(f"{address}/-/ready", timeout=END_S) as answer:
            answer.read()
    except OSError:  # 503 until then
        return False
    return True


async def started(process: Process) -> str:
    """Return the URL of Prometheus as soon as it answers queries."""
    address = None
    while True:
        if found := re.search(r'"Listening on" address=(\S+)', process.log.read_text()):
            address = f"http://{found[1]}"
        if address and await asyncio.to_thread(ready, address):
            return address
        if await all_exited([process], POLL_S):
            raise process.failure(process.popen.returncode)


async def observe(options: argparse.Namespace) -> int:
    """Run both until the end; return the exit code."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    directory = options.directory.absolute()
    config = configure(directory, options.metrics, options.token, options.every)
    running = [prometheus(directory, config, options.port)]
    stop = asyncio.ensure_future(asked.wait())
    try:
        start = asyncio.ensure_future(asyncio.wait_for(started(running[0]), START_S))
        await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            start.cancel()
            return 0
        where = await start
        print(f"Prometheus  {where}/alerts  (data and log in {options.directory})", flush=True)
        if (second := grafana(directory, options.grafana_port, where)) is not None:
            running.append(second)
            print(f"Grafana     http://127.0.0.1:{options.grafana_port}/d/zmqps", flush=True)
        else:
            print(
                "Grafana is not installed: https://grafana.com/grafana/download, then import dashboard.json", flush=True
            )
        ends = {asyncio.ensure_future(process.exited()): process for process in running}
        await asyncio.wait([*ends, stop], return_when=asyncio.FIRST_COMPLETED)
        for future, process in ends.items():
            if future.done() and not stop.done():
                raise process.failure(future.result())
            future.cancel()
        return 0
    finally:
        stop.cancel()
        await end(running, signal.SIGTERM, END_S)


def main() -> int:
    """Read the command line, run both, and return the exit code."""
    parser = argparse.ArgumentParser(description="Prometheus and Grafana for a running cluster, until Ctrl-C")
    parser.add_argument("--metrics", default=TARGET, help=f"--page of the coordinator (default: {TARGET})")
    parser.add_argument("--token", type=Path, help="its --page-token")
    parser.add_argument("--port", type=int, default=9090, help="Prometheus' own, on this host; 0 takes a free one")
    parser.add_argument("--grafana-port", type=int, default=3000, help="Grafana's, on this host")
    parser.add_argument("--every", default="5s", help="how often to scrape (default: 5s)")
    parser.add_argument("--directory", type=Path, default=Path("runs/observe"), help="for data and logs")
    options = parser.parse_args()
    try:
        look(options.metrics, options.token)
        return asyncio.run(observe(options))
    except (PSError, TimeoutError) as error:
        print(f"Error: {error or 'Prometheus does not start'}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
