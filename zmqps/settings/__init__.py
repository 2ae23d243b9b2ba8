"""The settings of nodes and of the commands that start them: each declared once, with its default, kind and help."""
