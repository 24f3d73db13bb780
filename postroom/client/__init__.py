"""The classes that applications call: Database and Transaction, in both forms."""
