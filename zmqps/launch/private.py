"""Which files of a folder are secrets, and so no code: by their names, by where they are, and by their modes.

Such a file is rarely meant for every host of a cluster. One that is left out by mistake is named,
and its absence shows; one that is copied by mistake shows nowhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from zmqps.errors import UnsafeFileError
from zmqps.files import read_file
from zmqps.keys.keyring import AUTHORIZED, CLUSTER_PUBLIC, CLUSTER_SECRET

#: Folders of programs that keep secrets in them.
FOLDERS = frozenset((".aws", ".azure", ".gcloud", ".gnupg", ".huggingface", ".kube", ".ssh"))
#: What a directory of a cluster's keys has, whatever its own name.
OF_KEYS = (CLUSTER_PUBLIC, CLUSTER_SECRET, AUTHORIZED)
#: What does not count at the end of a name: most of it is of copies that editors and people leave.
ENDS = (".txt", ".bak", ".old", ".orig", "~")
#: Names of secrets, in lower case and without `ENDS`.
NAMES = (
    *("*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"),
    *(".env", ".env.*", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd"),
    *(".git-credentials", "credentials", "credentials.*", "kaggle.json"),
    *("secret", "*.secret", "*[-_]secret", "secrets", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml"),
    *("token", "*.token", "*[-_]token"),
)  # fmt: skip
#: What is made to be shown.
EXAMPLES = (".env.dist", ".env.example", ".env.sample", ".env.template", "credentials.py")
#: A larger file that this user alone can read is data: secrets are short.
SHORT_NBYTES = 64 << 10
#: A file of certificates is a secret if this is in it, which comes early.
_PRIVATE_KEY, _PEM_NBYTES = b"PRIVATE KEY-----", 64 << 10


def secrets_among(folder: Path, names: Iterable[str], script: str, named: Collection[Path]) -> dict[str, str]:
    """Return for each file that is a secret what to name in its place: itself, or the folder that it is in.

    Parameters
    ----------
    folder, names
        Files, by their paths below a folder.
    script
        Which of them runs: it is not a secret. If others may not read it either, modes mean nothing: a umask set them.
    named
        Files and directories that are secrets whatever their names: what options and the configuration say.
    """
    modes_tell = bool(stat.S_IMODE(os.stat(folder / script).st_mode) & 0o077)
    places = {path.resolve() for path in named}

    @cache
    def place(inner: str) -> str:
        """Return the outermost folder of secrets among a folder and those above it; empty: none is."""
        if not inner:
            return ""
        path = folder / inner
        is_one = path.name.lower() in FOLDERS or any(os.path.lexists(path / name) for name in OF_KEYS)
        return place(os.path.dirname(inner)) or (f"{inner}/" if is_one or path.resolve() in places else "")

    found = {}
    for name in names:
        path = folder / name
        if within := place(os.path.dirname(name)) or (place(name) if path.is_dir() and not path.is_symlink() else ""):
            found[name] = within
        elif name != script and (path.resolve() in places or _is_secret(path, modes_tell)):
            found[name] = name
    return found


def _is_secret(path: Path, modes_tell: bool) -> bool:
    name = path.name.lower()
    for end in ENDS:
        name = name.removesuffix(end)
    if any(fnmatchcase(name, pattern) for pattern in EXAMPLES):
        return False
    if path.name in OF_KEYS or any(fnmatchcase(name, pattern) for pattern in NAMES):
        return True
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode):
        return False
    if name.endswith(".pem"):
        return _has_private_key(path)
    return modes_tell and not facts.st_mode & 0o077 and 0 < facts.st_size <= SHORT_NBYTES


def _has_private_key(path: Path) -> bool:
    try:
        return _PRIVATE_KEY in read_file(path, _PEM_NBYTES)
    except (OSError, UnsafeFileError):  # whatever it is, it is not read here
        return True
