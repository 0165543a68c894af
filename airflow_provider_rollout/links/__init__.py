"""The operator's extra link."""
