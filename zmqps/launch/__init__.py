"""Starting processes and ending them: clusters on this machine, their logs, and no orphans."""
