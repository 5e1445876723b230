"""Neural networks under the algorithms of linear models: an extra, ``pip install 'dpflows[nn]'``.

torch is imported when a network is built and nowhere else, so that everything that needs none works
without it.
"""

# Share taken off clips for the rounding of sums over records, by precision; ``clipping.Closed``
# proves it.
MARGINS = {"single": 5.5e-3, "double": 1e-4}
