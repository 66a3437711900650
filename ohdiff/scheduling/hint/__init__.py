"""What a job of somebody else's includes to tell ohdiff when it is busy: one Python file and one C header, no more."""
