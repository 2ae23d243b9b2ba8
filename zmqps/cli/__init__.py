"""The command line. Its modules import the implementation inside each command, so that ``--help`` stays quick."""
