"""The on-disk format of ohdiff repositories, version 1: codecs only.

SPEC.md beside this file is normative; each module names the section that it implements. Nothing here imports
ohdiff, touches files, or reads time. Malformed input raises FormatError and nothing else. `reader/` holds an
independent reader that shares no code with these modules.
"""
