"""Joins the native wire and the HTTP port, which do not know each other."""
