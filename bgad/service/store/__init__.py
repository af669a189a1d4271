"""The store: one module for each group of tables."""
