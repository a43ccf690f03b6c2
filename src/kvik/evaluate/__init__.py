"""Quality, speed and bytes of recipes, measured side by side."""
