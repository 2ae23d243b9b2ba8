"""The dense values of a shard: where they lie, and how gradients change them."""
