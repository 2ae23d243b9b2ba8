"""What ``--sync-code`` copies: the files of the script's folder, without secrets and what no other host needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zmqps.errors import RSYNC, ConfigurationError, ProgramMissingError, counted, listed, num_bytes
from zmqps.launch.private import secrets_among

#: Folders that no other host needs, besides what git ignores and virtual environments.
NOT_COPIED = (".git", ".venv", "__pycache__", "runs", ".zmqps")
#: These are not listed.
UNNAMED = (".git", "__pycache__")
#: Every virtual environment has this file.
OF_VENV = "pyvenv.cfg"
#: More than this is rarely code: it is asked for, or warned of.
MUCH_NBYTES = 100_000_000
#: How many are named at most: of the largest entries, and of those left out.
MOST_NAMED = 4
#: Of what is left out because it is a secret more is named: a user may miss it.
MOST_SECRETS = 20
#: What rsync here ends with when there is none there, and when it does not know its options itself.
NO_SUCH_COMMAND, WRONG_USAGE = 127, 1
#: What shells there say: sh, bash; zsh; fish. rsync here may have ended before it knew how they did.
NOT_FOUND = re.compile(r"rsync: (command )?not found|(command not found|[Uu]nknown command): rsync")
#: Seconds that git may take for a list of files.
GIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Files to copy.

    Attributes
    ----------
    folder
        Where they are here.
    there
        The same on the other hosts.
    files
        Their paths below it, and their bytes.
    left_out
        Folders that are not copied; without what git ignores.
    by_git
        Whether what git ignores is left out.
    secrets
        Files and folders that are not copied because they are secret.
    """

    folder: Path
    there: str
    files: dict[str, int]
    left_out: tuple[str, ...] = ()
    by_git: bool = False
    secrets: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    @property
    def is_much(self) -> bool:
        """Whether it is more than code mostly is."""
        return self.nbytes > MUCH_NBYTES

    @property
    def listing(self) -> bytes:
        """The names as rsync's ``--files-from`` takes them with ``--from0``."""
        return b"".join(os.fsencode(name) + b"\0" for name in self.files)

    def describe(self, num_hosts: int) -> str:
        """Say what is copied, how much, and to how many hosts."""
        left_out = ["what git ignores"] * self.by_git
        left_out += [f"{name}/" for name in self.left_out if name.rpartition("/")[2] not in UNNAMED]
        without = f", without {listed(left_out, MOST_NAMED)}" if left_out else ""
        return (
            f"{counted(len(self.files), 'file')}, {num_bytes(self.nbytes)}, of {self.folder} "
            f"to {counted(num_hosts, 'host')}{without}"
        )

    def without(self) -> str:
        """Say which secrets are not copied; empty: there are none."""
        return f"not copied, for these are secrets: {listed(self.secrets, MOST_SECRETS)}" if self.secrets else ""

    def largest(self) -> str:
        """Say which entries of the folder most of the bytes are in."""
        sizes: Counter[str] = Counter()
        for name, nbytes in self.files.items():
            first, slash, _ = name.partition("/")
            sizes[first + slash] += nbytes
        return ", ".join(f"{name} {num_bytes(nbytes)}" for name, nbytes in sizes.most_common(MOST_NAMED))


