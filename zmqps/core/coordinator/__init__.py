"""The coordinator's machine: who is there, what is trained, who may go on and who waits for whom."""
