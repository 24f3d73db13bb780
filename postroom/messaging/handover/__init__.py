"""Messages and updates for other ranges: exactly once, in order, without a transaction."""
