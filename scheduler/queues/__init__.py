"""KAI's Queue objects over Kueue: Kueue decides which pods may start, this package translates.

tree.py reads Queues, kueue.py computes Kueue's objects from them, status.py computes what is shown
on Queues and pods. All three are pure. controller.py watches and writes the objects.
"""
