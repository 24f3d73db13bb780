"""What processes say to each other: frames, requests, failures."""
