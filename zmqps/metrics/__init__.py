"""Figures for Prometheus: nodes answer scrapes from the plain numbers that their machines count."""
