"""Outboxes, inboxes, their delivery and execution, dead letters, conservation."""
