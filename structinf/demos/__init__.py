"""The demos behind ``structinf demo``, one file each, written to be read and copied.

They need the extra: ``pip install 'structinf[demo]'``.
"""
