"""A store reached over the network: streams, certificates, and the senders around a router."""
