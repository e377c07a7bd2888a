"""The brake: pauses the job that is about to exhaust memory, alerts its owner, and leaves the decision to them."""

#: the record of paused jobs, in the state folder: there once the brake has been used
FILE = "held.json"
