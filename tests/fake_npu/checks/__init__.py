"""Tests that run on the device, in a process of their own: see test_device.py."""
