"""The brake: pauses the job that is about to use up memory, tells its owner, and lets them decide."""
