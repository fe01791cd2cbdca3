"""The same requests to both graph families of one core: measured in pairs, and reported."""
