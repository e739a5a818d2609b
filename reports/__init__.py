"""Renderings of an Analysis, a Timeline and Records: pure functions, text or files; nothing is measured here."""
