"""ACLs: who may write to mirror topics while mirroring and after it."""
