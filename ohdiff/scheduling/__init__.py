"""When our own work may use a device that others own: pure policies, the drivers' contract, and the simulator."""
