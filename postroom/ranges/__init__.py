"""What a range does: evaluate, propose, apply; leases, transactions, garbage collection."""
