"""Unmodified pods of Koordinator, KAI, Volcano and HAMi, on a whole cluster."""
