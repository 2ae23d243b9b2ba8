"""The worker behind `zmqps.Worker`: its arrays, its requests, and its background thread."""
