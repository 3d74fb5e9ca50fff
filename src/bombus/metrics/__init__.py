"""Scores, counted by us."""
