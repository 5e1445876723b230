"""Scheduled retraining: which period is due, which blocks it reads, one at a time, and whether the
result is better.
"""
