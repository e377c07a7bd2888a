"""The brake: pauses the job that is about to exhaust memory, alerts its owner, and leaves the decision to them."""
