"""The VRAM stress run: may it run (gates), the program that does it (worker), who watches it (parent), what it means (verdict)."""
