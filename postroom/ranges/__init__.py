"""The work of a range: evaluate, propose, apply; leases, transactions, garbage collection."""
