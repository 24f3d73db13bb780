"""A node: wiring, drivers, opening a store."""
