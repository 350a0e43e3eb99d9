"""Pods written for Koordinator, KAI, Volcano and HAMi, unmodified, on a whole cluster."""
