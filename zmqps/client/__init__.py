"""The worker behind `zmqps.Worker`: its arrays, its requests, and the background thread that carries them."""
