"""Neural networks under the algorithms of linear models: an extra, ``pip install 'dpflows[nn]'``.

torch is imported when a network is built and nowhere else, so that everything that needs none works
without it.
"""
