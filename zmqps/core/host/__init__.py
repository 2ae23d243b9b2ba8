"""Workers of one host that train as one: whose gradients make a round, who waits for whom, and who reads what."""
