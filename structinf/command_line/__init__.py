"""The command line: `structinf list`, `structinf check NAME` and `structinf demo`."""
