"""Decisions: a Profile and a Cluster become a Plan, by passes that are pure functions."""
