"""How far zmqps goes: clusters of up to a thousand workers, of which only the coordinator's machine is real."""
