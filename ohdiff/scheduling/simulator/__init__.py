"""The simulator: the same policies over simulated devices, resources and co-runners, event by event, by a seed."""
