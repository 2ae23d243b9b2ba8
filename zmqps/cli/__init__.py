"""The command line. Its modules import what runs a command inside the command: ``--help`` stays quick."""