def script_of(command: Sequence[str], directory: Path) -> Path:
    """Return the script that a command runs: its first argument that is a file, here.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    for number, word in enumerate(command):
        if number == 0 and word.startswith(os.sep):  # an interpreter
            continue
        if not word.startswith("-") and (path := directory / word).is_file():
            return path
    raise ConfigurationError(f"{shlex.join(command)!r:.200} names no script that is a file here")


def place_of(path: Path, here: Path, there: str) -> str:
    """Return the path on the other hosts of one here: what is below this directory is below theirs."""
    path, here = path.resolve(), here.resolve()
    return os.path.normpath(os.path.join(there, path.relative_to(here))) if path.is_relative_to(here) else str(path)


def code_of(script: Path, here: Path, there: str, secrets: Collection[Path] = ()) -> Code:
    """Return what to copy for a script: the files of its folder.

    Left out are what git ignores, unless it ignores the script itself, virtual environments, `NOT_COPIED`, and secrets
    (`zmqps.launch.private`).

    Parameters
    ----------
    script
        The file that the workers run.
    here, there
        The directory in which the command is given, and that in which the workers run.
    secrets
        Files and directories that are secrets, whatever their names.
    """
    folder = script.parent.resolve()
    left_out: list[str] = []
    names = _known_to_git(folder)
    by_git = names is not None and script.name in names
    found = _below_git(folder, names, left_out) if names is not None and by_git else _below(folder, "", left_out)
    there_are = sorted(name for name in set(found) if os.path.lexists(folder / name))  # git still has others
    private = secrets_among(folder, there_are, script.name, secrets)
    files = {}
    for name in there_are:
        if name not in private:
            facts = os.lstat(folder / name)
            files[name] = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return Code(
        folder=folder, there=place_of(folder, here, there), files=files, left_out=tuple(sorted(set(left_out))),
        by_git=by_git, secrets=tuple(sorted(set(private.values()))),
    )  # fmt: skip


def _known_to_git(folder: Path) -> list[str] | None:
    """Return the files below a folder that git does not ignore; None where git does not know the folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, timeout=GIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if result.returncode:
        return None
    return [os.fsdecode(name) for name in result.stdout.split(b"\0") if name]


def _below_git(folder: Path, names: Sequence[str], left_out: list[str]) -> Iterator[str]:
    """Yield those of git's files that are copied; a repository within is one entry of git's, its folder."""
    unwanted_so_far: dict[str, bool] = {}

    def is_unwanted(parent: str) -> bool:
        if parent not in unwanted_so_far:
            unwanted_so_far[parent] = _is_unwanted(folder / parent)
        return unwanted_so_far[parent]

    for name in names:
        parts = Path(name).parts
        parents = ["/".join(parts[:number]) for number in range(1, len(parts))]
        if unwanted := next(filter(is_unwanted, parents), None):
            left_out.append(unwanted)
        elif (folder / name).is_dir() and not (folder / name).is_symlink():
            inner = name.rstrip("/")
            if _is_unwanted(folder / inner):
                left_out.append(inner)
            else:
                yield from _below(folder, f"{inner}/", left_out)
        else:
            yield name


def _below(folder: Path, prefix: str, left_out: list[str]) -> Iterator[str]:
    """Yield all files that are copied, and folders without any."""
    for parent, names, files in os.walk(folder / prefix):
        where = os.path.relpath(parent, folder)
        where = "" if where == "." else f"{where}/"
        for name in [*names]:
            if _is_unwanted(Path(parent, name)):
                names.remove(name)
                left_out.append(f"{where}{name}")
            elif os.path.islink(os.path.join(parent, name)):
                yield f"{where}{name}"
        yield from (f"{where}{name}" for name in files)
        if where and not names and not files:
            yield where.rstrip("/")


def _is_unwanted(folder: Path) -> bool:
    return folder.name in NOT_COPIED or (folder / OF_VENV).is_file()


def check_rsync() -> None:
    """Look for rsync here.

    Raises
    ------
    ProgramMissingError
        There is none.
    """
    if shutil.which("rsync") is None:
        raise ProgramMissingError.of("rsync", "")


def rsync_missing(code: int, said: str, host: str) -> ProgramMissingError | None:
    """Return the error of an rsync that is missing on a host, or too old at one end; None for any other failure.

    Parameters
    ----------
    code, said
        The exit code of the rsync here, and its words.
    host
        The other end.
    """
    if code == NO_SUCH_COMMAND or NOT_FOUND.search(said):
        return ProgramMissingError.of("rsync", host)
    if "unknown option" in said or "unrecognized option" in said:
        return ProgramMissingError.of(f"rsync {RSYNC} or newer", "" if code == WRONG_USAGE else host)
    return None
