"""A node among others: its peers, its clients, and how a cluster forms."""
