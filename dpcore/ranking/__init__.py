"""Learning to rank: sessions of documents, scorers, losses, and the sums over them that private
algorithms ask for.

``sessions`` holds the data and their splits, ``synthetic`` a public set of them; ``scorers`` and
``losses`` are the model and what it minimises, ``objective`` their clipped sums, ``problem`` the
public facts, ``metrics`` MAP and NDCG; ``model`` joins them by name. Names are imported from these
modules; the algorithms stand in ``dpcore.algorithms``.
"""
