"""Draws the pictures of the documentation, NAME.svg in this folder: python -m docs.pictures [NAME ...]

A function draws the picture of its name, and is registered by :func:`picture`; ``pages`` runs the code of pages.
"""

from __future__ import annotations

from . import attentions, graphs, pages, selections, sentences, sequences
from .gallery import HERE, PICTURES, picture, save

__all__ = [
    "HERE",
    "PICTURES",
    "attentions",
    "graphs",
    "pages",
    "picture",
    "save",
    "selections",
    "sentences",
    "sequences",
]
