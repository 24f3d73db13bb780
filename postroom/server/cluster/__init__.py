"""The cluster of a node: its peers, its clients, and how a cluster forms."""
