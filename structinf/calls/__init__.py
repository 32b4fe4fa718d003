"""From the arguments of a public call to an oracle, a relaxation and a flat batch of problems."""
