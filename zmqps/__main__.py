"""``python -m zmqps`` is ``zmqps``."""

from zmqps.cli.main import main

if __name__ == "__main__":
    main()
