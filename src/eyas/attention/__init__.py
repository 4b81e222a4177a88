"""Attention over slots: one layout, one plan, one run for prompts, trees and draft steps alike."""
