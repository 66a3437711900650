"""The parts of scheduling_real.py, one file for each kind of measurement."""
