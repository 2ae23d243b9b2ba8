"""One training script three times: PyTorch alone, DistributedDataParallel, zmqps; their lines, results and times."""
