"""Transactions: those of one range, and those that several ranges take part in."""
