"""The door to models, views of providers, the offline model."""
