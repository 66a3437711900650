"""ohdiff: differential backup. Import what you need from the submodules; this package imports nothing."""

__version__ = "0.1.0"
