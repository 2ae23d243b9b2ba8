"""The lane: arrays between processes of one host through shared memory."""
