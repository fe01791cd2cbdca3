"""What crosses the wire: request models, response shapes, refused fields."""
