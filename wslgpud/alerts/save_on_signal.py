"""For programs that train: notice the daemon's request to save a checkpoint. Copy it or import it.

    from wslgpud.alerts.save_on_signal import SaveOnSignal

    asked = SaveOnSignal()                      # before the loop, in the main thread
    for step, batch in enumerate(batches):
        train(batch)
        if asked():                             # between two steps: nothing is half done
            torch.save({"step": step, "model": model.state_dict(),
                        "optimizer": optimizer.state_dict()}, "checkpoint.pt")

It needs ``save_signal = "SIGUSR1"`` under ``[alerts]`` in the daemon's configuration, and ``save_user`` where
the daemon is root. It comes at a critical once less than 8.5 % is left. Saving takes memory, too:
``save_level = "warning"`` asks at once, and leaves room for it. Worker processes
of a data loader inherit the handler and may be asked, too; they do nothing.
"""

from __future__ import annotations

import signal


class SaveOnSignal:
    """Counts requests; calling it tells whether one has come since the last call."""

    def __init__(self, number: int = signal.SIGUSR1) -> None:
        """Catch the signal from now on; ValueError: this is not the main thread."""
        self._pending = False
        signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self._pending = True

    def __call__(self) -> bool:
        """Return True once for the requests since the last call."""
        if not self._pending:  # one that comes from here on is kept for the next call
            return False
        self._pending = False
        return True
