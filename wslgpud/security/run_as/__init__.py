"""Starts programs that a user may have made, and as root never with root's rights: the one place that does.

The stress worker and the doctor's question about torch both run in a Python that was found in somebody's home
folder. ``rule.py`` decides as whom.

Checking first and starting later is safe here. The first component on the way that a user can alter lies in
a folder that only root can alter: it is found, with that user's uid, whatever they do meanwhile. So a user
can make the chain look like more than it is, which costs rights, but cannot leave their own uid out of it;
and what they put in place after the check runs with no rights but their own, or with none.
"""
