"""Draw the pictures of the documentation, NAME.svg in this folder: python -m docs.pictures [NAME ...]

Each function registered by :func:`picture` draws the picture of its name. ``pages`` runs the code of pages.
"""

from __future__ import annotations

from . import attentions, graphs, measurements, pages, selections, sentences, sequences
from .gallery import HERE, PICTURES, picture, save

__all__ = [
    "HERE",
    "PICTURES",
    "attentions",
    "graphs",
    "measurements",
    "pages",
    "picture",
    "save",
    "selections",
    "sentences",
    "sequences",
]
