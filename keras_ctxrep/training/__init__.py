"""Training with `model.fit`: schedule, checkpoints, data, devices."""
