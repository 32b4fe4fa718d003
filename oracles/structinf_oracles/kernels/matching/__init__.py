"""Matchings of highest score in general graphs: Edmonds' blossom algorithm."""
