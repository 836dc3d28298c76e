"""The demo: from the shipped weights to a report, in a few minutes."""
