"""The dense values of a shard: where they are stored, and how gradients change them."""
