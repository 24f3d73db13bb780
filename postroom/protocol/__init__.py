"""The messages between processes: frames, requests, failures."""
