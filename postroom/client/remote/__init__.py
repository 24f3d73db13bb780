"""A store reached over the network: the wire, the router, and its shell on asyncio."""
