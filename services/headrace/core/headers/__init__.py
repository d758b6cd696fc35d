"""Parsers of image headers, one family of formats a file. Pure; `core.image_header` is their front."""
