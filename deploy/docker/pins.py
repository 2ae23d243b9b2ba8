"""Print what constraints.txt pins of some packages, with the hashes: python pins.py constraints.txt NAME…"""

import re
import sys
from pathlib import Path


def main(file: str, *names: str) -> None:
    """Print the entries; end with an error that names what has none."""
    entries = re.findall(r"^([A-Za-z0-9._-]+)==.*(?:\n .*)*", text := Path(file).read_text(), re.MULTILINE)
    if missing := [name for name in names if name not in entries]:
        sys.exit(f"{file} pins no {', '.join(missing)}: see [project.dependencies] in pyproject.toml")
    for name in names:
        print(re.search(rf"^{re.escape(name)}==.*(?:\n .*)*", text, re.MULTILINE)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
