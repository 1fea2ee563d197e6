"""All settings, as dataclasses that check themselves."""
