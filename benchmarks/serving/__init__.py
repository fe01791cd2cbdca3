"""Side-by-side serving benchmark: Flare and other servers, one client, one run."""
