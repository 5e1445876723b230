"""What algorithms share: defaults, noisy gradients, line searches, ADMM, permuted walks,
minimisers; no algorithm.
"""
