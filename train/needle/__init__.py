"""Training of the small retrieval models that Longview embeds."""
