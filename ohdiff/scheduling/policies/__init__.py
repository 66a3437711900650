"""The policies, one file each: arbiters, the choice of a job and a device, owner's limits; `compose` joins them."""
