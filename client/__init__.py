"""Dial, resume, iterate events. Imports ``protocol`` only."""
