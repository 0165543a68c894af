"""The trigger."""
