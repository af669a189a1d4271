"""Scoring for many clients: batching, models in memory, rescoring and thumbnails."""
