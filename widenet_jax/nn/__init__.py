"""Layers, independent of experts and tasks. Parameters are float32, whatever the dtype."""
