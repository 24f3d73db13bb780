"""Workers: functions that are called with messages of queues and inboxes."""
