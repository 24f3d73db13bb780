"""The way of requests: which range has the keys, and which node leads it, without a network."""
