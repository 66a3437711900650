"""Tests that need a device. A package, so that its conftest is not mistaken for that of another folder."""
