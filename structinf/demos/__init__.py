"""The demos of ``structinf demo``, one file each, to read and copy.

The demos need an extra: ``pip install 'structinf[demo]'``.
"""
