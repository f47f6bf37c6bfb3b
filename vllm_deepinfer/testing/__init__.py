"""Models and helpers for tests of engines; nothing here serves users."""
