"""The drift test and its monitor."""
