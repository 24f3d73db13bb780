"""The version of Postroom, in agreement with ``pyproject.toml``."""

VERSION = "0.2.0"
