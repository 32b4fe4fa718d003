"""The command line: `structinf list`, `structinf check NAME`, `structinf warmup` and `structinf demo`."""
