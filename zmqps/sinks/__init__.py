"""Where a coordinator writes what scripts log: JSON lines, TensorBoard's files, MLflow, W&B, or a custom sink."""
