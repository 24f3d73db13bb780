"""A node: wiring, drivers, opening a store, command line, demonstration."""
