"""One node's storage: engine, keys, clock, versions (MVCC)."""
