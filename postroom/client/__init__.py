"""What applications call: Database and Transaction, in both forms."""
