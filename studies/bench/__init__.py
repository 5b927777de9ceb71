"""What the state-space layers cost on this machine, beside a naive layer and what the machine can do."""
