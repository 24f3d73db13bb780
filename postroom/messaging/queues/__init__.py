"""Queues: scheduled messages for competing consumers."""
