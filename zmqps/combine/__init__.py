"""Workers of one host that combine their gradients: `zmqps.connect(..., combine="host")`."""
